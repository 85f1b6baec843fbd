"""Training on a token cache that another process is still building gives the bytes of training on the finished one."""

import contextlib
import dataclasses
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from marin_dag.graph.context import Parts, StepStopped
from marin_dag.graph.graph import Graph
from marin_dag.graph.inputs import Input
from marin_dag.graph.resources import Cpu
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Record, Records
from marin_dag.run.driver import Run
from marin_dag.run.live import LineDisplay
from marin_dag.run.local.backend import LocalBackend
from marin_dag.run.parts import parts_of
from marin_dag.store.prefix import open_store
from runtime.data import growing_cache, prefetch
from runtime.data.cache import TokenCache
from runtime.data.loader import Loader
from runtime.data.mixing.loss_drop import LossDrop
from runtime.data.mixture import MixtureSchedule
from runtime.model.config import LLAMA2_ROPE
from runtime.optim.schedule import Linear
from runtime.training import meter
from steps.phase_config import TrainPhaseConfig
from steps.tokenize import TokenizeResult
from steps.train_phase import train_phase
from tests.catalogue import expect_error
from tests.steps import tokenize_slowly
from tests.steps.phase_runs import MODEL, Attempt, Trajectory

pytestmark = pytest.mark.usefixtures("use_devices")

LENGTH = 32
PATIENCE_SECONDS = 600.0


class Growing(Trajectory):
    """A run whose attempts follow the blocks of one store."""

    def __init__(self, folder: Path, prefix: str) -> None:
        super().__init__(folder, "e" * 64)
        self.prefix = prefix

    def run(self, config: TrainPhaseConfig, *, stop: Callable[[], bool] = lambda: False) -> Any:
        self.attempts += 1
        attempt = Attempt(self, None)
        attempt.stop_reason = lambda: "the driver asked to stop" if stop() else ""  # type: ignore[method-assign]

        def parts(growing: Input[Any], *, after: int = 0) -> Parts:
            return parts_of(growing, open_store(self.prefix), after=after)

        attempt.parts = parts  # type: ignore[attr-defined]
        return train_phase.function(config, attempt)


def cache_input(prefix: str, part: int | None) -> Input[TokenizeResult]:
    """Bind a growing input as the engine does: its first block, or the whole."""
    step = tokenize_slowly.tokenize_step()
    store = open_store(prefix)
    record = Records(store).get(step.digest if part is None else f"{step.digest}@{part}")
    result = TokenizeResult.model_validate(record.result)
    path = store.url(record.output_path)
    return Input(name="tokenize", digest=step.digest, path=path, result=result, is_growing=part is not None)


def phase_on(cache: Input[TokenizeResult], until_step: int) -> TrainPhaseConfig:
    model = dataclasses.replace(MODEL, vocab_size=tokenize_slowly.VOCAB_SIZE + 4, max_position_embeddings=LENGTH)
    return TrainPhaseConfig(
        start=None,
        until_step=until_step,
        model=model,
        rope=LLAMA2_ROPE,
        sequence_length=LENGTH,
        global_batch_size=4,
        learning_rate=Linear(1e-3, 1e-4, start_step=0, decay_steps=10),
        weight_decay=0.0,
        b1=0.9,
        b2=0.95,
        eps=1e-8,
        max_norm=1.0,
        z_loss=0.0,
        mixture=MixtureSchedule.constant({"web": 1.0}),
        caches={"web": cache},
        seed=0,
        compute_dtype="float32",
        checkpoint_every_steps=100,
    )


