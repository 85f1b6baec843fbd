"""Download: files from a package index, an address, a hub, a bucket or this machine, verified."""

import functools
import math
import tempfile
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from marin_dag.errors import RefusedConfigError
from marin_dag.graph.cost import Cost
from marin_dag.graph.resources import Resources
from marin_dag.graph.step import Runtime, StepContext, step
from runtime.text.fetch.errors import Failure
from steps.fetch import (
    MODEL_FILES,
    UNPINNED,
    ContentFile,
    Fetch,
    Files,
    HuggingFaceDataset,
    HuggingFaceModel,
    InstalledPython,
    Url,
    UrlIndex,
    Wheel,
)

if TYPE_CHECKING:
    from runtime.text.fetch.hub import RemoteFile
    from runtime.text.fetch.verified import Written

NOT_FETCHED_FILE = "not-fetched.txt"
Remote = Url | UrlIndex | HuggingFaceDataset | HuggingFaceModel


class DownloadedFile(BaseModel, frozen=True, extra="forbid"):
    path: str
    """Relative to the step's output."""
    name: str
    """The publisher's name, with the folders: two folders may hold files of one name."""
    sha256: str
    size_in_bytes: int


class DownloadConfig(BaseModel, frozen=True, extra="forbid"):
    fetch: Fetch
    files_in_flight: Runtime[int] = 8


class MissingFile(BaseModel, frozen=True, extra="forbid"):
    """A file that its publisher lists and no longer has."""

    name: str
    status: int
    """404 or 410."""


class DownloadResult(BaseModel, frozen=True, extra="forbid"):
    files: tuple[DownloadedFile, ...]
    missing: tuple[MissingFile, ...] = ()
    """Files within the share that `max_missing_share` allows."""


class FetchedFile(BaseModel, frozen=True, extra="forbid"):
    """A worker's result: the file, or why it could not be fetched."""

    file: DownloadedFile | None = None
    failure: Failure | None = None


def _cost(config: DownloadConfig, _: Resources) -> Cost:
    if isinstance(config.fetch, HuggingFaceDataset | HuggingFaceModel | UrlIndex):
        return Cost(bytes_read=config.fetch.expected_bytes, bytes_written=config.fetch.expected_bytes)
    return Cost()


def check_pinned(config: DownloadConfig) -> None:
    """Raise RefusedConfigError for a data set without a revision."""
    fetch = config.fetch
    if isinstance(fetch, HuggingFaceDataset) and fetch.revision == UNPINNED:
        raise RefusedConfigError(
            f"no revision pinned: {fetch.repo}. Pin the commit that its page on the hub shows.",
            {"fetch.revision": "COMMIT"},
        )


@step(policy="tracked", cost=_cost, check_decided=check_pinned)
def download(config: DownloadConfig, context: StepContext) -> DownloadResult:
    """Write files below `files/`, verified by their checksums.

    Remote files are kept as they arrive: a failed file costs no other, and the next attempt asks for the failed ones
    only.
    """
    match config.fetch:
        case Wheel() | InstalledPython():
            return DownloadResult(files=(_packed(config.fetch, context),))
        case Files():
            return DownloadResult(files=tuple(_copy_own(config.fetch, context, config.files_in_flight)))
        case _:
            return _download_remote(config.fetch, context, config.files_in_flight)


def _packed(fetch: Wheel | InstalledPython, context: StepContext) -> DownloadedFile:
    from runtime.text.fetch.packages import Inventory, download_wheel, pack_standard_library

    with tempfile.TemporaryDirectory() as folder:
        if isinstance(fetch, Wheel):
            archive = download_wheel(
                fetch.name, fetch.version, Path(folder), sha256=fetch.sha256, platform_tags=fetch.platform_tags
            )
        else:
            archive = Path(folder) / "standard-library.zip"
            pack_standard_library(Inventory(fetch.python_version, fetch.inventory_sha256), archive)
        file = ContentFile(name=archive.name, sha256=_sha256_of(archive), size_in_bytes=archive.stat().st_size)
        copied = _copy_file(folder, file, f"{context.output_path}/files")
    return copied.model_copy(update={"path": f"files/{copied.path}"})


def _sha256_of(path: Path) -> str:
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copy_own(fetch: Files, context: StepContext, in_flight: int) -> list[DownloadedFile]:
    report = _progress(context, [file.size_in_bytes for file in fetch.files])
    copied = context.map(
        functools.partial(_copy_file, fetch.folder),
        fetch.files,
        in_flight=in_flight,
        name="files",
        on_finished=lambda index, file: report(file.size_in_bytes),
        on_counted=lambda done, total: None,
    )
    return [_placed(index, file) for index, file in enumerate(copied)]


def _copy_file(folder: str, file: ContentFile, path: str) -> DownloadedFile:
    from runtime.text.fetch.verified import read_chunks, write_verified

    source, name = f"{folder}/{file.path or file.name}", file.name.rsplit("/", 1)[-1]
    cure = "The file changed after the plan was made. Run the same command again to plan with its present content."
    written = write_verified(read_chunks([source]), f"{path}/{name}", name=source, sha256=file.sha256, cure=cure)
    return _downloaded(name, file.name, written)


def _downloaded(path: str, name: str, written: "Written") -> DownloadedFile:
    return DownloadedFile(path=path, name=name, sha256=written.sha256, size_in_bytes=written.size_in_bytes)


