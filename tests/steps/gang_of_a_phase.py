"""A training phase on two hosts, another step, and a driver of both: python gang_of_a_phase.py FOLDER OTHER.

OTHER is `evaluation`, of the phase, or `replicas`, a phase of which each host has a copy of the parameters. The batches
of each host, and the tokens it read for them, are recorded beside the temporary checkpoints. The file FOLDER/dies names
the host of the first phase that dies and its step, once. With a file FOLDER/requests, a request to save is sent at one
step.
"""

import functools
import hashlib
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from marin_dag.graph.resources import Cpu
from marin_dag.graph.step import Step, StepContext, step
from marin_dag.ledger.requests import Requests
from marin_dag.run import request_polling
from marin_dag.run.driver import Run
from marin_dag.run.live import display_for
from marin_dag.run.ray.backend import RayBackend
from marin_dag.store.prefix import open_store
from runtime.data.cache import TokenCache
from runtime.optim.ema import Ema
from runtime.optim.skip_rule import SkipRule
from runtime.training import train_step
from steps import phase_training
from steps.ema_eval import EmaEvalConfig, EmaEvalResult, ema_eval
from steps.phase_config import TrainPhaseConfig
from steps.phase_result import TrainPhaseResult
from steps.tokenize import TokenizeResult
from steps.train_phase import train_phase
from tests.steps.phase_runs import MODEL, SEQUENCE_LENGTH, a_phase, write_cache

NUM_HOSTS = 2
UNTIL_STEP = 11
CHECKPOINT_EVERY_STEPS = 3
VALIDATE_EVERY_STEPS = 4
REQUESTED_AT_STEP = 5
""" "save", where there is no reason to but that."""
NUM_WINDOWS = 16 + 1
"""Windows of held-out text: a batch of two hosts, and one of a single window."""


class TextConfig(BaseModel, frozen=True, extra="forbid"):
    last_id: int


@step()
def text(config: TextConfig, context: StepContext) -> TokenizeResult:
    result = write_cache(Path(context.output_path), config.last_id)
    held_out = write_cache(Path(context.output_path, "held_out"), config.last_id)
    return result.model_copy(update={"validation": f"held_out/{held_out.train}"})


def killed_at(folder: Path, host: int) -> int | None:
    """Return the step at which this host has to die, if any; the file works once."""
    try:
        who, update = map(int, (folder / "dies").read_text().split())
    except FileNotFoundError:
        return None
    return update if who == host else None


def build_recorded(
    build: Callable, log: Path, orders: Path, context: StepContext, *arguments: Any, **keywords: Any
) -> Callable:
    """Return the train step, which first logs the digest of this host's rows of each batch."""
    host = context.host.index
    take, updates = build(*arguments, **keywords), itertools.count()
    dies_at = killed_at(orders, host) if context.name == "phase" else None

    def recorded(state: Any, tokens: Any, segment_ids: Any, numbers: Any) -> Any:
        update = next(updates)
        if host == 0 and update == REQUESTED_AT_STEP - 1 and (orders / "requests").exists():
            Requests(open_store(f"{orders}/runs")).send(context.digest, context.name, "save")
            while not context.requests():  # read now, so that it is decided before the next step
                time.sleep(0.01)
        if update == dies_at:
            (orders / "dies").rename(orders / "died")
            os.kill(os.getpid(), signal.SIGKILL)
        own = [shard.data for array in (tokens, segment_ids) for shard in array.addressable_shards]
        digest = hashlib.sha256(b"".join(np.asarray(rows).tobytes() for rows in own)).hexdigest()
        with log.open("a") as file:
            file.write(f"{digest}\n")
        return take(state, tokens, segment_ids, numbers)

    return recorded


