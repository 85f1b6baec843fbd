"""Files of a data set or a model on a Hugging Face hub at a pinned revision."""

import functools
import hashlib
import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from runtime.text.fetch.errors import FetchError, UnreachableError, matching

_ADDRESS = re.compile(r"hf://datasets/(?P<repo>[\w.-]+/[\w.-]+?)(?:@(?P<revision>[^/]*))?(?:/(?P<path>.*))?")


class DatasetAddress(NamedTuple):
    repo: str
    revision: str
    pattern: str
    """A shell pattern over the names of the files; `*` also matches `/`."""


def parse_dataset_address(address: str) -> DatasetAddress:
    """Parse `hf://datasets/OWNER/NAME@REVISION/PATH`; PATH may be a pattern, a folder with a final `/`, or absent.

    Raise ValueError if it is no such address, or its revision is a branch or a tag.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise ValueError(
            f"{address!r} is no address of a data set. Write hf://datasets/OWNER/NAME@REVISION/PATH, where PATH may "
            "be a pattern such as data/*.parquet."
        )
    revision = found["revision"]
    if revision is None:
        raise ValueError(
            f"{address!r} has no revision, so the data set could change. Write "
            f"hf://datasets/{found['repo']}@REVISION/{found['path'] or ''} with the commit that its page shows."
        )
    if re.fullmatch(r"[0-9a-f]{7,40}", revision) is None:
        raise ValueError(
            f"{address!r}: {revision!r} is a branch or a tag, which may move. Write its present commit, 7 to 40 digits "
            "of 0-9 and a-f."
        )
    path = found["path"] or ""
    return DatasetAddress(found["repo"], revision, path if path and not path.endswith("/") else f"{path}*")


class RemoteFile(NamedTuple):
    """A file at its publisher's."""

    name: str
    url: str
    size_in_bytes: int | None = None
    """None if unknown."""
    sha256: str | None = None
    """None if unknown; a hub says it for large files only, and the revision pins the others."""


def list_files(
    repo: str, revision: str, patterns: Sequence[str], *, repo_type: str, endpoint: str | None = None
) -> list[RemoteFile]:
    """Return the files whose names match a shell pattern, sorted by name.

    The hub's description of a large repository leaves files out, so the tree is read page by page. It must hold every
    file of the description.
    """
    from huggingface_hub import HfApi, RepoFile, hf_hub_url
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

    where = f"{repo} at revision {revision}"
    try:
        hub = HfApi(endpoint=endpoint)
        described = getattr(hub.repo_info(repo, revision=revision, repo_type=repo_type), "siblings", None) or []
        tree = hub.list_repo_tree(repo, recursive=True, revision=revision, repo_type=repo_type)
        files = sorted((entry for entry in tree if isinstance(entry, RepoFile)), key=lambda file: file.path)
    except GatedRepoError as error:
        raise FetchError(f"{where}: gated. Accept its terms on the hub's page, then `hf auth login`.") from error
    except RepositoryNotFoundError as error:
        raise FetchError(
            f"{where}: no such repository, or not visible to this account. `hf auth whoami` shows the account."
        ) from error
    except HfHubHTTPError as error:
        raise UnreachableError(f"{where}: the hub answers {error}. Run the same command again later.") from error
    except Exception as error:
        # The client has changed its HTTP library between versions and exports no common error.
        is_transport = re.match(r"(httpx2?|httpcore|requests|urllib3)\b", type(error).__module__)
        if not is_transport and not isinstance(error, OfflineModeIsEnabled | OSError):
            raise
        raise UnreachableError(
            f"{where}: no network: {error}\nCheck the connection and HF_HUB_OFFLINE, then run again."
        ) from error
    if missing := {file.rfilename for file in described} - {file.path for file in files}:
        raise UnreachableError(
            f"{where}: the hub describes {len(described):,} files and lists {len(files):,}, without {min(missing)}. "
            "Run the same command again later."
        )
    names = matching(where, [file.path for file in files], patterns, "files")
    address_of = functools.partial(hf_hub_url, repo, repo_type=repo_type, revision=revision, endpoint=endpoint)
    return [
        RemoteFile(file.path, address_of(file.path), file.size, file.lfs.sha256 if file.lfs else None)
        for file in files
        if file.path in names
    ]


def share_of(files: Sequence[RemoteFile], share: float, *, least_folders: int = 1) -> list[RemoteFile]:
    """Return whole files with that share of all bytes, from at least `least_folders` folders, in the given order.

    Hashes of names order the files to choose from, so a larger share holds all files of a smaller one. Each folder
    gives about its share of the files.
    """
    sizes = {file.name: file.size_in_bytes or 0 for file in files}
    ordered = _spread_over_folders(list(sizes))
    first_by_folder: dict[PurePosixPath, str] = {}
    for name in ordered:
        first_by_folder.setdefault(PurePosixPath(name).parent, name)
    chosen = set(list(first_by_folder.values())[:least_folders])
    wanted, total = share * sum(sizes.values()), sum(sizes[name] for name in chosen)
    for name in ordered:
        if total >= wanted:
            break
        if name not in chosen:
            chosen.add(name)
            total += sizes[name]
    return [file for file in files if file.name in chosen]


def _spread_over_folders(names: Sequence[str]) -> list[str]:
    """Return the names in an order of which each beginning holds about the same share of every folder."""
    folders: dict[PurePosixPath, list[str]] = {}
    for name in sorted(names, key=_digest):
        folders.setdefault(PurePosixPath(name).parent, []).append(name)
    place = {
        name: (rank + int.from_bytes(_digest(str(folder))[:6]) / 2**48) / len(found)
        for folder, found in folders.items()
        for rank, name in enumerate(found)
    }
    return sorted(names, key=lambda name: (place[name], name))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def request_headers() -> dict[str, str]:
    """Return the headers that authenticate this user to the hub."""
    from huggingface_hub.utils import build_hf_headers

    return dict(build_hf_headers())
