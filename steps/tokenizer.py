"""What every step that yields a tokenizer returns, whether it trained it or was given it."""

from pydantic import BaseModel


class TokenizerResult(BaseModel, frozen=True, extra="forbid"):
    """A `tokenizer.json` of the tokenizers library and what a reader of its ids must know."""

    tokenizer: str
    """Path of `tokenizer.json`, relative to the step's output."""
    vocab_size: int
    """One more than the largest id, special tokens counted."""
    eos_token_id: int
    """Closes every document."""
    bos_token_id: int | None
    """Opens every document; None if the tokenizer has none."""
    digest: str
    """SHA-256 (hex) of the file."""
