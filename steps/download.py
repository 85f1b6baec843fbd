"""Download: files from a package index, an address, a hub, a bucket or this machine, verified."""

import functools
import math
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel

from marin_dag.errors import RefusedConfigError
from marin_dag.graph.cost import Cost
from marin_dag.graph.resources import Resources
from marin_dag.graph.step import Runtime, StepContext, step
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
    from runtime.text.fetch.arrivals import Arrivals, Arrived
    from runtime.text.fetch.copy import Copied
    from runtime.text.fetch.http_session import OnBytes

ItemT = TypeVar("ItemT")
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


def _cost(config: DownloadConfig, _: Resources) -> Cost:
    if isinstance(config.fetch, HuggingFaceDataset | HuggingFaceModel | UrlIndex):
        return Cost(bytes_read=config.fetch.expected_bytes, bytes_written=config.fetch.expected_bytes)
    return Cost()


def refuse_unpinned(config: DownloadConfig) -> None:
    """Refuses a data set for which the recipe names no revision."""
    fetch = config.fetch
    if isinstance(fetch, HuggingFaceDataset) and fetch.revision == UNPINNED:
        raise RefusedConfigError(
            f"no revision pinned: {fetch.repo}; pin it with the commit that its page on the hub shows.",
            {"fetch.revision": "COMMIT"},
        )


@step(policy="tracked", cost=_cost, check_decided=refuse_unpinned)
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
            files = _own_files(config.fetch, context, in_flight=config.files_in_flight)
        case HuggingFaceDataset() | HuggingFaceModel():
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
    tries = FailureNotes(_failures(context.work_path)).tries()
    items = [(url, tries[file_key(url)]) for url in urls]
    fetch_one = functools.partial(_indexed_file, context.work_path)
    wanted = [(url, None) for url in urls]
    return _fetched(context, fetch_one, items, wanted, in_flight=in_flight, max_missing_share=fetch.max_missing_share)


def _indexed_file(work_path: str, item: tuple[str, int], path: str) -> FetchedFile:
    from runtime.text.fetch.http import fetch_url

    url, num_tries = item
    name = urllib.parse.urlsplit(url).path.lstrip("/")

    def fetch(on_bytes: "OnBytes") -> DownloadedFile:
        destination = f"{path}/{name.rsplit('/', 1)[-1]}"
        copied = fetch_url(url, destination, parts_path=f"{work_path}/parts", sha256=None, on_bytes=on_bytes)
        return _in_shard(name, copied)

    return _tried(fetch, work_path, name, url, num_tries)


def _failures(work_path: str) -> str:
    return f"{work_path}/failures"


def _tried(
    fetch: "Callable[[OnBytes], DownloadedFile]", work_path: str, name: str, url: str, num_tries: int
) -> FetchedFile:
    """The file, or what is wrong with it: noted, so that the next attempt does not take this one's word for it."""
    from runtime.text.fetch.arrivals import ArrivalNote
    from runtime.text.fetch.errors import FetchError, MissingFileError, UnreachableError
    from runtime.text.fetch.failures import FailureNotes

    note = ArrivalNote(_arrivals(work_path), url)
    try:
        file = fetch(note)
        note.forget()
        return FetchedFile(file=file, name=name)
    except FetchError as error:
        FailureNotes(_failures(work_path)).note(url, num_tries, str(error))
        return FetchedFile(
            name=name,
            problem=str(error),
            missing_status=error.status if isinstance(error, MissingFileError) else None,
            is_unreachable=isinstance(error, UnreachableError),
        )


def _fetched(
    context: StepContext,
    fetch_one: Callable[[ItemT, str], FetchedFile],
    items: Sequence[ItemT],
    wanted: Sequence[tuple[str, int | None]],
    *,
    in_flight: int,
    max_missing_share: float,
) -> tuple[list[DownloadedFile], tuple[MissingFile, ...]]:
    """Each by a worker; stops if nobody answers or all are refused, and tells how much has come."""
    from runtime.text.fetch.failures import Unreachable

    unreachable = Unreachable(int(max_missing_share * len(items)))

    def ended(index: int, fetched: FetchedFile) -> None:
        is_missing = fetched.missing_status is not None
        unreachable.count(fetched.problem, is_unreachable=fetched.is_unreachable, is_missing=is_missing)
        size_in_bytes = fetched.file.size_in_bytes if fetched.file is not None else None
        arrivals.end(index, 0 if is_missing else size_in_bytes)

    with _arrivals_of(context, wanted) as arrivals:
        fetched = context.map(
            fetch_one, items, in_flight=in_flight, name="files", on_finished=ended, on_counted=arrivals.count
        )
    return _had_and_missing(context, fetched, max_missing_share)