@step(resources=Cpu(1, num_hosts=NUM_HOSTS), continues="start")
def recorded_phase(config: TrainPhaseConfig, context: StepContext) -> TrainPhaseResult:
    """Run the train phase with records of its batches."""
    seen = Path(context.work_path) / "seen"
    seen.mkdir(exist_ok=True)
    host, log = context.host.index, seen / f"{context.attempt}.host{context.host.index}"
    read_all, counts = TokenCache.read_spans, []

    def counted(cache: TokenCache, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        counts.append(int(lengths.sum()))
        return read_all(cache, starts, lengths)

    orders = Path(context.work_path).parents[2]
    recorded = functools.partial(build_recorded, train_step.build_train_step, log, orders, context)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_polling, "POLL_SECONDS", 0.05)
        patch.setattr(phase_training, "build_train_step", recorded)
        patch.setattr(TokenCache, "read_spans", counted)
        result = train_phase.function(config, context)
    log.with_suffix(f".host{host}-read").write_text(str(sum(counts)))
    return result


def evaluation_on(phase: Any, cache: Any, words: Any) -> EmaEvalConfig:
    """Return an evaluation of three domains of seven windows: five batches across domains, and one of one window."""
    caches, tokens = {"books": words, "code": cache, "web": words}, 7 * SEQUENCE_LENGTH
    return EmaEvalConfig(
        phase=phase,
        caches=caches,
        max_tokens_per_domain=tokens,
        sampled_windows_per_domain=0,  # each host reads all candidates of a sample
        windows_per_batch=3,
    )


@step(resources=Cpu(1, num_hosts=NUM_HOSTS))
def counted_evaluation(config: EmaEvalConfig, context: StepContext) -> EmaEvalResult:
    """Run the evaluation with a record of the tokens that each host reads."""
    read_all, counts = TokenCache.read_spans, []

    def counted(cache: TokenCache, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        counts.append(int(lengths.sum()))
        return read_all(cache, starts, lengths)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TokenCache, "read_spans", counted)
        result = ema_eval.function(config, context)
    Path(context.output_path, f"read-by-{context.host.index}.txt").write_text(str(sum(counts)))
    return result


def text_step() -> Step[TokenizeResult]:
    return text("text", TextConfig(last_id=MODEL.vocab_size))


def words_step() -> Step[TokenizeResult]:
    """Other text."""
    return text("words", TextConfig(last_id=MODEL.vocab_size // 2))


def config_on(cache: Any) -> TrainPhaseConfig:
    """Return a phase whose state holds all it can, and whose skip rule is so tight that it skips steps."""
    return a_phase(
        cache,
        until_step=UNTIL_STEP,
        averages=(Ema(decay=0.75), Ema(0.9995, "slow")),  # the second is taken at every second update
        skip=SkipRule(window_steps=4, sigma=0.1, warmup_steps=3, max_consecutive=9),  # about every second update
        checkpoint_every_steps=CHECKPOINT_EVERY_STEPS,
        digest_every_steps=2,
        validate_every_steps=VALIDATE_EVERY_STEPS,
        validation_tokens_per_source=NUM_WINDOWS * SEQUENCE_LENGTH,
        sampled_windows_per_source=0,  # each host reads all candidates of a sample
    )


def phase_step() -> Step[TrainPhaseResult]:
    return recorded_phase("phase", config_on(text_step()))


def replicas_step() -> Step[TrainPhaseResult]:
    """Return a phase of which each host has a copy of the parameters."""
    return recorded_phase(
        "replicas", config_on(text_step()).model_copy(update={"seed": 1, "replica_parallel": NUM_HOSTS})
    )


def main(folder: str, other: str) -> int:
    phase, words = phase_step(), words_step()
    steps: list[Any] = [text_step(), phase]
    if other == "evaluation":
        steps += [words, counted_evaluation("evaluation", evaluation_on(phase, text_step(), words))]
    else:
        steps.append(replicas_step())
    display = display_for(stream_is_terminal=False)
    store = open_store(f"{folder}/runs")
    return Run(steps, store, RayBackend(), display, command="again", back_off_seconds=0.01).run()


if __name__ == "__main__":
    from tests.steps.gang_of_a_phase import main as imported  # workers must find the kinds by this module's name

    sys.exit(imported(*sys.argv[1:]))
