"""Phase data: the loader of a training phase, its skipped batches, and warnings about its mixture and skip rule."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping

from marin_dag.graph.context import StepStopped
from marin_dag.graph.inputs import Input
from marin_dag.graph.step import StepContext
from marin_dag.ledger.lease import STALE_SECONDS
from marin_dag.store.retry import is_transient
from marin_dag.store.store import StoreError
from runtime.data.cache import TokenCache
from runtime.data.consumption import PhaseSpan, consumption
from runtime.data.growing_cache import GrowingCache, Growth
from runtime.data.loader import Loader
from runtime.data.order import TokenSource
from runtime.data.prefetch import Prefetch
from runtime.data.sampler import DataPosition
from runtime.same_fields import filled_from
from runtime.tracking.events import EventLog
from runtime.training.run_state import RunState
from steps.phase_checks import check_vocabulary
from steps.phase_config import TrainPhaseConfig, resets_level_at
from steps.tokenize import TokenizeResult


def loader_of(config: TrainPhaseConfig, context: StepContext) -> Loader:
    """Return the loader of a phase, over its finished and growing caches."""
    caches = {name: _cache(name, cache, config, context) for name, cache in config.caches.items()}
    return Loader(
        caches,
        {name: cache.digest for name, cache in config.caches.items()},
        config.mixture,
        config.sequence_length,
        config.seed,
        policy=config.mixing,
    )


def skip_batches(
    config: TrainPhaseConfig, context: StepContext, run: RunState, loader: Loader, events: EventLog
) -> RunState:
    """Return the state in which a phase starts, after its skipped batches; not for a state that it saved itself.

    Raises:
        StepStopped: a phase on one host was asked to stop while it waited for a cache that is being built.
    """
    if not config.skip_batches:
        return run
    before = run.data_position

    def positions() -> Iterator[DataPosition]:
        yield loader.skip_batches(before, run.step, config.global_batch_size, config.skip_batches)

    def stop_if_asked() -> None:
        # Hosts of a gang agree on where to stop, and only once all of them train.
        if context.host.num_hosts == 1 and (reason := context.stop_reason()):
            raise StepStopped(f"at step {run.step:,} of {config.until_step:,} ({reason})")

    with Prefetch(positions(), 1, while_waiting=stop_if_asked) as skipped:
        after = next(skipped)
    skips = Counter(after.consumed) - Counter(before.consumed)
    sequences = {loader.names[identity]: count for identity, count in skips.items()}
    events.write("batches_skipped", step=run.step, batches=config.skip_batches, sequences=sequences)
    for source in sorted(loader.exhausted(after) - loader.exhausted(before)):
        events.write("exhausted", step=run.step, source=source)
    return run._replace(data_position=after)


def _cache(name: str, cache: Input[TokenizeResult], config: TrainPhaseConfig, context: StepContext) -> TokenSource:
    """Return the finished cache, or the finished blocks of a growing one; batches are the same for both."""
    if not cache.is_growing:
        whole = TokenCache.open(cache.join(cache.result.train))
        check_vocabulary(name, whole.vocab_size, config.model.vocab_size)
        return whole

    beat: str | None = None
    moved = time.monotonic()

    def watch(known: int) -> Growth:
        nonlocal beat, moved
        try:
            found = context.parts(cache, after=known)
        except (StoreError, OSError) as error:
            if not is_transient(error):
                raise
            context.log.warning("%s: its token cache cannot be listed for now: %s", name, error)
            return Growth([], None, is_being_built=time.monotonic() - moved <= STALE_SECONDS)
        if found.beat != beat:
            beat, moved = found.beat, time.monotonic()
        blocks = [part.join(part.result.train) for _, part in sorted(found.parts.items())]
        whole = None if found.whole is None else found.whole.join(found.whole.result.train)
        is_alive = beat is not None and time.monotonic() - moved <= STALE_SECONDS
        return Growth(blocks, whole, is_being_built=is_alive)

    context.log.info("%s: its token cache is still being built; starting on its finished blocks", name)
    growing = GrowingCache(name, watch, give_up_seconds=config.give_up_seconds, log=context.log)
    check_vocabulary(name, growing.vocab_size, config.model.vocab_size)
    return growing


def warn_about_skip_rule(config: TrainPhaseConfig, context: StepContext, *, begin: int) -> None:
    """Warn about a skip rule that restarts too often to end its warm-up: it skips only updates that are not finite."""
    if config.skip is None:
        return
    longest, began = 0, begin
    for step in range(begin + 1, config.until_step + 1):
        longest = max(longest, step - began)
        if longest > config.skip.warmup_steps:
            return
        if resets_level_at(config, step):
            began = step
    context.log.warning(
        "the skip rule judges no finite update: it restarts with the phase, each segment of its mixture and each cycle "
        "of its learning rate, the longest of %d updates, and skip.warmup_steps is %d; use fewer warm-up steps",
        *(longest, config.skip.warmup_steps),
    )


def warn_about_mixture(
    config: TrainPhaseConfig, context: StepContext, *, step: int, drawn_before: Mapping[str, int]
) -> None:
    """Warn about sources that this phase reads too often or never draws; the loader raises for unusable ones."""
    if growing := [name for name, cache in config.caches.items() if cache.is_growing]:
        context.log.info("mixture: epochs of each source are not known before %s are built", growing)
        return
    span = filled_from(config, PhaseSpan, name=context.name, start_step=min(step, config.until_step), skip_batches=0)
    found = consumption(
        [span],
        num_tokens={name: cache.result.num_train_tokens for name, cache in config.caches.items()},
        drawn_before={name: drawn_before.get(cache.digest, 0) for name, cache in config.caches.items()},
    )
    for finding in found.findings:
        context.log.warning("%s", finding)
