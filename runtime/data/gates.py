"""Gates: what a token cache must satisfy before anything trains on it, each with its limit and where to look.

Every rule stands for a cache that was built, trained on and found wrong afterwards: a tokenizer backend
that silently dropped BOS from all caches of a month, shards cut short, text decoded with the wrong charset.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields

NAMED_SHARDS = 5
"""So many of those with one fault are named."""


class GateError(ValueError):
    """A cache that fails its gates; the message has one line a gate."""


@dataclass(frozen=True)
class GateLimits:
    """How far a cache may be from perfect; shares are between 0 and 1."""

    min_bytes_per_token: float = 1.2
    """Below it the tokenizer has seen nothing like this text."""
    max_bytes_per_token: float = 16.0
    """Above it the text is padding or repetition, or documents were cut."""
    max_byte_loss_share: float = 0.0
    """|bytes that the tokens stand for - bytes of text| / bytes of text. Raise it for a tokenizer that normalises."""
    max_eos_error_share: float = 0.0
    """Of all documents, those that do not end with EOS, and EOS that ends none."""
    max_bos_error_share: float = 0.0
    """Of all documents, those that do not begin with BOS, and BOS that begins none; of a tokenizer that has one."""
    max_unknown_share: float = 0.0
    """Of all tokens, those that say "unknown"."""
    max_replacement_share: float = 0.0005
    """Of all characters, U+FFFD: bytes that some earlier step could not decode."""
    max_empty_document_share: float = 0.001
    """Of all documents, those without text."""
    max_empty_shard_share: float = 0.5
    """Of all shards, those without documents."""
    max_duplicate_shards: int = 0
    """Shards with the same tokens as an earlier one."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            if not getattr(self, limit.name) >= 0:
                raise ValueError(f"GateLimits.{limit.name} is {getattr(self, limit.name)}; a limit is zero or above.")


@dataclass(frozen=True)
class ShardCounts:
    """What was seen while one shard was tokenized, both splits together."""

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
    num_eos: int = 0
    """In the cache as it was read back; so are the three that follow."""
    num_bos: int = 0
    num_without_eos: int = 0
    """Documents whose last token is another one."""
    num_without_bos: int = 0
    """Documents whose first token is another one; none are counted without a BOS to look for."""
    fingerprint: str = ""
    """Checksums of the tokens; equal for equal shards."""


@dataclass(frozen=True)
class ShardWritten:
    """A shard as the step that wrote it counted it."""

    name: str
    """For messages."""
    num_documents: int
    num_bytes: int


_NUMBERS = tuple(field.name for field in fields(ShardCounts) if field.name != "fingerprint")


@dataclass(frozen=True)
class GateFinding:
    """One gate that a cache fails."""

    gate: str
    """Name of the limit, or of the rule that has none."""
    message: str


class Tally:
    """Counts of the shards of one cache so far; adding one costs the same however many there are."""

    def __init__(self, shards: Iterable[tuple[ShardCounts, ShardWritten]] = ()) -> None:
        self.num_shards = self.num_empty_shards = self.num_lossy_shards = 0
        self.lossy: list[tuple[ShardCounts, ShardWritten]] = []
        """Shards of which something else was read than was written; the first few."""
        self.duplicates: list[tuple[str, str]] = []
        """Pairs of shards with the same tokens, by their names."""
        self._sums = dict.fromkeys(_NUMBERS, 0)
        self._first: dict[str, str] = {}
        for counts, written in shards:
            self.add(counts, written)

    def add(self, shard: ShardCounts, written: ShardWritten) -> None:
        """The next shard, and what it should hold."""
        for name in _NUMBERS:
            self._sums[name] += getattr(shard, name)
        if (shard.num_documents, shard.num_bytes) != (written.num_documents, written.num_bytes):
            self.num_lossy_shards += 1
            if len(self.lossy) < NAMED_SHARDS:
                self.lossy.append((shard, written))
        if not shard.num_documents:
            self.num_empty_shards += 1
        elif (first := self._first.setdefault(shard.fingerprint, written.name)) != written.name:
            self.duplicates.append((first, written.name))
        self.num_shards += 1

    @property
    def total(self) -> ShardCounts:
        """Sums over all shards."""
        return ShardCounts(**self._sums, fingerprint="")


