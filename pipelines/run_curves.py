"""Run curves: figures that the phases of a graph have logged so far, from their newest checkpoints and event logs.

The tables beside a checkpoint have every step once. Event logs have the steps since then, and what only they record:
speed and held-out text. A later attempt that began at an earlier step replaces what an attempt logged after that step.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from marin_dag.cli.session import Session
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.store.store import Store
from pipelines.phases import fork_names, longest_of, main_line_of, phases_in, run_phases_in
from pipelines.saved_curves import SavedState, newest_saved, read_newest
from runtime.cost.chips import GENERATIONS, GPUS
from runtime.optim.ema import HOT
from runtime.report.contents import name_of_weights
from runtime.report.curve_plots import ANSWERS, BITS, GRADIENT, LOSS, MFU, RATE, SPEED, Line
from runtime.report.panel import MAIN_LINE
from runtime.tracking.curves import answers_in
from runtime.tracking.events import VALIDATION, is_part_of_first_host
from steps.gold_answers import GoldAnswersConfig
from steps.machine_checks import devices_on
from steps.phase_config import TrainPhaseConfig
from steps.phase_timeline import RunPhase

KEPT = frozenset({"begin", "progress", VALIDATION, "alarm", "recovered", "skipped", "hang", "error"})
"""Events that curves and alarms need; norms and digests of a long run are too many to keep."""
FROM_TABLE = {LOSS: "loss", GRADIENT: "grad_norm", RATE: "learning_rate"}


class LoggedPhase:
    """The curves of one digest; each `refresh` reads only what has changed in the store."""

    def __init__(
        self,
        store: Store,
        step: Step[TrainPhaseConfig],
        run_phase: RunPhase,
        *,
        longest: Step[TrainPhaseConfig],
        is_main: bool,
    ) -> None:
        self.name, self.is_main = step.name, is_main
        self.longest = longest
        """The phase of this digest that ends last: it trains every step that the curves have."""
        self._store, self._digest, self._config, self._run_phase = store, step.digest, step.config, run_phase
        self._flops_share = _flops_share(step)
        answers = (each.config_of(GoldAnswersConfig) for each in step.config.validation_tasks)
        self._tasks = [task.label for config in answers if config is not None for task in config.tasks]
        self._saved: SavedState | None = None
        self._table: dict[str, np.ndarray] = {name: np.array([]) for name in ("consumed_tokens", *FROM_TABLE.values())}
        self._parts: dict[str, tuple[int, list[dict[str, Any]]]] = {}
        """Size and kept events of each part of an event log, by path."""

    def refresh(self) -> None:
        """Read a newer checkpoint and longer logs; raise the errors of both."""
        saved = newest_saved(self._store, self._digest)
        if saved is not None and saved != self._saved:
            curves = read_newest(self._store, self._digest, after_step=self._config.begin_step, by_source=False)
            if curves is not None:
                self._table = {name: curves.figures[f"train/{name}"] for name in self._table}
            self._saved = saved
        found = {}
        for entry in sorted(self._store.list(f"work/{self._digest}/events")):
            if not is_part_of_first_host(entry.path):
                continue
            known = self._parts.get(entry.path)
            if known is None or known[0] != entry.size_in_bytes:
                known = entry.size_in_bytes, list(_kept(self._store.read(entry.path)))
            found[entry.path] = known
        self._parts = found

    def events(self) -> list[dict[str, Any]]:
        """Return the kept events of all attempts, without events of training steps that a later attempt repeated."""
        found: list[dict[str, Any]] = []
        for event in (event for _, events in self._parts.values() for event in events):
            if event["event"] == "begin":
                found = [earlier for earlier in found if earlier.get("step", 0) <= event["step"]]
            found.append(event)
        return found

    def lines(self) -> list[Line]:
        """Return a line for each panel, empty while nothing is logged; a line of MFU only if the peak is known."""
        events = self.events()
        progress = [event for event in events if event["event"] == "progress"]
        tokens = self._table["consumed_tokens"]
        last = float(tokens[-1]) if len(tokens) else 0.0
        newer = _rows([(e["consumed_tokens"], e["loss"]) for e in progress if e["consumed_tokens"] > last])
        speed = _rows([(e["consumed_tokens"], e["tokens_per_second"]) for e in progress])
        found = [self._line(panel, tokens, self._table[name]) for panel, name in FROM_TABLE.items()]
        found[0] = self._line(LOSS, np.append(tokens, newer[0]), np.append(self._table["loss"], newer[1]))
        found.append(self._line(SPEED, *speed))
        if self._flops_share is not None:
            found.append(self._line(MFU, speed[0], speed[1] * self._flops_share))
        validations = _comparable([event for event in events if event["event"] == VALIDATION])
        for which in (HOT, *(average.name for average in self._config.averages)):
            measured = [(e["consumed_tokens"], e["mean_bits_per_byte"].get(which)) for e in validations]
            name = name_of_weights(self.name, which)
            found.append(self._line(BITS, *_rows(measured), name=name)._replace(is_dotted=which != HOT))
        return [*found, *self._answer_lines(validations)]

    def _answer_lines(self, validations: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
        """Yield a line for each task of the validations, with the weights' bits per byte of its right answers."""
        found: dict[str, list[tuple[float, float | None]]] = {task: [] for task in self._tasks}
        for event, which, task, value in answers_in(validations):
            if which == HOT:
                found.setdefault(task, []).append((event["consumed_tokens"], value))
        for task, measured in found.items():
            yield Line(ANSWERS, f"{self.name}, {task}", task, *_rows(measured), phase=self.name)

    def tokens_at(self, step: int) -> float:
        """Return the tokens of the run after a training step."""
        return float(self._run_phase.tokens_at(step))

    def step_at(self, tokens: int) -> int:
        """Return the training step of this phase that ends nearest to a number of tokens of the run."""
        begin, run_phase = self._config.begin_step, self._run_phase
        step = begin + round((tokens - run_phase.begin_tokens) / run_phase.tokens_per_step)
        return min(max(step, begin + 1), self.longest.config.until_step)

    def _line(self, panel: str, tokens: np.ndarray, values: np.ndarray, name: str | None = None) -> Line:
        series = MAIN_LINE if self.is_main else self.name
        return Line(panel, name or self.name, series, tokens, values, phase=self.name)


