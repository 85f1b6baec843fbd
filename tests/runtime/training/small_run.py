"""A run small enough to be killed a hundred times: real loader, real checkpoints, a model of one matrix.

Each attempt has its own output folder, and a record that is created last commits a milestone.
"""

import json
import math
import os
import signal
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import optax

from runtime.data.cache import TokenCache, TokenFormat
from runtime.data.cache_writer import token_cache_writer
from runtime.data.loader import Loader
from runtime.data.mixing.policies import MixingPolicy, Static
from runtime.data.mixture import MixtureSchedule
from runtime.optim.skip_rule import SkipRule
from runtime.tracking.events import EventLog
from runtime.training import run_state, saving
from runtime.training.checkpoint_files import CheckpointFiles, ChunkedArray
from runtime.training.control import Action, Control, ControlRequest
from runtime.training.loop import LoopParts, train
from runtime.training.observer import Observer
from runtime.training.profiling import Profiler
from runtime.training.run_state import RunState
from runtime.training.saving import SavingPlan
from runtime.training.settings import TrainSettings
from runtime.training.temporary import TemporaryCheckpoints
from runtime.training.train_step import Hyperparameters, StepMetrics

SEQUENCE_LENGTH = 8
GLOBAL_BATCH_SIZE = 4
VOCAB_SIZE = 32
STATIC = Static()
AVERAGED = {"averaged": 0.75}


class SmallState(eqx.Module):
    """The fields of a TrainState, with one matrix for a model."""

    params: dict[str, jax.Array]
    optimizer: optax.ScaleByAdamState
    averages: dict[str, dict[str, jax.Array]]
    key: jax.Array
    history: None = None
    skip_window_steps: int = eqx.field(default=0, static=True)


def placed(values: np.ndarray) -> jax.Array:
    """Place values without compiling, for a child that lives for a second."""
    return jax.device_put(values)


def moments(mu: np.ndarray, nu: np.ndarray, count: int) -> optax.ScaleByAdamState:
    return optax.ScaleByAdamState(placed(np.int32(count)), {"w": placed(mu)}, {"w": placed(nu)})


def initial(averages: Collection[str] = ("averaged",), skip_window_steps: int = 0) -> SmallState:
    matrix = np.random.default_rng(0).normal(size=(VOCAB_SIZE, 4)).astype(np.float32)
    return SmallState(
        params={"w": placed(matrix)},
        optimizer=moments(np.zeros_like(matrix), np.zeros_like(matrix), 0),
        averages={name: {"w": placed(matrix)} for name in averages},
        key=placed(np.array([1, 2], np.uint32)),
        skip_window_steps=skip_window_steps,
    )


def state_like(averages: Collection[str], skip_window_steps: int = 0) -> SmallState:
    state = initial(averages, skip_window_steps)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)


def train_step(
    state: SmallState, tokens: np.ndarray, segment_ids: np.ndarray, reported: Hyperparameters
) -> tuple[SmallState, StepMetrics]:
    """Move each token's row towards the sine of the step by heavy-ball descent, in NumPy."""
    w, mu, nu = (np.asarray(tree["w"]) for tree in (state.params, state.optimizer.mu, state.optimizer.nu))
    error = w[tokens] - np.float32(np.sin(int(state.optimizer.count)))
    gradient = np.zeros_like(w)
    np.add.at(gradient, tokens, error / np.float32(tokens.size))
    mu = np.float32(0.9) * mu + gradient
    w = w - np.float32(reported.learning_rate) * mu
    averages = {}
    for name, decay in zip(sorted(state.averages), reported.average_decays, strict=True):
        kept = np.float32(decay)
        averages[name] = {"w": placed(kept * np.asarray(state.averages[name]["w"]) + (1 - kept) * w)}
    new = SmallState(
        {"w": placed(w)},
        moments(mu, nu + gradient**2, int(state.optimizer.count) + 1),
        averages,
        state.key,
        skip_window_steps=state.skip_window_steps,
    )
    loss, norm, zero = np.float32((error**2).mean()), np.float32(np.linalg.norm(gradient)), np.float32(0)
    row_loss = (error**2).sum(axis=(1, 2), dtype=np.float32)
    row_log_normalizer = np.abs(error).sum(axis=(1, 2), dtype=np.float32)
    row_targets = np.full(len(tokens), tokens.shape[1], np.int32)
    norms = norm, norm, np.float32(np.linalg.norm(w))
    rows = row_loss, row_log_normalizer, row_targets
    part_norms = np.array(norms, np.float32)[:, None]  # of its one tensor
    figures = StepMetrics(loss, zero, *norms, np.int32(tokens.size), zero, *rows, part_norms)
    return new, StepMetrics(*map(placed, figures))


