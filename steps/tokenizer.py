"""Result of every step that yields a tokenizer, trained or published."""

from pydantic import BaseModel


class TokenizerResult(BaseModel, frozen=True, extra="forbid"):
    """A `tokenizer.json` of the tokenizers library, and the facts that readers of its ids need."""

    tokenizer: str
    """Path of `tokenizer.json`, relative to the step's output."""
    vocab_size: int
    """The largest id plus one, special tokens included."""
    eos_token_id: int
    """Closes every document."""
    bos_token_id: int | None
    """Opens every document; None if the tokenizer has none."""
    digest: str
    """SHA-256 (hex) of the file."""
