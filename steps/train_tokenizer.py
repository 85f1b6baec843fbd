"""Train tokenizer: a sample of the sources in, one tokenizer.json out."""

import difflib
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from marin_dag.errors import UserError
from marin_dag.step import Input, StepContext, step
from steps.documents import DocumentsResult
from steps.tokenizer import TokenizerResult

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_FILE = "tokenizer.json"
NEAREST_SPECIALS = 5
"""Of a tokenizer with many hundred, as Llama 3's, so many are named beside one that it lacks."""


class TrainTokenizerConfig(BaseModel, frozen=True, extra="forbid"):
    documents: dict[str, Input[DocumentsResult]] = Field(min_length=1)
    """By source; the names decide in which order the sources are read."""
    vocab_size: int = Field(ge=258)
    """With the two specials and the 256 bytes."""
    bytes_per_source: int = Field(default=2 << 20, ge=1)
    """The same of each source, so that a large one does not own the vocabulary."""


@step(policy="tracked", packages=("tokenizers", "pyarrow"))
def train_tokenizer(config: TrainTokenizerConfig, context: StepContext) -> TokenizerResult:
    from runtime.text.tokenizer_training import BEGIN_OF_TEXT, END_OF_TEXT, sample_texts, train

    shards = {
        name: [documents.join(shard) for shard in documents.result.shards]
        for name, documents in config.documents.items()
    }
    tokenizer = train(sample_texts(shards, bytes_per_source=config.bytes_per_source), vocab_size=config.vocab_size)
    return written_tokenizer(tokenizer.to_str(), context, eos_token=END_OF_TEXT, bos_token=BEGIN_OF_TEXT)


def written_tokenizer(document: str, context: StepContext, *, eos_token: str, bos_token: str | None) -> TokenizerResult:
    """Writes the file and looks up its specials; without a `bos_token` documents are opened by nothing.

    Raises:
        UserError: the file has no token of such a name. A beginning that is misspelt must not be one that is left out:
            every cache would lack it, and no gate would miss it.
    """
    import hashlib

    import fsspec
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(document)
    eos_token_id = _id_of(tokenizer, eos_token, "eos_token", context.name)
    bos_token_id = None if bos_token is None else _id_of(tokenizer, bos_token, "bos_token", context.name)
    data = document.encode()
    with fsspec.open(f"{context.output_path}/{TOKENIZER_FILE}", "wb", auto_mkdir=True) as file:
        file.write(data)
    return TokenizerResult(
        tokenizer=TOKENIZER_FILE,
        vocab_size=max(tokenizer.get_vocab().values()) + 1,
        eos_token_id=eos_token_id,
        bos_token_id=bos_token_id,
        digest=hashlib.sha256(data).hexdigest(),
    )


def _id_of(tokenizer: "Tokenizer", token: str, field: str, name: str) -> int:
    found: int | None = tokenizer.token_to_id(token)
    if found is None:
        specials = [added.content for added in tokenizer.get_added_tokens_decoder().values() if added.special]
        near = difflib.get_close_matches(token, specials, n=NEAREST_SPECIALS, cutoff=0.0)
        known = f"the nearest of its {len(specials)} special tokens are {near}" if near else "it has no special tokens"
        none = ", or None if its documents open with nothing" if field == "bos_token" else ""
        raise UserError(f"{name}: {field}: the tokenizer has no token {token!r}; {known}. Name the right one{none}.")
    return found
