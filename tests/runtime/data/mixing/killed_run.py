"""Runs of a loader and its mixer without a model: killed by SIGKILL at given places, and resumed from a checkpoint.

    python -m tests.runtime.data.mixing.killed_run PLAN

`PLAN` is a JSON file of runs. Each attempt is a forked child: an exception would let `finally` tidy up. The losses
of an update follow from the tokens that were drawn, so one other token changes all later shares.
"""

import dataclasses
import hashlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import TypeAdapter

from runtime.data.cache import TokenCache, TokenFormat
from runtime.data.cache_writer import token_cache_writer
from runtime.data.loader import LoadedBatch, Loader
from runtime.data.mixing.policies import MixingPolicy
from runtime.data.mixture import MixtureSchedule
from runtime.data.sampler import DataPosition
from runtime.tracking.source_losses import SourceLossesTable, rows_of_update

SOURCES = {"web": 5.0, "code": 2.0, "math": 2.0, "papers": 1.0}
SEQUENCE_LENGTH, GLOBAL_BATCH_SIZE, VOCAB_SIZE = 8, 8, 64
SAVE_EVERY_STEPS = 5
PLACES = ("drawn", "learned from", "half saved", "saved")
"""Places in a step at which a run can be killed."""


@dataclasses.dataclass(frozen=True)
class Attempt:
    """An attempt of `num_hosts`, killed at (step, place in it); None for an attempt that ends."""

    num_hosts: int
    kill: tuple[int, str] | None


def make_caches(folder: Path) -> None:
    """Write caches so small that every source is read through several times."""
    for index, name in enumerate(SOURCES):
        numbers = np.random.default_rng(index)
        ids = TokenFormat(vocab_size=VOCAB_SIZE, eos_token_id=0, bos_token_id=None, tokenizer_digest="0" * 64)
        with token_cache_writer(str(folder / name), ids, np.ones(VOCAB_SIZE, np.int32)) as writer:
            writer.add([numbers.integers(1, VOCAB_SIZE, 13) for _ in range(60)], num_bytes=780)


def loader_in(folder: Path, policy: MixingPolicy) -> Loader:
    caches = {name: TokenCache.open(str(folder / name)) for name in SOURCES}
    identities = {name: f"digest of {name}" for name in SOURCES}
    return Loader(caches, identities, MixtureSchedule.constant(SOURCES), SEQUENCE_LENGTH, 0, policy=policy)


def run(folder: Path, loader: Loader, until_step: int, attempt: Attempt) -> None:
    """Run from the newest checkpoint to the end or the kill; append a line to `folder`/log for each update."""
    begin, position, table = newest(folder)
    for step in range(begin, until_step):

        def reached(place: str, step: int = step) -> None:
            if attempt.kill == (step, place):
                os.kill(os.getpid(), signal.SIGKILL)

        batch, after = read(loader, position, step, attempt.num_hosts, table)
        counts = {name: after.consumed.get(name, 0) - position.consumed.get(name, 0) for name in after.shares}
        line = {"step": step, "drawn": counts, "position": after.to_json()}
        line["batch"] = hashlib.sha256(batch.tokens.tobytes() + batch.segment_ids.tobytes()).hexdigest()
        with (folder / "log").open("a") as log:
            log.write(json.dumps(line) + "\n")
        reached("drawn")
        table.append(shown(loader, step, batch, after))
        position = after
        reached("learned from")
        if (step + 1) % SAVE_EVERY_STEPS == 0 or step + 1 == until_step:
            part = folder / "part"
            part.mkdir(exist_ok=True)
            (part / "position.json").write_text(json.dumps(position.to_json()))
            reached("half saved")
            (part / "source_losses.parquet").write_bytes(table.to_parquet())
            part.rename(folder / f"step-{step + 1}")
            reached("saved")


def newest(folder: Path) -> tuple[int, DataPosition, SourceLossesTable]:
    """Return the state of the newest whole checkpoint, or the first state of a run."""
    steps = [int(path.name.removeprefix("step-")) for path in folder.glob("step-*")]
    if not steps:
        return 0, DataPosition(), SourceLossesTable()
    found = folder / f"step-{max(steps)}"
    position = DataPosition.from_json(json.loads((found / "position.json").read_text()))
    return max(steps), position, SourceLossesTable.from_parquet((found / "source_losses.parquet").read_bytes())


def read(
    loader: Loader, position: DataPosition, step: int, num_hosts: int, table: SourceLossesTable
) -> tuple[LoadedBatch, DataPosition]:
    """Return the whole batch, read by all hosts, and the position on which they agree."""
    rows = GLOBAL_BATCH_SIZE // num_hosts
    parts = [
        loader.batch(
            position, step, GLOBAL_BATCH_SIZE, rows=slice(rows * host, rows * (host + 1)),
            feedback=lambda earlier: table.seen(earlier + 1),
        )
        for host in range(num_hosts)
    ]  # fmt: skip
    batches, (after, *others) = zip(*parts, strict=True)
    if any(other != after for other in others):
        raise AssertionError(f"step {step}: the hosts have different data positions")
    tokens, segment_ids = (np.concatenate([getattr(b, name) for b in batches]) for name in ("tokens", "segment_ids"))
    return LoadedBatch(tokens, segment_ids, batches[0].source_index), after


def shown(loader: Loader, step: int, batch: LoadedBatch, after: DataPosition) -> Any:
    """Return the losses of an update: a level of each source that falls as it is read, and noise from the tokens."""
    identities = [f"digest of {loader.sources[index]}" for index in batch.source_index.tolist()]
    rows: Mapping[str, Any] = {name: [i for i, own in enumerate(identities) if own == name] for name in set(identities)}
    targets = {name: SEQUENCE_LENGTH * len(own) for name, own in rows.items()}
    levels = {name: 2 + 3 / (1 + after.consumed[name] / 100) + 0.01 * len(name) for name in rows}
    normalizers = {name: float(batch.tokens[own].sum()) for name, own in rows.items()}
    losses = {name: targets[name] * levels[name] + float(batch.tokens[own].sum()) / 1e3 for name, own in rows.items()}
    sequences = {name: len(own) for name, own in rows.items()}
    return rows_of_update(
        step + 1,
        after.shares,
        loader.names,
        num_sequences=sequences,
        num_targets=targets,
        loss_sum=losses,
        log_normalizer_sum=normalizers,
    )


def main(plan: Path) -> None:
    """Make every attempt of every run of the plan, or raise for one that ends otherwise than planned."""
    document = json.loads(plan.read_text())
    policies = TypeAdapter(MixingPolicy)
    pa.array([0])  # imports pandas, if it is there: once here, or in each child
    for folder, planned in document["runs"].items():
        Path(folder).mkdir(parents=True)
        for num_hosts, kill in planned["attempts"]:
            attempt = Attempt(num_hosts, None if kill is None else (kill[0], kill[1]))
            child = os.fork()
            if not child:
                loader = loader_in(Path(document["caches"]), policies.validate_python(planned["policy"]))
                run(Path(folder), loader, planned["until_step"], attempt)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            if os.waitstatus_to_exitcode(status) != (0 if kill is None else -signal.SIGKILL):
                raise AssertionError(f"{folder}: {attempt} ended with {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