def _download_remote(fetch: Remote, context: StepContext, in_flight: int) -> DownloadResult:
    """Fetch each file in a worker; stop if the publisher does not answer or refuses every file."""
    from runtime.text.fetch.failures import FailureStreak, failed_tries, file_key

    files = _listed(fetch, context)
    max_missing_share = fetch.max_missing_share if isinstance(fetch, HuggingFaceDataset | UrlIndex) else 0.0
    tries = failed_tries(f"{context.work_path}/failures")
    streak = FailureStreak(int(max_missing_share * len(files)))

    def on_finished(index: int, fetched: FetchedFile) -> None:
        streak.count(fetched.failure)
        report(0 if fetched.file is None else fetched.file.size_in_bytes)

    is_on_hub = isinstance(fetch, HuggingFaceDataset | HuggingFaceModel)
    fetch_one = functools.partial(_fetch_file, context.work_path, is_on_hub)
    items = [(file, tries[file_key(file.url)]) for file in files]
    report = _progress(context, [file.size_in_bytes for file in files])
    fetched = context.map(
        fetch_one,
        items,
        in_flight=in_flight,
        name="files",
        on_finished=on_finished,
        on_counted=lambda done, total: None,  # `report` shows more
    )
    return _complete(context, fetched, max_missing_share)


def _listed(fetch: Remote, context: StepContext) -> "list[RemoteFile]":
    from runtime.text.fetch import hub
    from runtime.text.fetch.http import list_index

    match fetch:
        case Url():
            return [hub.RemoteFile(fetch.file_name, fetch.url, None, fetch.sha256)]
        case UrlIndex():
            path = f"{context.work_path}/index"
            urls = list_index(fetch.index, path, base=fetch.base, patterns=fetch.files, sha256=fetch.index_sha256)
            return [hub.RemoteFile(urllib.parse.urlsplit(url).path.lstrip("/"), url) for url in urls]
        case HuggingFaceModel():
            return hub.list_files(fetch.repo, fetch.revision, MODEL_FILES, repo_type="model")
        case HuggingFaceDataset():
            return hub.list_files(fetch.repo, fetch.revision, fetch.files, repo_type="dataset")


def _fetch_file(
    work_path: str, is_on_hub: bool, item: tuple[tuple[str, str, int | None, str | None], int], path: str
) -> FetchedFile:
    from runtime.text.fetch.errors import FetchError, MissingFileError, UnreachableError
    from runtime.text.fetch.failures import note_failure
    from runtime.text.fetch.http import fetch_url
    from runtime.text.fetch.hub import RemoteFile, request_headers

    file, num_tries = RemoteFile(*item[0]), item[1]
    name = file.name.rsplit("/", 1)[-1]
    try:
        written = fetch_url(
            file.url,
            f"{path}/{name}",
            parts_path=f"{work_path}/parts",
            sha256=file.sha256,
            size_in_bytes=file.size_in_bytes,
            headers=request_headers() if is_on_hub else None,
        )
    except FetchError as error:
        note_failure(f"{work_path}/failures", file.url, num_tries, str(error))
        status = error.status if isinstance(error, MissingFileError) else None
        return FetchedFile(failure=Failure(file.name, str(error), status, isinstance(error, UnreachableError)))
    return FetchedFile(file=_downloaded(name, file.name, written))


def _complete(context: StepContext, fetched: Sequence[FetchedFile], max_missing_share: float) -> DownloadResult:
    from runtime.text.fetch.failures import MAX_NAMED, check_complete

    failures = [each.failure for each in fetched if each.failure is not None]
    for failure in failures[:MAX_NAMED]:
        context.log.warning("not fetched: %s", failure.problem)
    list_path = f"{context.output_path}/{NOT_FETCHED_FILE}"
    check_complete(context.name, failures, len(fetched), max_missing_share=max_missing_share, list_path=list_path)
    if failures:
        share = f"{max_missing_share:g}"
        context.log.warning("%d of %d files are missing; the share %s is allowed", len(failures), len(fetched), share)
    return DownloadResult(
        files=tuple(_placed(index, each.file) for index, each in enumerate(fetched) if each.file is not None),
        missing=tuple(MissingFile(name=failure.name, status=failure.missing_status or 0) for failure in failures),
    )


def _placed(index: int, file: DownloadedFile) -> DownloadedFile:
    """Return the file with its path in the output: a shard's place in the list may change between attempts."""
    return file.model_copy(update={"path": f"files/{index:05d}/{file.path}"})


def _progress(context: StepContext, sizes: Sequence[int | None]) -> Callable[[int], None]:
    """Return a function that takes the size of each finished file and reports MB if all sizes are known."""
    total, num_files, num_bytes = sum(size or 0 for size in sizes), 0, 0

    def report() -> None:
        if total and None not in sizes:
            done = math.ceil(min(num_bytes, total) / 1e6)
            context.progress(done, math.ceil(total / 1e6), "MB", files=num_files, of_files=len(sizes))
        else:
            context.progress(num_files, len(sizes), "files", gigabytes=num_bytes / 1e9)

    def end(size_in_bytes: int) -> None:
        nonlocal num_files, num_bytes
        num_files, num_bytes = num_files + 1, num_bytes + size_in_bytes
        report()

    report()
    return end