def _arrivals(work_path: str) -> str:
    return f"{work_path}/arrivals"


def _arrivals_of(context: StepContext, wanted: Sequence[tuple[str, int | None]]) -> "Arrivals":
    from runtime.text.fetch.arrivals import Arrivals, Wanted

    def tell(arrived: "Arrived") -> None:
        num_files, rate = len(wanted), arrived.bytes_per_second / 1e6
        if arrived.num_unknown == 0 and arrived.known_bytes:
            context.progress(
                math.ceil(arrived.num_bytes / 1e6),
                math.ceil(arrived.known_bytes / 1e6),
                "MB",
                files=arrived.num_files,
                of_files=num_files,
                megabytes_per_second=rate,
            )
        else:  # some may be of any size, so what is left is better told in files
            gigabytes = {"gigabytes": arrived.num_bytes / 1e9}
            if arrived.known_bytes:
                gigabytes["of_gigabytes"] = arrived.known_bytes / 1e9
            context.progress(arrived.num_files, num_files, "files", **gigabytes, megabytes_per_second=rate)

    return Arrivals(_arrivals(context.work_path), [Wanted(*file) for file in wanted], tell, context.log)


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


def _own_files(fetch: Files, context: StepContext, *, in_flight: int) -> list[DownloadedFile]:
    copy = functools.partial(_own_file, fetch.folder, context.work_path)
    wanted = [(file.name, file.size_in_bytes) for file in fetch.files]
    with _arrivals_of(context, wanted) as arrivals:
        copied = context.map(
            copy,
            fetch.files,
            in_flight=in_flight,
            name="files",
            on_finished=lambda index, file: arrivals.end(index, file.size_in_bytes),
            on_counted=arrivals.count,
        )
    return [_placed(index, file) for index, file in enumerate(copied)]


def _own_file(folder: str, work_path: str, file: ContentFile, path: str) -> DownloadedFile:
    from runtime.text.fetch.arrivals import ArrivalNote
    from runtime.text.fetch.copy import copy_verified

    note = ArrivalNote(_arrivals(work_path), file.name)
    name = file.name.rsplit("/", 1)[-1]
    cure = "The file changed after the plan was made; run the same command again to plan with what it is now."
    copied = copy_verified(
        f"{folder}/{file.path or file.name}",
        f"{path}/{name}",
        sha256=file.sha256,
        cure=cure,
        on_bytes=lambda num_bytes: note(num_bytes, file.size_in_bytes),
    )
    note.forget()
    return _in_shard(file.name, copied)


def _hub_files(
    fetch: HuggingFaceDataset | HuggingFaceModel, context: StepContext, *, in_flight: int
) -> tuple[list[DownloadedFile], tuple[MissingFile, ...]]:
    from runtime.text.fetch.failures import FailureNotes, file_key
    from runtime.text.fetch.hub import list_files

    patterns, repo_type, max_missing_share = MODEL_FILES, "model", 0.0
    if isinstance(fetch, HuggingFaceDataset):
        patterns, repo_type, max_missing_share = fetch.files, "dataset", fetch.max_missing_share
    files = list_files(fetch.repo, fetch.revision, patterns, repo_type=repo_type)
    tries = FailureNotes(_failures(context.work_path)).tries()
    items = [(file, tries[file_key(file.url)]) for file in files]
    fetch_one = functools.partial(_hub_file, context.work_path)
    wanted = [(file.url, file.size_in_bytes) for file in files]
    return _fetched(context, fetch_one, items, wanted, in_flight=in_flight, max_missing_share=max_missing_share)


def _hub_file(work_path: str, item: tuple[tuple[str, int | None, str | None, str], int], path: str) -> FetchedFile:
    from runtime.text.fetch.http import fetch_url
    from runtime.text.fetch.hub import HubFile, request_headers

    hub_file, num_tries = HubFile(*item[0]), item[1]

    def fetch(on_bytes: "OnBytes") -> DownloadedFile:
        name = hub_file.name.rsplit("/", 1)[-1]
        copied = fetch_url(
            hub_file.url,
            f"{path}/{name}",
            parts_path=f"{work_path}/parts",
            sha256=hub_file.sha256,
            size_in_bytes=hub_file.size_in_bytes,
            headers=request_headers(),
            on_bytes=on_bytes,
        )
        return _in_shard(hub_file.name, copied)

    return _tried(fetch, work_path, hub_file.name, hub_file.url, num_tries)


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
