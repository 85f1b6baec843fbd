"""Download: files from a package index, an address, a hub, a bucket or this machine, verified."""

import functools
import math
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from marin_dag.cost import Cost
from marin_dag.step import Runtime, StepContext, step
from steps.fetch import (
    ContentFile,
    Fetch,
    Files,
    HuggingFaceDataset,
    InstalledPython,
    Url,
    UrlIndex,
    Wheel,
)

if TYPE_CHECKING:
    from runtime.text.fetch.copy import Copied

NOT_FETCHED_FILE = "not-fetched.txt"


class DownloadedFile(BaseModel, frozen=True, extra="forbid"):
    path: str
    """Relative to the step's output."""
    name: str
    """As the publisher has it, with the folders: two of them may hold files of one name."""
    sha256: str
    size_in_bytes: int


class DownloadConfig(BaseModel, frozen=True, extra="forbid"):
    fetch: Fetch
    files_in_flight: Runtime[int] = 8


class MissingFile(BaseModel, frozen=True, extra="forbid"):
    """A file that its publisher lists and has no more."""

    name: str
    status: int
    """404 or 410."""


class DownloadResult(BaseModel, frozen=True, extra="forbid"):
    files: tuple[DownloadedFile, ...]
    missing: tuple[MissingFile, ...] = ()
    """No more of them than `max_missing_share` allows."""


class FetchedFile(BaseModel, frozen=True, extra="forbid"):
    """What became of one file among many: it is here, or why not."""

    file: DownloadedFile | None = None
    name: str
    problem: str | None = None
    missing_status: int | None = None
    is_unreachable: bool = False


def _cost(config: DownloadConfig) -> Cost:
    if isinstance(config.fetch, HuggingFaceDataset | UrlIndex):
        return Cost(bytes_read=config.fetch.expected_bytes, bytes_written=config.fetch.expected_bytes)
    return Cost()


@step(policy="tracked", cost=_cost)
def download(config: DownloadConfig, context: StepContext) -> DownloadResult:
    """Files lie under `files/` and are what their checksums say, or there is no output.

    Of many files that are fetched over HTTP each is kept as it comes: one that cannot be had costs none of the others,
    and the next attempt asks for that one alone.
    """
    missing: tuple[MissingFile, ...] = ()
    match config.fetch:
        case Wheel():
            files = [_wheel(config.fetch, context)]
        case InstalledPython():
            files = [_standard_library(config.fetch, context)]
        case Url():
            files = [_url(config.fetch, context)]
        case Files():
            copy = functools.partial(_own_file, config.fetch.folder)
            copied = context.map(copy, config.fetch.files, in_flight=config.files_in_flight, name="files")
            files = [_placed(index, file) for index, file in enumerate(copied)]
        case HuggingFaceDataset():
            files, missing = _hub_files(config.fetch, context, in_flight=config.files_in_flight)
        case UrlIndex():
            files, missing = _indexed_files(config.fetch, context, in_flight=config.files_in_flight)
    return DownloadResult(files=tuple(files), missing=missing)


def _wheel(fetch: Wheel, context: StepContext) -> DownloadedFile:
    from runtime.text.fetch.package_index import download_wheel

    with tempfile.TemporaryDirectory() as folder:
        wheel = download_wheel(
            fetch.name,
            fetch.version,
            Path(folder),
            sha256=fetch.sha256,
            platform_tags=fetch.platform_tags,
            on_bytes=_progress_of_one(context),
        )
        return _stored(str(wheel), f"files/{wheel.name}", context, sha256=fetch.sha256)


def _standard_library(fetch: InstalledPython, context: StepContext) -> DownloadedFile:
    from runtime.text.fetch.installed_python import Inventory, pack_standard_library

    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "standard-library.zip"
        pack_standard_library(Inventory(fetch.python_version, fetch.inventory_sha256), archive)
        return _stored(str(archive), f"files/{archive.name}", context, sha256=None)