def findings(tally: Tally, limits: GateLimits, *, has_bos: bool = False, is_whole: bool = True) -> list[GateFinding]:
    """Every gate that the shards fail; the first few of a cache say nothing yet of how many have no documents."""
    total = tally.total
    found: list[GateFinding] = []

    def refuse(gate: str, message: str) -> None:
        found.append(GateFinding(gate, message))

    def at_most(gate: str, part: int, whole: int, what: str, look_at: str) -> None:
        limit = getattr(limits, gate)
        if part > limit * whole:
            refuse(gate, f"{part} of {whole} {what} ({part / max(whole, 1):.2%}; limit {limit:.2%}). {look_at}")

    if tally.num_lossy_shards:
        seen = "; ".join(
            f"of {written.name} {shard.num_documents} documents of {shard.num_bytes} bytes were read, and "
            f"{written.num_documents} of {written.num_bytes} were written"
            for shard, written in tally.lossy
        )
        refuse(
            "lost_documents",
            f"{tally.num_lossy_shards} of {tally.num_shards} shards do not hold what the step that wrote them counted: "
            f"{seen}. They were cut short or exchanged: verify that step, and run it with --force.",
        )
    for name, wanted, found_tokens, without in (
        ("eos", True, total.num_eos, total.num_without_eos),
        ("bos", has_bos, total.num_bos, total.num_without_bos),
    ):
        stray = abs(found_tokens - (total.num_documents if wanted else 0))
        at_most(
            f"max_{name}_error_share",
            max(stray, without),
            total.num_documents,
            f"documents have no {name.upper()} in its place, or have it elsewhere too ({found_tokens} were read back)",
            "Documents would run into each other: look at the special tokens of the tokenizer's result and at what the "
            "file says of them, and tokenize again with --force.",
        )
    if total.num_tokens and total.num_bytes:
        _refuse_odd_compression(total, limits, refuse)
    at_most(
        "max_byte_loss_share",
        abs(total.token_bytes - total.num_bytes),
        total.num_bytes,
        "bytes of text are not accounted for by the bytes of the tokens",
        "The tokenizer normalises, adds a space or drops what it does not know, so bits per byte would not be exact; "
        "look at `normalizer` and `add_prefix_space` in its tokenizer.json, or raise the limit if that is meant.",
    )
    at_most(
        "max_unknown_share",
        total.num_unknown,
        total.num_tokens,
        "tokens are the unknown token",
        "The tokenizer has no pieces for this text; use a byte-level one or train it on this source.",
    )
    at_most(
        "max_replacement_share",
        total.num_replacement,
        total.num_characters,
        "characters are U+FFFD",
        "Bytes were decoded with the wrong charset before they came here; look at the extract step's charset.",
    )
    at_most(
        "max_empty_document_share",
        total.num_empty_documents,
        total.num_documents,
        "documents have no text",
        "Look at what the filter step lets through.",
    )
    if is_whole:
        at_most(
            "max_empty_shard_share",
            tally.num_empty_shards,
            tally.num_shards,
            "shards have no documents",
            "Look at the counts of the download and of the filter for those shards.",
        )
    if len(tally.duplicates) > limits.max_duplicate_shards:
        refuse(
            "max_duplicate_shards",
            f"shards {tally.duplicates[:NAMED_SHARDS]} have the same tokens (limit {limits.max_duplicate_shards} "
            "pairs). A file was downloaded twice or a dedup step did not run.",
        )
    return found


def refuse_bad_cache(
    tally: Tally, limits: GateLimits, *, has_bos: bool = False, is_whole: bool = True, name: str
) -> None:
    """Raises `GateError` with every finding, or returns."""
    found = findings(tally, limits, has_bos=has_bos, is_whole=is_whole)
    if found:
        lines = "\n".join(f"  {finding.gate}: {finding.message}" for finding in found)
        raise GateError(f"{name}: the token cache fails {len(found)} of its gates and is not committed:\n{lines}")


def _refuse_odd_compression(total: ShardCounts, limits: GateLimits, refuse) -> None:  # type: ignore[no-untyped-def]
    ratio = total.num_bytes / total.num_tokens
    if ratio < limits.min_bytes_per_token:
        refuse(
            "min_bytes_per_token",
            f"{ratio:.2f} bytes a token (limit {limits.min_bytes_per_token}). The tokenizer was made for other text, "
            "or the text is binary; look at a few documents.",
        )
    if ratio > limits.max_bytes_per_token:
        refuse(
            "max_bytes_per_token",
            f"{ratio:.2f} bytes a token (limit {limits.max_bytes_per_token}). Text is repeated or encoding cut it "
            "short; look at the longest documents and at `truncation` in tokenizer.json.",
        )
