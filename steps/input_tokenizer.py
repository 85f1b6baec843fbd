"""Input tokenizer: a published tokenizer.json, used as it is."""

from typing import Annotated

from pydantic import BaseModel, Field

from marin_dag.errors import UserError
from marin_dag.graph.step import Added, Runtime, StepContext, step
from runtime.data.added_tokens import AddedToken, AddedTokensError, missing_tokens, with_tokens
from steps.fetch import Sha256
from steps.tokenizer import TokenizerResult
from steps.train_tokenizer import write_tokenizer

FILE, CONFIG = "tokenizer.json", "tokenizer_config.json"


class HubTokenizer(BaseModel, frozen=True, extra="forbid"):
    """`tokenizer.json` of a repository on the hub."""

    repo: str = Field(pattern=r"^[\w.-]+/[\w.-]+$")
    revision: str = Field(pattern=r"^[0-9a-f]{7,40}$")


class LocalTokenizer(BaseModel, frozen=True, extra="forbid"):
    """`tokenizer.json` in a local folder; its content is identity, its place is not."""

    folder: Runtime[str]
    sha256: Sha256
    added_tokens: Annotated[tuple[AddedToken, ...], Added(without=())] = ()
    """The tokens that only `tokenizer_config.json` has; `local_tokenizer` fills them in."""


class InputTokenizerConfig(BaseModel, frozen=True, extra="forbid"):
    tokenizer: HubTokenizer | LocalTokenizer
    eos_token: str = "<|end_of_text|>"
    """Token that ends every document; not <|eot_id|>, which instruct versions of Llama 3 name as EOS."""
    bos_token: str | None = "<|begin_of_text|>"
    """Token that begins every document; None for a tokenizer without one."""


def local_tokenizer(folder: str) -> LocalTokenizer:
    """Return the config of a folder that holds `tokenizer.json`."""
    from runtime.text.extraction.extracted import DamagedFileError
    from runtime.text.extraction.limits import read_bounded
    from runtime.text.fetch.errors import FetchError
    from runtime.text.fetch.local_files import content_of, find_files

    root = folder.rstrip("/")
    added: tuple[AddedToken, ...] = ()
    try:
        (name,) = find_files(root, (FILE,))
        if CONFIG in find_files(root, (FILE, CONFIG)):
            added = missing_tokens(read_bounded(f"{root}/{FILE}").decode(), read_bounded(f"{root}/{CONFIG}").decode())
    except FetchError as error:  # the user named this folder
        raise UserError(str(error)) from error
    except (AddedTokensError, DamagedFileError, UnicodeDecodeError) as error:
        raise UserError(f"{root}: {error}") from error
    return LocalTokenizer(folder=root, sha256=content_of(f"{root}/{name}")["sha256"], added_tokens=added)


def _check(config: InputTokenizerConfig) -> None:
    if config.eos_token == config.bos_token:
        raise ValueError(
            f"bos_token and eos_token are both {config.eos_token!r}, so the end of a document would look like its "
            "beginning. Set bos_token=None: each document then follows the end of the one before."
        )


@step(policy="tracked", packages=("tokenizers",), check=_check)
def input_tokenizer(config: InputTokenizerConfig, context: StepContext) -> TokenizerResult:
    from runtime.text.extraction.extracted import DamagedFileError

    try:
        match config.tokenizer:
            case LocalTokenizer():
                content, added = _unchanged(config.tokenizer), config.tokenizer.added_tokens
            case HubTokenizer():
                content, added = _fetched(config.tokenizer, context)
        document = with_tokens(content, added)
    except (AddedTokensError, DamagedFileError) as error:
        raise UserError(f"{context.name}: {error}") from error
    return write_tokenizer(document, context, eos_token=config.eos_token, bos_token=config.bos_token)


def _unchanged(tokenizer: LocalTokenizer) -> str:
    import hashlib

    from runtime.text.extraction.limits import read_bounded

    path = f"{tokenizer.folder}/{FILE}"
    data = read_bounded(path)
    if hashlib.sha256(data).hexdigest() != tokenizer.sha256:
        raise UserError(
            f"{path}: changed after the plan was made (sha256 was {tokenizer.sha256[:12]}…); run the same command "
            "again."
        )
    return data.decode()


def _fetched(tokenizer: HubTokenizer, context: StepContext) -> tuple[str, tuple[AddedToken, ...]]:
    """Return a repository's tokenizer.json, and the tokens that this file lacks."""
    from runtime.text.extraction.limits import read_bounded
    from runtime.text.fetch.http import fetch_url
    from runtime.text.fetch.hub import list_files, request_headers

    texts = {}
    for file in list_files(tokenizer.repo, tokenizer.revision, (FILE, CONFIG), repo_type="model"):
        path = f"{context.work_path}/{file.name}"
        fetch_url(
            file.url,
            path,
            parts_path=f"{context.work_path}/parts",
            sha256=file.sha256,
            size_in_bytes=file.size_in_bytes,
            headers=request_headers(),
        )
        texts[file.name] = read_bounded(path).decode()
    if FILE not in texts:
        raise UserError(
            f"{context.name}: {tokenizer.repo} at revision {tokenizer.revision} has no {FILE}. Name a repository "
            "with one, or convert its tokenizer and use local_tokenizer(folder)."
        )
    return texts[FILE], missing_tokens(texts[FILE], texts[CONFIG]) if CONFIG in texts else ()
