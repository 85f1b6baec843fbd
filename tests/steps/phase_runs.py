"""A train phase small enough to be run a hundred times, and what the engine does for it, in the plainest way."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from pydantic import BaseModel

from marin_dag.graph.context import ALONE
from marin_dag.graph.inputs import Input
from marin_dag.graph.resources import Cpu, Resources
from marin_dag.ledger.requests import Request
from runtime.data.cache import TokenFormat
from runtime.data.cache_writer import token_cache_writer
from runtime.data.mixture import MixtureSchedule
from runtime.model.config import LLAMA2_ROPE
from runtime.model.llama.config import LlamaConfig
from runtime.optim.schedule import Linear
from runtime.tracking.events import read_events
from runtime.tracking.metrics import MetricsTable
from runtime.tracking.source_losses import SourceLosses, SourceLossesTable
from steps.phase_config import TrainPhaseConfig
from steps.phase_result import TrainPhaseResult
from steps.tokenize import TokenizeResult
from steps.train_phase import train_phase

jax.config.update("jax_num_cpu_devices", 8)  # as tests/runtime/training does; before JAX makes its backend

SEQUENCE_LENGTH = 16
MODEL = LlamaConfig(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=4,
    max_position_embeddings=SEQUENCE_LENGTH,
)


class Trajectory:
    """Records and work folder of one trajectory, as the engine keeps them."""

    def __init__(self, folder: Path, digest: str) -> None:
        self.folder, self.digest = folder, digest
        self.records: dict[int, tuple[str, TrainPhaseResult]] = {}
        self.attempts = 0
        self.resources: Resources | None = None
        """None is as many cores as there are devices."""
        self.notice_seconds: float | None = None
        self.wanted_milestones: tuple[int, ...] = ()
        """Milestones that other steps start from."""
        self.reported: list[dict[str, float]] = []
        """Figures of the newest attempt's progress."""
        self.requests: list[Request] = []
        """Requests of users."""
        self.answers: dict[str, str] = {}
        """Replies by the ids of the requests."""
        self.how: dict[str, str] = {}
        """How the newest attempt computed."""
        self.how_by_record: dict[int, dict[str, str]] = {}
        self.warnings: list[str] = []
        """Warnings of the newest attempt on the terminal."""
        self.begins: list[float] = []
        """First step of the progress bar, for each report."""

    def at(self, step: int) -> Input[TrainPhaseResult]:
        path, result = self.records[step]
        how = self.how_by_record[step]
        return Input(milestone=step, name="a phase", digest=self.digest, path=path, result=result, computed_with=how)

    def files(self, step: int) -> dict[str, bytes]:
        root = Path(self.records[step][0])
        return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}

    def metrics(self, step: int) -> MetricsTable:
        return MetricsTable.from_parquet(self.files(step)["metrics.parquet/000000.parquet"])

    def source_losses(self, step: int) -> list[SourceLosses]:
        table = SourceLossesTable.from_parquet(self.files(step)["source_losses.parquet/000000.parquet"])
        return [table[index] for index in range(len(table))]

    def events(self) -> list[dict[str, Any]]:
        return read_events(f"{self.folder}/work/events/attempt-{self.attempts}.jsonl")

    def run(self, config: TrainPhaseConfig, *, stop_after: int | None = None) -> TrainPhaseResult:
        self.attempts += 1
        for of_the_last in (self.reported, self.begins, self.how, self.warnings):
            of_the_last.clear()
        return train_phase.function(config, Attempt(self, stop_after))


