"""Gates: limits that a token cache must keep before anything trains on it, each with the place to look.

Every gate stands for a cache that was built, trained on and found wrong afterwards: shards cut short, text decoded with
the wrong charset. BOS and EOS need no gate: the cache's writer adds both.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields

NAMED_SHARDS = 5
"""Most shards that a message names."""


class GateError(ValueError):
    """A cache that fails its gates; the message has a line for each."""

    def __init__(self, name: str, failed: dict[str, str]) -> None:
        lines = "\n".join(f"  {gate}: {message}" for gate, message in failed.items())
        super().__init__(f"{name}: the token cache fails {len(failed)} of its gates and is not committed:\n{lines}")
        self.gates = tuple(failed)


@dataclass(frozen=True)
class GateLimits:
    """Limits that a good cache keeps; shares are between 0 and 1."""

    min_bytes_per_token: float = 1.2
    """Below it the tokenizer was made for other text."""
    max_bytes_per_token: float = 16.0
    """Above it the text is padding or repetition, or documents were cut."""
    max_byte_loss_share: float = 0.0
    """|bytes that the tokens stand for - bytes of normalised text| / bytes of text. Raise it for a tokenizer that adds
    a space before each document."""
    max_unknown_share: float = 0.0
    """Share of tokens that are the unknown token."""
    max_unencoded_share: float = 0.001
    """Share of documents that the tokenizer cannot encode; they are left out and named."""
    max_replacement_share: float = 0.0005
    """Share of characters that are U+FFFD, bytes that an earlier step could not decode."""
    max_empty_document_share: float = 0.001
    """Share of documents without text."""
    max_empty_shard_share: float = 0.5
    """Share of shards without documents."""
    max_duplicate_shards: int = 0
    """Shards with the tokens of an earlier one."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            if not getattr(self, limit.name) >= 0:
                raise ValueError(f"GateLimits.{limit.name} is {getattr(self, limit.name)}; use zero or above.")


@dataclass(frozen=True)
class ShardCounts:
    """Counts of one shard, both splits together."""

    num_documents: int = 0
    num_bytes: int = 0
    num_characters: int = 0
    num_tokens: int = 0
    """Without BOS and EOS."""
    token_bytes: int = 0
    """Sum over tokens of the bytes they stand for."""
    num_unknown: int = 0
    num_replacement: int = 0
    """U+FFFD in the text."""
    num_empty_documents: int = 0
    num_changed: int = 0
    """Documents that the normaliser of the tokenizer changes, so that decoding does not give them back."""
    normalizer_bytes: int = 0
    """Bytes that the normaliser adds to the texts; negative where it takes some."""
    num_unencoded: int = 0
    """Documents that the tokenizer cannot encode; their texts are counted, and no cache has them."""
    num_unencoded_bytes: int = 0
    unencoded: list[str] = field(default_factory=list)
    """The first of these documents, each with the reason."""
    fingerprint: str = ""
    """Checksums of the tokens; equal for equal shards."""


@dataclass(frozen=True)
class ShardWritten:
    """A shard of documents as the step that wrote it counted it."""

    name: str
    num_documents: int
    num_bytes: int


NUMBERS = tuple(each.name for each in fields(ShardCounts) if isinstance(each.default, int))


class Tally:
    """Counts of the shards of one cache so far; adding a shard costs the same however many there are."""

    def __init__(self, shards: Iterable[tuple[ShardCounts, ShardWritten]] = ()) -> None:
        self.num_shards = self.num_empty_shards = self.num_lossy_shards = 0
        self.lossy: list[str] = []
        """The first shards that were read back with other counts than were written."""
        self.duplicates: list[tuple[str, str]] = []
        """Names of pairs of shards with the same tokens."""
        self.total = ShardCounts()
        self._first: dict[str, str] = {}
        for counts, written in shards:
            self.add(counts, written)

    def add(self, shard: ShardCounts, written: ShardWritten) -> None:
        total = self.total
        sums = {name: getattr(total, name) + getattr(shard, name) for name in NUMBERS}
        self.total = ShardCounts(unencoded=[*total.unencoded, *shard.unencoded][:NAMED_SHARDS], **sums)
        self.num_shards += 1
        if (shard.num_documents, shard.num_bytes) != (written.num_documents, written.num_bytes):
            self.num_lossy_shards += 1
            if len(self.lossy) < NAMED_SHARDS:
                self.lossy.append(
                    f"{written.name}: {written.num_documents} documents of {written.num_bytes} bytes were written, "
                    f"{shard.num_documents} of {shard.num_bytes} were read"
                )
        if not shard.num_documents:
            self.num_empty_shards += 1
        elif (first := self._first.setdefault(shard.fingerprint, written.name)) != written.name:
            self.duplicates.append((first, written.name))


