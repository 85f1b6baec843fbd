"""Checks of a loader's sources, made before chips are reserved."""

from collections.abc import Mapping

from runtime.data.mixing.policy import Policy
from runtime.data.mixture import MixtureSchedule
from runtime.data.token_source import LoaderError, TokenSource


def max_epochs_by_identity(policy: Policy, identities: Mapping[str, str], mixture: MixtureSchedule) -> dict[str, float]:
    """Return how often each source may be read through, for the sources that the policy limits."""
    limits: dict[str, float] = getattr(policy, "max_epochs", {})
    for name in limits:
        if name not in mixture.sources:
            raise LoaderError(
                f"mixing.max_epochs[{name!r}]: the mixture has no such source; name one of {list(mixture.sources)}."
            )
    return {identities[name]: epochs for name, epochs in limits.items()}


def check_sources(
    caches: Mapping[str, TokenSource], identities: Mapping[str, str], mixture: MixtureSchedule, sequence_length: int
) -> None:
    """Raise LoaderError for sources that one loader cannot draw from; unbuilt caches are checked as they grow."""
    missing = [name for name in mixture.sources if name not in caches]
    if missing:
        raise LoaderError(
            f"mixture: no token cache for {missing}; the caches are {sorted(caches)}. Pass a cache for each source."
        )
    if set(identities) != set(caches):
        raise LoaderError(
            f"identities: for {sorted(identities)}; the caches are {sorted(caches)}. Pass one identity for each cache."
        )
    whole = {name: cache.block_ends for name, cache in caches.items() if cache.is_whole}
    blocks: dict[str, tuple[int, ...]] = {}
    for name, identity in sorted(identities.items()):
        if name in whole and blocks.setdefault(identity, whole[name]) != whole[name]:
            raise LoaderError(
                f"identities[{name!r}] is {identity[:12]}…, the identity of another source with another cache. Pass "
                "the digest of the step that made each cache."
            )
    for name in mixture.sources:
        if name in whole and whole[name][-1] < sequence_length:
            raise LoaderError(
                f"caches[{name!r}] holds {whole[name][-1]} tokens, less than one sequence of {sequence_length}. Leave "
                "it out of the mixture or join it with another source."
            )
    formats = {(cache.vocab_size, cache.eos_token_id, cache.format.tokenizer_digest) for cache in caches.values()}
    if len(formats) > 1:
        made_by = "; ".join(f"{name}: {caches[name].format.tokenizer_digest[:12]}…" for name in sorted(caches))
        raise LoaderError(
            f"caches: made by different tokenizers: {made_by}. A model reads one vocabulary; tokenize all sources with "
            "the same tokenizer."
        )
