"""Train tokenizer: a sample of the sources to one tokenizer.json."""

from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from marin_dag.errors import UserError
from marin_dag.graph.step import Input, Runtime, StepContext, step
from marin_dag.values.changes import nearest
from steps.document_samples import sample_documents
from steps.documents import DocumentsResult
from steps.tokenizer import TokenizerResult

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_FILE = "tokenizer.json"
MAX_NAMED = 5
"""Special tokens that a message names, of the hundreds of a tokenizer such as Llama 3's."""


class TrainTokenizerConfig(BaseModel, frozen=True, extra="forbid"):
    documents: dict[str, Input[DocumentsResult]] = Field(min_length=1)
    """Documents by source; the names decide the order in which sources are read."""
    vocab_size: int = Field(ge=258)
    """Includes the two special tokens and the 256 bytes."""
    bytes_per_source: int = Field(default=2 << 20, ge=1)
    """Equal for all sources, so that a large one does not own the vocabulary."""
    shards_in_flight: Runtime[int] = 64


@step(policy="tracked", packages=("tokenizers", "pyarrow"))
def train_tokenizer(config: TrainTokenizerConfig, context: StepContext) -> TokenizerResult:
    """Train in one process on the documents of each source with the lowest `sample_key`, up to `bytes_per_source`."""
    from runtime.text.tokenizer_training import BEGIN_OF_TEXT, END_OF_TEXT, train

    groups = {name: (config.documents[name],) for name in sorted(config.documents)}
    sample = sample_documents(context, groups, config.bytes_per_source, in_flight=config.shards_in_flight)
    tokenizer = train((document.text for _, document in sample), vocab_size=config.vocab_size)
    return write_tokenizer(tokenizer.to_str(), context, eos_token=END_OF_TEXT, bos_token=BEGIN_OF_TEXT)


def write_tokenizer(document: str, context: StepContext, *, eos_token: str, bos_token: str | None) -> TokenizerResult:
    """Write the file without dropout and look up its special tokens; without a `bos_token` nothing opens a document.

    Raises:
        UserError: it is no tokenizer, lacks such a token, or opens a text with another one. No gate would notice a
            misspelt BOS, and every cache would lack it.
    """
    import hashlib
    import json

    import fsspec
    from tokenizers import Tokenizer

    from runtime.data.plain_tokenizer import TokenizerFileError, plain_document

    try:
        plain = plain_document(document)
    except TokenizerFileError as error:
        raise UserError(f"{context.name}: {error}") from error
    written = json.loads(document)
    if written["model"].get("dropout"):
        context.log.warning(
            "the tokenizer has dropout=%s, which makes other ids at each call; it is written with dropout=null",
            written["model"]["dropout"],
        )
        document = json.dumps(written | {"model": written["model"] | {"dropout": None}}, ensure_ascii=False)
    tokenizer = Tokenizer.from_str(json.dumps(plain))
    eos_token_id = _id_of(tokenizer, eos_token, "eos_token", context.name)
    bos_token_id = None if bos_token is None else _id_of(tokenizer, bos_token, "bos_token", context.name)
    added, opened = tokenizer.encode("").ids, [] if bos_token_id is None else [bos_token_id]
    if added and added != opened:
        raise UserError(
            f"{context.name}: the post-processor of the file adds {_tokens(tokenizer, added)} to each text, but "
            f"documents are trained on with {_tokens(tokenizer, opened)} at their beginning, so an export would encode "
            "differently. Set the right bos_token, or use a file without that post-processor."
        )
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


def _tokens(tokenizer: "Tokenizer", ids: list[int]) -> str:
    return " ".join(repr(tokenizer.id_to_token(number)) for number in ids) or "nothing"


def _id_of(tokenizer: "Tokenizer", token: str, field: str, name: str) -> int:
    found: int | None = tokenizer.token_to_id(token)
    if found is None:
        specials = [added.content for added in tokenizer.get_added_tokens_decoder().values() if added.special]
        known = f"one of its {len(specials)} special tokens ({', '.join(specials[:MAX_NAMED])})"
        none = ", or None if nothing opens its documents" if field == "bos_token" else ""
        raise UserError(
            f"{name}: {field}: the tokenizer has no token {token!r}.{nearest(token, specials)} Name "
            f"{known if specials else 'a token of its vocabulary, as it has no special tokens'}{none}."
        )
    return found