class Attempt:
    """A StepContext."""

    def __init__(self, trajectory: Trajectory, stop_after: int | None) -> None:
        self._trajectory, self._stop_after = trajectory, stop_after
        self.name, self.digest = "a phase", trajectory.digest
        self.lease_epoch = trajectory.attempts
        self.attempt = f"attempt-{self.lease_epoch}"
        self.output_path = f"{trajectory.folder}/outputs/{self.attempt}"
        self.work_path = f"{trajectory.folder}/work"
        self.log = logging.getLogger(__name__)
        self.resources = trajectory.resources or Cpu(jax.device_count())
        self.host = ALONE
        self.notice_seconds = trajectory.notice_seconds
        self.wanted_milestones = trajectory.wanted_milestones
        self._asked = 0

    def map(self, function: Any, items: Any, *, in_flight: int, name: str = "shards") -> list[Any]:
        raise NotImplementedError

    def progress(self, done: int, total: int, unit: str, *, begin: float = 0, **figures: float) -> None:
        assert begin <= done <= total
        self._trajectory.begins.append(begin)
        assert unit == "steps"
        self._trajectory.reported.append(figures)

    def computed_with(self, **how: str) -> None:
        self._trajectory.how |= how

    def warn(self, text: str) -> None:
        self._trajectory.warnings.append(text)

    def publish(self, milestone: int, folder: str, result: BaseModel) -> None:
        assert isinstance(result, TrainPhaseResult)
        assert milestone not in self._trajectory.records
        self._trajectory.records[milestone] = f"{self.output_path}/{folder}", result
        self._trajectory.how_by_record[milestone] = dict(self._trajectory.how)

    def milestones(self) -> dict[int, Input[Any]]:
        return {step: self._trajectory.at(step) for step in self._trajectory.records}

    def stop_requested(self) -> bool:
        return bool(self.stop_reason())

    def stop_reason(self) -> str:
        self._asked += 1
        is_asked = self._stop_after is not None and self._asked > self._stop_after
        return "the driver asked to stop" if is_asked else ""

    def requests(self) -> Sequence[Request]:
        return [request for request in self._trajectory.requests if request.id not in self._trajectory.answers]

    def reply(self, request: Request, text: str) -> None:
        assert request.id not in self._trajectory.answers
        self._trajectory.answers[request.id] = text

    def decline(self, request: Request, text: str) -> None:
        self.reply(request, f"no: {text}")


def write_cache(folder: Path, last_id: int) -> TokenizeResult:
    """Write a cache of a hundred documents of 21 random ids below `last_id`: the fewer ids, the easier."""
    ids = TokenFormat(vocab_size=MODEL.vocab_size, eos_token_id=0, bos_token_id=None, tokenizer_digest="0" * 64)
    rng = np.random.default_rng(0)
    with token_cache_writer(str(folder / "train"), ids, np.ones(MODEL.vocab_size, np.int32)) as writer:
        writer.add([rng.integers(1, last_id, 21) for _ in range(100)], num_bytes=2100)
    with token_cache_writer(str(folder / "validation"), ids, np.ones(MODEL.vocab_size, np.int32)) as writer:
        writer.add([np.arange(1, 22) % (last_id - 1) + 1], num_bytes=21)
    return TokenizeResult(
        train="train",
        validation="validation",
        num_train_tokens=2200,
        num_validation_tokens=22,
        num_train_bytes=2100,
        num_validation_bytes=21,
        num_train_documents=100,
        num_validation_documents=1,
        vocab_size=MODEL.vocab_size,
        eos_token_id=0,
    )


def cache_of(folder: Path, name: str, last_id: int) -> Input[TokenizeResult]:
    """Return the cache as another step sees it."""
    return Input(name=f"tokenize/{name}", digest=name[0] * 64, path=str(folder), result=write_cache(folder, last_id))


def a_phase(cache: Any, **changes: Any) -> TrainPhaseConfig:
    """Return a phase of eight updates, with a temporary checkpoint every three; `changes` are fields of the config."""
    fields = {
        "start": None,
        "until_step": 8,
        "model": MODEL,
        "rope": LLAMA2_ROPE,
        "sequence_length": SEQUENCE_LENGTH,
        "global_batch_size": 4,
        "learning_rate": Linear(peak_value=1e-2, end_value=1e-3, start_step=0, decay_steps=20),
        "weight_decay": 0.1,
        "b1": 0.9,
        "b2": 0.95,
        "eps": 1e-8,
        "max_norm": 1.0,
        "z_loss": 1e-4,
        "mixture": MixtureSchedule.constant({"web": 1.0}),
        "caches": {"web": cache},
        "seed": 0,
        "compute_dtype": "float32",
        "checkpoint_every_steps": 3,
    }
    return TrainPhaseConfig(**fields | changes)