def small_loader(folder: Path, policy: MixingPolicy = STATIC) -> Loader:
    names = ("web", "code")
    for index, name in enumerate(names):
        if not (folder / name / "cache.json").exists():
            rng = np.random.default_rng(index)
            ids = TokenFormat(vocab_size=VOCAB_SIZE, eos_token_id=0, bos_token_id=None, tokenizer_digest="0" * 64)
            with token_cache_writer(str(folder / name), ids, np.ones(VOCAB_SIZE, np.int32)) as writer:
                writer.add([rng.integers(1, VOCAB_SIZE, 13) for _ in range(40)], num_bytes=520)
    caches = {name: TokenCache.open(str(folder / name)) for name in names}
    mixture = MixtureSchedule.constant({"web": 2.0, "code": 1.0})
    identities = {name: f"digest of {name}" for name in names}
    return Loader(caches, identities, mixture, SEQUENCE_LENGTH, 0, policy=policy)


def stop_when(condition: Callable[[], bool]) -> Callable[[], str]:
    """Return the stop reason of a driver that stops the run once the condition holds."""
    return lambda: "the driver asked to stop" if condition() else ""


def first_action(control: Control, *, is_save_due: bool = False) -> Action:
    """Return the action before the first step."""
    return control.decide(0, until_step=9, is_save_due=is_save_due).action


class Desk:
    """Collects requests of users, and the replies of a run."""

    def __init__(self) -> None:
        self.requests: list[ControlRequest] = []
        self.replies: dict[str, str] = {}
        self.refused: set[str] = set()

    def request(self, action: Action, step: int | None = None) -> str:
        """Add a request, and return its id."""
        name = str(len(self.requests))

        def refuse(text: str) -> None:
            self.refused.add(name)
            self.note(name, text)

        origin = f"anna wants {action.name}"
        self.requests.append(ControlRequest(name, action, step, origin, lambda text: self.note(name, text), refuse))
        return name

    def note(self, name: str, text: str) -> None:
        assert name not in self.replies, "once"
        self.replies[name] = text

    def open(self) -> list[ControlRequest]:
        return [request for request in self.requests if request.id not in self.replies]


class Committer(Observer):
    """Commits milestones to `folder` with a record for each."""

    def __init__(self, folder: Path, lease_epoch: int) -> None:
        self._folder, self._lease_epoch = folder, lease_epoch

    def on_milestone(self, run: RunState, folder: str) -> None:
        part = self._folder / f"record-{self._lease_epoch}.part"
        part.write_text(json.dumps(f"outputs/{self._lease_epoch}/{folder}"))
        part.rename(self._folder / "records" / f"{run.step}.json")


def records(folder: Path) -> dict[int, Path]:
    return {int(path.stem): folder / json.loads(path.read_text()) for path in (folder / "records").glob("*.json")}