@contextlib.contextmanager
def tokenizing(prefix: str, gates: Path) -> Iterator[subprocess.Popen]:
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    command = [sys.executable, "-m", "tests.steps.tokenize_slowly", prefix, str(gates)]
    process = subprocess.Popen(command, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def when(happens: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def has(prefix: str, part: int) -> Callable[[], bool]:
    key = f"{tokenize_slowly.tokenize_step().digest}@{part}"
    return lambda: (Path(prefix) / "commits" / f"{key}.json").exists()


def steps_of_an_epoch(cache: Input[TokenizeResult]) -> int:
    ends = TokenCache.open(cache.join("train")).block_ends
    assert len(ends) == 3
    return sum((end - begin) // LENGTH for begin, end in zip((0, *ends), ends, strict=False)) // 4


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a prefix with a finished cache."""
    prefix = str(tmp_path_factory.mktemp("finished"))
    assert tokenize_slowly.run(prefix) == 0
    return prefix


def test_a_phase_that_skips_batches_can_be_stopped_while_it_waits_for_a_cache(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(growing_cache, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(prefetch, "CALL_BACK_SECONDS", 0.1)
    prefix, gates = str(tmp_path / "runs"), tmp_path / "gates"
    gates.mkdir()
    for shard in (0, 1):
        (gates / str(shard)).touch()
    with tokenizing(prefix, gates) as tokenizer:
        when(has(prefix, 1))
        cache = cache_input(prefix, 1)
        tokenizer.kill()

    def is_waiting() -> bool:
        return any("waiting for block 2" in record.getMessage() for record in caplog.records)

    policy = LossDrop(warmup_steps=1, window_updates=8, max_epochs={"web": 2.0})
    config = phase_on(cache, 9).model_copy(update={"skip_batches": 2, "mixing": policy, "give_up_seconds": 20})
    with caplog.at_level(logging.WARNING), expect_error(StepStopped):
        Growing(tmp_path / "phase", prefix).run(config, stop=is_waiting)


def test_training_on_a_growing_cache_gives_the_bytes_of_the_finished_one(tmp_path, finished, monkeypatch, caplog):
    monkeypatch.setattr(growing_cache, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(prefetch, "CALL_BACK_SECONDS", 0.2)
    # Training is heard to wait for so long at least, below; on a fast machine the rest is built within a second.
    monkeypatch.setattr(meter, "STALL_SECONDS", 0.1)
    prefix, gates = str(tmp_path / "runs"), tmp_path / "gates"
    gates.mkdir()
    for shard in (0, 1):
        (gates / str(shard)).touch()
    whole_input = cache_input(finished, None)
    until_step = 2 * steps_of_an_epoch(whole_input)
    straight = Trajectory(tmp_path / "straight", "e" * 64)
    straight.run(phase_on(whole_input, until_step))

    growing = Growing(tmp_path / "growing", prefix)
    waits = threading.Event()

    class Waits(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "waiting for block" in record.getMessage():
                waits.set()

    monkeypatch.setattr(logging.getLogger("tests.steps.phase_runs"), "handlers", [Waits()])
    with tokenizing(prefix, gates) as tokenizer:
        when(has(prefix, 1))
        early = cache_input(prefix, 1)
        assert early.digest == whole_input.digest and early.result.num_train_tokens > 0
        with pytest.raises(StepStopped):  # stopped while it waits
            growing.run(phase_on(early, until_step), stop=waits.is_set)
        assert waits.is_set() and tokenizer.poll() is None
        tokenizer.kill()
    for shard in (2, 3, 4):
        (gates / str(shard)).touch()
    waits.clear()

    is_idle = threading.Event()
    prefetched = Loader.prefetched

    def watched(loader: Loader, *arguments: Any, while_waiting: Callable[[], None], **more: Any) -> Any:
        def idle() -> None:
            is_idle.set()
            while_waiting()

        return prefetched(loader, *arguments, while_waiting=idle, **more)

    monkeypatch.setattr(Loader, "prefetched", watched)

    def build_the_rest() -> None:
        assert waits.wait(PATIENCE_SECONDS)  # for block 2, which no process builds
        is_idle.clear()
        assert is_idle.wait(PATIENCE_SECONDS)  # batches read before are trained on; now training itself waits
        with tokenizing(prefix, gates) as restarted:
            assert restarted.wait(PATIENCE_SECONDS) == 0

    builder = threading.Thread(target=build_the_rest, daemon=True)
    builder.start()
    growing.run(phase_on(early, until_step))
    builder.join()
    assert growing.files(until_step) == straight.files(until_step)
    stalls = [event for event in growing.events() if event["event"] == "stall"]
    assert any(event["cause"] == "cache not built yet" for event in stalls)
    waited = growing.events()[-2]["waited_by_cause"]
    of_stalls = sum(event["by_cause"].get("cache not built yet", 0.0) for event in stalls)
    assert waited["cache not built yet"] >= of_stalls - 0.001 * (len(stalls) + 1)  # each is rounded by itself

    again = cache_input(prefix, None)
    assert files_of(again) == files_of(whole_input), "killed on the way, the cache has the bytes of one built in one go"


def files_of(cache: Input[TokenizeResult]) -> dict[str, bytes]:
    root = Path(cache.path)
    found = {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
    return {name: content for name, content in found.items() if not name.startswith("blocks/")}


def test_under_two_drivers_a_phase_trains_while_another_driver_still_tokenizes(
    tmp_path: Path, finished: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(growing_cache, "POLL_SECONDS", 0.02)
    prefix, gates = str(tmp_path / "runs"), tmp_path / "gates"
    gates.mkdir()
    for shard in (0, 1):
        (gates / str(shard)).touch()
    until_step = 2 * steps_of_an_epoch(cache_input(finished, None))

    def phase_of(cache: Any) -> Step[Any]:
        return train_phase("phase", phase_on(cache, until_step), resources=Cpu(1))

    def made(at: str, phase: Step[Any]) -> Record:
        display = LineDisplay(Console(stderr=True), Console(stderr=True))
        assert Run(Graph([phase]).steps, open_store(at), LocalBackend(), display, command="").run() == 0
        return Records(open_store(at)).get(phase.key)

    growing = phase_of(tokenize_slowly.tokenize_step().growing())
    events = Path(prefix, "work", growing.digest, "events")
    began: list[bool] = []

    def open_the_rest() -> None:  # once the phase has started, on the first block alone
        when(lambda: any(events.glob("*.jsonl")))
        began.append(has(prefix, 2)())
        for shard in (2, 3, 4):
            (gates / str(shard)).touch()

    with tokenizing(prefix, gates) as tokenizer:
        when(has(prefix, 1))
        opener = threading.Thread(target=open_the_rest, daemon=True)
        opener.start()
        early = made(prefix, growing)
        opener.join()
        assert tokenizer.wait(PATIENCE_SECONDS) == 0
    assert began == [False]
    late = made(finished, phase_of(tokenize_slowly.tokenize_step()))
    assert (early.digest, early.manifest) == (late.digest, late.manifest)
