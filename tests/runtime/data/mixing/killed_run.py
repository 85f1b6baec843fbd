"""Runs of a loader and its mixer, without a model: cut by SIGKILL at given places, and gone on with from a checkpoint.

    python -m tests.runtime.data.mixing.killed_run PLAN

`PLAN` is a JSON file of runs. Each attempt at one is a forked child, for an exception would let `finally` tidy up. What
an update shows of a source follows from the tokens that were drawn, so that one other token makes all later shares
others.
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
from runtime.data.cache_writer import TokenCacheWriter
from runtime.data.loader import Batch, DataPosition, Loader
from runtime.data.mixing.policies import MixingPolicy
from runtime.data.mixture import MixtureSchedule
from runtime.tracking.source_losses import SourceLossesTable, rows_of_update

SOURCES = {"web": 5.0, "code": 2.0, "math": 2.0, "papers": 1.0}
SEQUENCE_LENGTH, GLOBAL_BATCH_SIZE, VOCAB_SIZE = 8, 8, 64
SAVE_EVERY_STEPS = 5
PLACES = ("drawn", "learned from", "half saved", "saved")
"""Where in its step a run can be killed."""


@dataclasses.dataclass(frozen=True)
class Attempt:
    """`num_hosts` read the rows of a batch together; `kill` is (the step, the place in it), None for an end."""

    num_hosts: int
    kill: tuple[int, str] | None


def make_caches(folder: Path) -> None:
    """Small enough that every source is read through several times."""
    for index, name in enumerate(SOURCES):
        numbers = np.random.default_rng(index)
        ids = TokenFormat(vocab_size=VOCAB_SIZE, eos_token_id=0, bos_token_id=None, tokenizer_digest="0" * 64)
        with TokenCacheWriter(str(folder / name), ids, np.ones(VOCAB_SIZE, np.int32)) as writer:
            writer.add([numbers.integers(1, VOCAB_SIZE, 13) for _ in range(60)], num_bytes=780)


def loader_in(folder: Path, policy: MixingPolicy) -> Loader:
    caches = {name: TokenCache.open(str(folder / name)) for name in SOURCES}
    identities = {name: f"digest of {name}" for name in SOURCES}
    return Loader(caches, identities, MixtureSchedule.constant(SOURCES), SEQUENCE_LENGTH, 0, policy=policy)


def run(folder: Path, loader: Loader, until_step: int, attempt: Attempt) -> None:
    """From the newest checkpoint to the end, or to where it is killed; a line of `folder`/log an update."""
    begin, position, table = newest(folder)
    for step in range(begin, until_step):

        def reached(place: str, step: int = step) -> None:
            if attempt.kill == (step, place):
                os.kill(os.getpid(), signal.SIGKILL)

        batch, after = read(loader, position, step, attempt.num_hosts, table)
        counts = {name: after.consumed.get(name, 0) - position.consumed.get(name, 0) for name in after.shares}
        told = {"step": step, "drawn": counts, "position": after.to_json()}
        told["batch"] = hashlib.sha256(batch.tokens.tobytes() + batch.segment_ids.tobytes()).hexdigest()
        with (folder / "log").open("a") as log:
            log.write(json.dumps(told) + "\n")
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
    """What the newest whole checkpoint holds, or what a run begins with."""
    steps = [int(path.name.removeprefix("step-")) for path in folder.glob("step-*")]
    if not steps:
        return 0, DataPosition(), SourceLossesTable()
    found = folder / f"step-{max(steps)}"
    position = DataPosition.from_json(json.loads((found / "position.json").read_text()))
    return max(steps), position, SourceLossesTable.from_parquet((found / "source_losses.parquet").read_bytes())


def read(
    loader: Loader, position: DataPosition, step: int, num_hosts: int, table: SourceLossesTable
) -> tuple[Batch, DataPosition]:
    """The whole batch, of which each host reads its rows, and the position on which they agree."""
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
        raise AssertionError(f"step {step}: the hosts do not agree on where the data stand")
    tokens, segment_ids = (np.concatenate([getattr(b, name) for b in batches]) for name in ("tokens", "segment_ids"))
    return Batch(tokens, segment_ids, batches[0].source_index), after


def shown(loader: Loader, step: int, batch: Batch, after: DataPosition) -> Any:
    """Losses of the update: a level of each source that falls as it is read, and noise of the tokens themselves."""
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
    """Every attempt of every run of the plan; one that ends otherwise than planned is an error."""
    document = json.loads(plan.read_text())
    policies = TypeAdapter(MixingPolicy)
    pa.array([0])  # imports pandas, if it is there: once here, or in each child
    for folder, told in document["runs"].items():
        Path(folder).mkdir(parents=True)
        for num_hosts, kill in told["attempts"]:
            attempt = Attempt(num_hosts, None if kill is None else (kill[0], kill[1]))
            child = os.fork()
            if not child:
                loader = loader_in(Path(document["caches"]), policies.validate_python(told["policy"]))
                run(Path(folder), loader, told["until_step"], attempt)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            if os.waitstatus_to_exitcode(status) != (0 if kill is None else -signal.SIGKILL):
                raise AssertionError(f"{folder}: {attempt} ended with {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