def logged_phases(session: Session, graph: Graph, digests: Iterable[Sequence[str]]) -> list[LoggedPhase]:
    """Return the phases of each digest, which is known by the first of its names."""
    phases = phases_in(graph.steps)
    run_phases = run_phases_in(phases)
    main_line = main_line_of(run_phases, fork_names(session)) if run_phases else []
    return [
        LoggedPhase(
            session.store,
            phases[names[0]],
            run_phases[names[0]],
            longest=longest_of(phases[name] for name in names),
            is_main=not set(main_line).isdisjoint(names),
        )
        for names in digests
    ]


def _comparable(validations: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the measurements on the same text as the newest: a source may be tokenized while the phase trains."""
    text = [(event["tokens_per_domain"], event["bits_per_byte"][HOT].keys()) for event in validations]
    return [event for event, measured in zip(validations, text, strict=True) if measured == text[-1]]


def _rows(pairs: Sequence[tuple[float, float | None]]) -> tuple[np.ndarray, np.ndarray]:
    """Return two columns of the pairs with a y value, in order of x; of pairs with equal x, the last."""
    found = dict(sorted({x: y for x, y in pairs if y is not None}.items()))
    return np.array([*found.keys()], np.float64), np.array([*found.values()], np.float64)


def _kept(log: bytes) -> Iterator[dict[str, Any]]:
    """Yield the events that are kept; the last line may be cut short."""
    for line in log.split(b"\n")[:-1]:
        event: Mapping[str, Any] = json.loads(line)
        if event["event"] in KEPT:
            yield dict(event)


def _flops_share(step: Step[TrainPhaseConfig]) -> float | None:
    """Return the share of the devices' peak that one token a second is; None for devices of unknown peak."""
    config, devices = step.config, devices_on(step.resources)
    chip = (GENERATIONS | GPUS).get(devices.kind.removeprefix("TPU "))
    if chip is None:
        return None
    peak = chip.peak_flops(config.compute_dtype) * devices.num_devices
    return float(config.model.flops_per_token(config.sequence_length) / peak)
