"""Input tokenizer: a published tokenizer.json, used as it is."""

from pydantic import BaseModel, Field

from marin_dag.errors import UserError
from marin_dag.graph.step import Runtime, StepContext, step
from steps.fetch import Sha256
from steps.tokenizer import TokenizerResult
from steps.train_tokenizer import write_tokenizer


class HubTokenizer(BaseModel, frozen=True, extra="forbid"):
    """`tokenizer.json` of a repository on the hub."""

    repo: str = Field(pattern=r"^[\w.-]+/[\w.-]+$")
    revision: str = Field(pattern=r"^[0-9a-f]{7,40}$")


class LocalTokenizer(BaseModel, frozen=True, extra="forbid"):
    """`tokenizer.json` in a local folder; its content is identity, its place is not."""

    folder: Runtime[str]
    sha256: Sha256


class InputTokenizerConfig(BaseModel, frozen=True, extra="forbid"):
    tokenizer: HubTokenizer | LocalTokenizer
    eos_token: str = "<|end_of_text|>"
    """Token that ends every document; not the <|eot_id|> that instruct versions of Llama 3 name."""
    bos_token: str | None = "<|begin_of_text|>"
    """Token that opens every document; None for a tokenizer without one."""


def local_tokenizer(folder: str) -> LocalTokenizer:
    """Return the config of a folder that holds `tokenizer.json`."""
    from runtime.text.fetch.errors import FetchError
    from runtime.text.fetch.local_files import content_of, find_files

    root = folder.rstrip("/")
    try:
        (name,) = find_files(root, ("tokenizer.json",))
    except FetchError as error:  # the user named this folder
        raise UserError(str(error)) from error
    return LocalTokenizer(folder=root, sha256=content_of(f"{root}/{name}")["sha256"])


def _check(config: InputTokenizerConfig) -> None:
    if config.eos_token == config.bos_token:
        raise ValueError(
            f"bos_token and eos_token are both {config.eos_token!r}, so the end of a document would look like its "
            "beginning. Set bos_token=None: each document then follows the end of the one before."
        )


@step(policy="tracked", packages=("tokenizers",), check=_check)
def input_tokenizer(config: InputTokenizerConfig, context: StepContext) -> TokenizerResult:
    import hashlib

    from runtime.text.extraction.extracted import DamagedFileError
    from runtime.text.extraction.limits import read_bounded
    from runtime.text.fetch.http import fetch_url
    from runtime.text.fetch.hub import list_files, request_headers

    match config.tokenizer:
        case LocalTokenizer():
            path = f"{config.tokenizer.folder}/tokenizer.json"
            expected: str | None = config.tokenizer.sha256
        case HubTokenizer():
            (file,) = list_files(
                config.tokenizer.repo, config.tokenizer.revision, ("tokenizer.json",), repo_type="model"
            )
            path = f"{context.work_path}/tokenizer.json"
            expected = file.sha256
            fetch_url(
                file.url,
                path,
                parts_path=f"{context.work_path}/parts",
                sha256=expected,
                size_in_bytes=file.size_in_bytes,
                headers=request_headers(),
            )
    try:
        data = read_bounded(path)
    except DamagedFileError as error:
        raise UserError(f"{context.name}: {error}") from error
    if expected is not None and hashlib.sha256(data).hexdigest() != expected:
        raise UserError(
            f"{path}: changed after the plan was made (sha256 was {expected[:12]}…); run the same command again."
        )
    return write_tokenizer(data.decode(), context, eos_token=config.eos_token, bos_token=config.bos_token)