def _url(fetch: Url, context: StepContext) -> DownloadedFile:
    from runtime.text.fetch.http import fetch_url

    relative = f"files/{fetch.file_name}"
    copied = fetch_url(
        fetch.url,
        f"{context.output_path}/{relative}",
        parts_path=f"{context.work_path}/parts",
        sha256=fetch.sha256,
        on_bytes=_progress_of_one(context),
    )
    return DownloadedFile(path=relative, name=fetch.file_name, sha256=copied.sha256, size_in_bytes=copied.size_in_bytes)


def _indexed_files(
    fetch: UrlIndex, context: StepContext, *, in_flight: int
) -> tuple[list[DownloadedFile], tuple[MissingFile, ...]]:
    from runtime.text.fetch.failures import FailureNotes, file_key
    from runtime.text.fetch.http import list_index

    urls = list_index(
        fetch.index,
        f"{context.work_path}/index",
        base=fetch.base,
        patterns=fetch.files,
        sha256=fetch.index_sha256,
    )
    tries = FailureNotes(_notes(context)).tries()
    fetch_one = functools.partial(_indexed_file, f"{context.work_path}/parts", _notes(context))
    items = [(url, tries[file_key(url)]) for url in urls]
    ended = _as_files_end(context, len(items), max_missing_share=fetch.max_missing_share)
    fetched = context.map(fetch_one, items, in_flight=in_flight, name="files", on_finished=ended)
    return _had_and_missing(context, fetched, fetch.max_missing_share)


def _indexed_file(parts_path: str, notes: str, item: tuple[str, int], path: str) -> FetchedFile:
    from runtime.text.fetch.http import fetch_url

    url, num_tries = item
    name = urllib.parse.urlsplit(url).path.lstrip("/")

    def fetch() -> DownloadedFile:
        copied = fetch_url(url, f"{path}/{name.rsplit('/', 1)[-1]}", parts_path=parts_path, sha256=None)
        return _in_shard(name, copied)

    return _tried(fetch, notes, name, url, num_tries)


def _notes(context: StepContext) -> str:
    return f"{context.work_path}/failures"


def _tried(fetch: Callable[[], DownloadedFile], notes: str, name: str, url: str, num_tries: int) -> FetchedFile:
    """The file, or what is wrong with it: noted, so that the next attempt does not take this one's word for it."""
    from runtime.text.fetch.errors import FetchError, MissingFileError, UnreachableError
    from runtime.text.fetch.failures import FailureNotes

    try:
        return FetchedFile(file=fetch(), name=name)
    except FetchError as error:
        FailureNotes(notes).note(url, num_tries, str(error))
        return FetchedFile(
            name=name,
            problem=str(error),
            missing_status=error.status if isinstance(error, MissingFileError) else None,
            is_unreachable=isinstance(error, UnreachableError),
        )


def _as_files_end(
    context: StepContext, num_files: int, *, max_missing_share: float
) -> Callable[[int, FetchedFile], None]:
    """Stops if nobody answers or all are refused, and tells how many bytes have come."""
    from runtime.text.fetch.failures import Unreachable

    unreachable = Unreachable(int(max_missing_share * num_files))
    sizes: list[int] = []

    def ended(index: int, fetched: FetchedFile) -> None:
        is_missing = fetched.missing_status is not None
        unreachable.count(fetched.problem, is_unreachable=fetched.is_unreachable, is_missing=is_missing)
        sizes.append(0 if fetched.file is None else fetched.file.size_in_bytes)
        context.progress(len(sizes), num_files, "files", megabytes=sum(sizes) / 1e6)

    return ended


def _progress_of_one(context: StepContext) -> Callable[[int, int | None], None]:
    """Tells how much of one file is here, once a second; nothing where nobody knows of how much."""
    last = -math.inf

    def told(done: int, total: int | None) -> None:
        nonlocal last
        if total and done and (done >= total or time.monotonic() >= last + 1):
            last = time.monotonic()
            context.progress(math.ceil(done / 1e3), math.ceil(total / 1e3), "kB")

    return told


