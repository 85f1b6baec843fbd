"""Train tokenizer: a sample of the sources in, one tokenizer.json out."""

from pydantic import BaseModel, Field

from marin_dag.step import Input, StepContext, step
from steps.documents import DocumentsResult
from steps.tokenizer import TokenizerResult

TOKENIZER_FILE = "tokenizer.json"


class TrainTokenizerConfig(BaseModel, frozen=True, extra="forbid"):
    documents: dict[str, Input[DocumentsResult]] = Field(min_length=1)
    """By source; the names decide in which order the sources are read."""
    vocab_size: int = Field(ge=258)
    """With the two specials and the 256 bytes."""
    bytes_per_source: int = Field(default=2 << 20, ge=1)
    """The same of each source, so that a large one does not own the vocabulary."""


@step(policy="tracked", packages=("tokenizers", "pyarrow"))
def train_tokenizer(config: TrainTokenizerConfig, context: StepContext) -> TokenizerResult:
    from runtime.text.tokenizer_training import sample_texts, train

    shards = {
        name: [documents.join(shard) for shard in documents.result.shards]
        for name, documents in config.documents.items()
    }
    tokenizer = train(sample_texts(shards, bytes_per_source=config.bytes_per_source), vocab_size=config.vocab_size)
    return written_tokenizer(tokenizer.to_str(), context, eos_token=None, bos_token=None)


def written_tokenizer(
    document: str, context: StepContext, *, eos_token: str | None, bos_token: str | None
) -> TokenizerResult:
    """Writes the file and looks up its specials; None stands for the names of a tokenizer trained here."""
    import hashlib

    import fsspec
    from tokenizers import Tokenizer

    from marin_dag.errors import UserError
    from runtime.text.tokenizer_training import BEGIN_OF_TEXT, END_OF_TEXT

    tokenizer = Tokenizer.from_str(document)
    end = END_OF_TEXT if eos_token is None else eos_token
    begin = BEGIN_OF_TEXT if bos_token is None else bos_token
    eos_token_id = tokenizer.token_to_id(end)
    if eos_token_id is None:
        raise UserError(
            f"{context.name}: the tokenizer has no token {end!r}; name its end-of-text token in `eos_token`."
        )
    data = document.encode()
    with fsspec.open(f"{context.output_path}/{TOKENIZER_FILE}", "wb", auto_mkdir=True) as file:
        file.write(data)
    return TokenizerResult(
        tokenizer=TOKENIZER_FILE,
        vocab_size=max(tokenizer.get_vocab().values()) + 1,
        eos_token_id=eos_token_id,
        bos_token_id=tokenizer.token_to_id(begin),
        digest=hashlib.sha256(data).hexdigest(),
    )
