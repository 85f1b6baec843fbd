"""Files of a data set or model on a Hugging Face hub at a pinned revision."""

import fnmatch
import re
from collections.abc import Sequence
from typing import NamedTuple

from runtime.text.fetch.errors import FetchError, UnreachableError

_ADDRESS = re.compile(r"hf://(?P<kind>[^/]+)/(?P<repo>[\w.-]+/[\w.-]+?)(?:@(?P<revision>[^/]*))?(?:/(?P<path>.*))?")


class DatasetAddress(NamedTuple):
    """A data set on the hub at a revision, and which of its files."""

    repo: str
    revision: str
    pattern: str
    """Shell pattern over the names of the files; `*` also matches `/`."""


def parse_dataset_address(address: str) -> DatasetAddress:
    """`hf://datasets/OWNER/NAME@REVISION/PATH`; PATH may be a pattern, a folder if it ends in `/`, or left out for all.

    Raises:
        ValueError: anything else, a branch or a tag as the revision among it.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None or found["kind"] != "datasets":
        raise ValueError(
            f"{address!r} is no address of a data set; write hf://datasets/OWNER/NAME@REVISION/PATH, where PATH may "
            "be a pattern like data/*.parquet."
        )
    revision = found["revision"]
    if revision is None:
        raise ValueError(
            f"{address!r} names no revision, and the data set may be another one tomorrow; write "
            f"hf://datasets/{found['repo']}@REVISION/{found['path'] or ''}, with the commit that its page shows."
        )
    if re.fullmatch(r"[0-9a-f]{7,40}", revision) is None:
        raise ValueError(
            f"{address!r}: {revision!r} is a branch or a tag, which may move; write the commit that it stands at now, "
            "7 to 40 digits of 0-9 and a-f."
        )
    path = found["path"] or ""
    return DatasetAddress(found["repo"], revision, f"{path}*" if path == "" or path.endswith("/") else path)


class HubFile(NamedTuple):
    name: str
    size_in_bytes: int | None
    """None where the hub does not say."""
    sha256: str | None
    """Known for large files only; small ones are pinned by the revision alone."""
    url: str


def list_files(
    repo: str, revision: str, patterns: Sequence[str], *, repo_type: str, endpoint: str | None = None
) -> list[HubFile]:
    """Files whose names match one of the shell patterns, in alphabetical order."""
    from huggingface_hub import HfApi, hf_hub_url
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

    where = f"{repo} at revision {revision}"
    try:
        info = HfApi(endpoint=endpoint).repo_info(repo, revision=revision, repo_type=repo_type, files_metadata=True)
    except GatedRepoError as error:
        raise FetchError(
            f"{where}: gated; accept its terms on the hub's page with your account, then `hf auth login`."
        ) from error
    except RepositoryNotFoundError as error:
        raise FetchError(
            f"{where}: no such repository, or not visible to this account; `hf auth whoami` shows which."
        ) from error
    except HfHubHTTPError as error:
        raise UnreachableError(f"{where}: the hub answers {error}; run the same command again later.") from error
    except Exception as error:
        if not isinstance(error, OfflineModeIsEnabled | OSError) and not _comes_from_transport(error):
            raise
        raise UnreachableError(
            f"{where}: no network: {error}\nCheck the connection and HF_HUB_OFFLINE, then run again."
        ) from error
    siblings = getattr(info, "siblings", None) or []
    found = [
        HubFile(
            file.rfilename,
            file.size,
            file.lfs.sha256 if file.lfs else None,
            hf_hub_url(repo, file.rfilename, repo_type=repo_type, revision=revision, endpoint=endpoint),
        )
        for file in sorted(siblings, key=lambda file: file.rfilename)
        if any(fnmatch.fnmatchcase(file.rfilename, pattern) for pattern in patterns)
    ]
    if not found:
        first = ", ".join(file.rfilename for file in siblings[:3])
        raise FetchError(f"{where}: none of {len(siblings)} files matches {list(patterns)} (first: {first}).")
    return found


def _comes_from_transport(error: Exception) -> bool:
    """The hub's client has changed its HTTP library between versions and exports the errors of none."""
    return type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "requests", "urllib3")


def request_headers() -> dict[str, str]:
    """What authenticates this user to the hub; empty without a login."""
    from huggingface_hub.utils import build_hf_headers

    return dict(build_hf_headers())