def run(
    folder: Path,
    until_step: int = 12,
    *,
    lease_epoch: int,
    checkpoint_every_steps: int = 4,
    checkpoint_every_seconds: float = math.inf,
    keep_good_every_steps: int = 1,
    publish_every_steps: int = 0,
    average_decays: Mapping[str, float] = AVERAGED,
    step_function: Callable = train_step,
    control: Control | None = None,
    policy: MixingPolicy = STATIC,
    skip_rule: SkipRule | None = None,
    history_steps: int | None = None,
    norms_every_steps: int = 0,
) -> RunState | None:
    """Run an attempt from the newest state, else from scratch; return None if there is nothing to do."""
    (folder / "records").mkdir(parents=True, exist_ok=True)
    temporary = TemporaryCheckpoints(str(folder / "work"), lease_epoch)
    found = {step: str(path) for step, path in records(folder).items() if step <= until_step}
    if until_step in found:
        return None
    if newest := temporary.newest(until_step):
        found.setdefault(newest.step, newest.folder)
    if found:
        begin = run_state.resumed(found[max(found)], state_like, averages=tuple(average_decays))
    else:
        size = skip_rule.window_steps if skip_rule else 0
        begin = run_state.from_scratch(initial(tuple(average_decays), size if history_steps is None else history_steps))

    def hyperparameters(step: int) -> Hyperparameters:
        decays = tuple(decay for _, decay in sorted(average_decays.items()))
        return Hyperparameters(0.1 / (1 + step), 0.0, 0.9, 0.95, 1e-8, 1.0, z_loss=0.0, average_decays=decays)

    with EventLog(str(folder / "events" / f"{lease_epoch}.jsonl")) as events:
        settings = TrainSettings(
            until_step=until_step,
            sequence_length=SEQUENCE_LENGTH,
            global_batch_size=GLOBAL_BATCH_SIZE,
            skip_rule=skip_rule,
            norms_every_steps=norms_every_steps,
        )
        parts = LoopParts(
            hyperparameters=hyperparameters,
            train_step=step_function,
            loader=small_loader(folder / "caches", policy),
            saving=SavingPlan(
                temporary=temporary,
                checkpoint_every_steps=checkpoint_every_steps,
                checkpoint_every_seconds=checkpoint_every_seconds,
                keep_good_every_steps=keep_good_every_steps,
                output_folder=str(folder / "outputs" / str(lease_epoch)),
                publish_every_steps=publish_every_steps,
                facts={"seed": 0},
            ),
            events=events,
            control=control or Control(),
            profiler=Profiler(str(folder / "profiles"), events),
            observer=Committer(folder, lease_epoch),
        )
        return train(begin, settings, parts, is_resumed=bool(found))


def committed_bytes(folder: Path) -> dict[str, bytes]:
    """Return every file of every committed milestone."""
    return {
        f"{step}/{path.relative_to(root)}": path.read_bytes()
        for step, root in sorted(records(folder).items())
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


class Countdown:
    """Calls `finish` in place of the n-th call that it watches."""

    def __init__(self, calls: int, finish: Callable[[], None]) -> None:
        self.calls, self.finish = calls, finish
        self.seen: list[str] = []
        """The names of the functions that were called."""

    def watch(self, function: Callable) -> Callable:
        def watched(*arguments: object, **keywords: object) -> object:
            if len(self.seen) == self.calls:
                self.finish()
            self.seen.append(function.__name__)
            return function(*arguments, **keywords)

        return watched


WRITES = (
    (CheckpointFiles, "start_write"),
    (CheckpointFiles, "delete"),
    (CheckpointFiles, "delete_below"),
    (ChunkedArray, "write_chunk"),
)


def watch_writes(countdown: Countdown) -> None:
    """Count every change to the store from now on."""
    for owner, name in WRITES:
        setattr(owner, name, countdown.watch(getattr(owner, name)))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run_and_die_before_write(folder: Path, write: int, good_steps: int = saving.GOOD_STEPS) -> None:
    saving.GOOD_STEPS = good_steps
    watch_writes(Countdown(write, die))
    run(folder, lease_epoch=1)


def run_and_die_at_step(folder: Path, step: int, policy: MixingPolicy = STATIC, until_step: int = 12) -> None:
    dying = Countdown(step, die).watch(train_step)
    run(folder, until_step, lease_epoch=1, step_function=dying, policy=policy)


def count_writes(folder: Path, good_steps: int = saving.GOOD_STEPS) -> None:
    """Write the names of the changes to the store of an undisturbed run to `folder`/writes."""
    saving.GOOD_STEPS = good_steps
    countdown = Countdown(-1, die)
    watch_writes(countdown)
    run(folder, lease_epoch=1)
    (folder / "writes").write_text("\n".join(countdown.seen))