def check_gates(tally: Tally, limits: GateLimits, *, is_whole: bool = True, name: str) -> None:
    """Raise GateError with every gate that the cache of step `name` fails; see `failed_gates`."""
    failed = failed_gates(tally, limits, is_whole=is_whole)
    if failed:
        raise GateError(name, failed)


def failed_gates(tally: Tally, limits: GateLimits, *, is_whole: bool = True) -> dict[str, str]:
    """Return a message for every gate that the shards fail; empty shards count only once the cache `is_whole`."""
    return dict(_failures(tally, limits, is_whole))


def _failures(tally: Tally, limits: GateLimits, is_whole: bool) -> Iterator[tuple[str, str]]:
    if tally.num_lossy_shards:
        yield (
            "lost_documents",
            f"{tally.num_lossy_shards} of {tally.num_shards} shards differ from the counts of the step that wrote them "
            f"({'; '.join(tally.lossy)}). They were cut short or replaced: verify that step, and run it with --force.",
        )
    for gate, part, whole, what, fix in _shares(tally):
        limit = getattr(limits, gate)
        if part > limit * whole and (is_whole or gate != "max_empty_shard_share"):
            yield gate, f"{part} of {whole} {what} ({part / max(whole, 1):.2%}; limit {limit:.2%}). {fix}"
    total = tally.total
    ratio = total.num_bytes / total.num_tokens if total.num_tokens and total.num_bytes else None
    if ratio is not None and ratio < limits.min_bytes_per_token:
        yield (
            "min_bytes_per_token",
            f"{ratio:.2f} bytes a token (limit {limits.min_bytes_per_token}). The tokenizer was made for other text, "
            "or the text is binary: look at a few documents.",
        )
    if ratio is not None and ratio > limits.max_bytes_per_token:
        yield (
            "max_bytes_per_token",
            f"{ratio:.2f} bytes a token (limit {limits.max_bytes_per_token}). Text is repeated, or encoding cut it "
            "short: look at the longest documents and at `truncation` in tokenizer.json.",
        )
    if len(tally.duplicates) > limits.max_duplicate_shards:
        yield (
            "max_duplicate_shards",
            f"shards {tally.duplicates[:NAMED_SHARDS]} have the same tokens (limit {limits.max_duplicate_shards} "
            "pairs). Check whether a file was downloaded twice or a dedup step did not run.",
        )


def _shares(tally: Tally) -> Iterator[tuple[str, int, int, str, str]]:
    """Yield gates that limit a part as a share of a whole: their limit, part, whole, what it is, and the fix."""
    total = tally.total
    what = "tokens are the unknown token"
    fix = "The tokenizer has no pieces for this text: use a byte-level one or train it on this source."
    yield "max_unknown_share", total.num_unknown, total.num_tokens, what, fix
    lost = abs(total.token_bytes - (total.num_bytes - total.num_unencoded_bytes + total.normalizer_bytes))
    what = "bytes of text are not accounted for by the bytes of the tokens"
    fix = (
        "The tokenizer adds a space or drops unknown text, so bits per byte would not be exact. Check `normalizer`, "
        "`add_prefix_space` and `prepend_scheme` in its tokenizer.json, or raise the limit if that is intended."
    )
    yield "max_byte_loss_share", lost, total.num_bytes, what, fix
    what = f"documents cannot be encoded: {'; '.join(total.unencoded)}"
    fix = "Look at these documents and drop them with a filter, use another tokenizer, or raise the limit."
    yield "max_unencoded_share", total.num_unencoded, total.num_documents, what, fix
    fix = "Bytes were decoded with the wrong charset by an earlier step: check the extract step's charset."
    yield "max_replacement_share", total.num_replacement, total.num_characters, "characters are U+FFFD", fix
    what, fix = "documents have no text", "Check what the filter step keeps."
    yield "max_empty_document_share", total.num_empty_documents, total.num_documents, what, fix
    what, fix = "shards have no documents", "Check the counts of the download and of the filter for those shards."
    yield "max_empty_shard_share", tally.num_empty_shards, tally.num_shards, what, fix