def _had_and_missing(
    context: StepContext, fetched: Sequence[FetchedFile], max_missing_share: float
) -> tuple[list[DownloadedFile], tuple[MissingFile, ...]]:
    from runtime.text.fetch.failures import TOLD, Failed, refuse_incomplete

    failed = [Failed(file.name, file.problem, file.missing_status) for file in fetched if file.problem is not None]
    for failure in failed[:TOLD]:
        context.log.warning("not fetched: %s", failure.problem)
    list_path = f"{context.output_path}/{NOT_FETCHED_FILE}"
    refuse_incomplete(context.name, failed, len(fetched), max_missing_share=max_missing_share, list_path=list_path)
    missing = tuple(
        MissingFile(name=file.name, status=file.missing_status) for file in fetched if file.missing_status is not None
    )
    if missing:
        context.log.warning("%d of %d files are missing, %g are allowed", len(missing), len(fetched), max_missing_share)
    return [_placed(index, file.file) for index, file in enumerate(fetched) if file.file is not None], missing


def _stored(source: str, relative: str, context: StepContext, *, sha256: str | None) -> DownloadedFile:
    from runtime.text.fetch.copy import copy_verified

    copied = copy_verified(source, f"{context.output_path}/{relative}", sha256=sha256, cure="Run the command again.")
    return DownloadedFile(
        path=relative, name=relative.rsplit("/", 1)[-1], sha256=copied.sha256, size_in_bytes=copied.size_in_bytes
    )


def _own_file(folder: str, file: ContentFile, path: str) -> DownloadedFile:
    from runtime.text.fetch.copy import copy_verified

    name = file.name.rsplit("/", 1)[-1]
    cure = "The file changed after the plan was made; run the same command again to plan with what it is now."
    copied = copy_verified(f"{folder}/{file.path or file.name}", f"{path}/{name}", sha256=file.sha256, cure=cure)
    return _in_shard(file.name, copied)


def _hub_files(
    fetch: HuggingFaceDataset, context: StepContext, *, in_flight: int
) -> tuple[list[DownloadedFile], tuple[MissingFile, ...]]:
    from runtime.text.fetch.failures import FailureNotes, file_key
    from runtime.text.fetch.hub import list_files

    files = list_files(fetch.repo, fetch.revision, fetch.files, repo_type="dataset")
    tries = FailureNotes(_notes(context)).tries()
    fetch_one = functools.partial(_hub_file, f"{context.work_path}/parts", _notes(context))
    items = [(file, tries[file_key(file.url)]) for file in files]
    ended = _as_files_end(context, len(items), max_missing_share=fetch.max_missing_share)
    fetched = context.map(fetch_one, items, in_flight=in_flight, name="files", on_finished=ended)
    return _had_and_missing(context, fetched, fetch.max_missing_share)


def _hub_file(
    parts_path: str, notes: str, item: tuple[tuple[str, int | None, str | None, str], int], path: str
) -> FetchedFile:
    from runtime.text.fetch.http import fetch_url
    from runtime.text.fetch.hub import HubFile, request_headers

    hub_file, num_tries = HubFile(*item[0]), item[1]

    def fetch() -> DownloadedFile:
        name = hub_file.name.rsplit("/", 1)[-1]
        copied = fetch_url(
            hub_file.url,
            f"{path}/{name}",
            parts_path=parts_path,
            sha256=hub_file.sha256,
            size_in_bytes=hub_file.size_in_bytes,
            headers=request_headers(),
        )
        return _in_shard(hub_file.name, copied)

    return _tried(fetch, notes, hub_file.name, hub_file.url, num_tries)


def _in_shard(name: str, copied: "Copied") -> DownloadedFile:
    """A file in a shard's own folder, without the folders it has at the publisher's: its path is its name.

    A shard is kept by what is asked for, and where it stands in the list may change until the next attempt.
    """
    return DownloadedFile(
        path=name.rsplit("/", 1)[-1], name=name, sha256=copied.sha256, size_in_bytes=copied.size_in_bytes
    )


def _placed(index: int, file: DownloadedFile) -> DownloadedFile:
    """The file of the shard that now has this place in the list."""
    return file.model_copy(update={"path": f"files/{index:05d}/{file.path}"})
