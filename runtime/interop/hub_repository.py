"""HubRepository: the revisions of a model on a Hugging Face hub, as branches of one repository.

Each revision is one commit, made only where the branch differs, so that a call after a kill or a lost answer does not
commit twice. A new branch begins at the repository's first commit, so it is empty until its own. Weights are uploaded
before the commit, and the hub asks only for those that it lacks.
"""

import re
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from runtime.interop.revisions import MAIN, NAME, Changes, PublishError, Revision, compared

PAUSES = (1.0, 4.0, 15.0, 60.0)
"""Seconds before each further try."""
UNAUTHORIZED, FORBIDDEN, OUTDATED, TOO_MANY, SERVER_ERROR = 401, 403, 412, 429, 500
LOG_IN = "Log in with `hf auth login`, or set HF_TOKEN, with a token that may write to"


class HubRepository:
    """The branches of one repository; `is_private` applies when the repository is created."""

    def __init__(self, repo: str, *, endpoint: str | None = None, is_private: bool = False) -> None:
        from huggingface_hub import HfApi
        from huggingface_hub.utils import disable_progress_bars

        if not sys.stderr.isatty():
            disable_progress_bars()
        self.address = f"hub:{repo}"
        self._repo, self._is_private = repo, is_private
        self._hub = HfApi(endpoint=endpoint)

    def load_arguments(self, revision: str) -> str:
        return f'"{self._repo}"' if revision == MAIN else f'"{self._repo}", revision="{revision}"'

    def names(self) -> list[str]:
        return sorted(self._retried(self._heads, lambda problem: None))

    def held_by_main(self) -> str | None:
        return self._retried(self._held, lambda problem: None)

    def check_own(self, name: str, files: Iterable[str]) -> None:
        """Accept any files: git keeps those that a commit replaces."""

    def changes(self, revision: Revision) -> Changes:
        return self._retried(lambda: self._compared(revision)[0], lambda problem: None)

    def write(self, revision: Revision, on_wait: Callable[[str], object]) -> None:
        self._retried(lambda: self._commit(revision), on_wait)

    def _heads(self) -> dict[str, str]:
        """Return the newest commit of each branch; nothing where there is no repository."""
        from huggingface_hub.errors import RepositoryNotFoundError

        try:
            branches = self._hub.list_repo_refs(self._repo).branches
        except RepositoryNotFoundError:
            return {}
        return {branch.name: branch.target_commit for branch in branches}

    def _held(self) -> str | None:
        """Return the revision that the newest commit of a publisher to main names."""
        from huggingface_hub.errors import RepositoryNotFoundError

        try:
            commits = self._hub.list_repo_commits(self._repo)
        except RepositoryNotFoundError:
            return None
        names = (commit.title.partition(" ")[0] for commit in commits)
        return next((name for name in names if NAME.fullmatch(name)), None)

    def _compared(self, revision: Revision) -> tuple[Changes, str | None]:
        """Return the changes to a branch, and its newest commit."""
        head = self._heads().get(revision.name)
        if head is None:
            return compared(revision, None), None
        from huggingface_hub import RepoFile

        tree = self._hub.list_repo_tree(self._repo, recursive=True, revision=head)
        files = [entry for entry in tree if isinstance(entry, RepoFile)]
        return compared(revision, {file.path: file.lfs.sha256 if file.lfs else file.blob_id for file in files}), head

    def _commit(self, revision: Revision) -> None:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        changes, head = self._compared(revision)
        if head is None:
            self._hub.create_repo(self._repo, private=self._is_private or None, exist_ok=True)
            if revision.name != MAIN:
                first = self._hub.list_repo_commits(self._repo)[-1].commit_id  # the hub's own, without files
                self._hub.create_branch(self._repo, branch=revision.name, revision=first, exist_ok=True)
            changes, head = self._compared(revision)
        operations: list[Any] = [CommitOperationAdd(name, revision.files[name].path) for name in changes.written]
        operations += [CommitOperationDelete(name, is_folder=False) for name in changes.removed]
        if operations:
            self._hub.create_commit(
                self._repo, operations, commit_message=revision.title, revision=revision.name, parent_commit=head
            )

    def _retried(self, call: Callable[[], Any], on_wait: Callable[[str], object]) -> Any:
        """Return the answer of a call, and repeat it after a transient problem; raise PublishError for a refusal."""
        for pause in (*PAUSES, None):
            try:
                return call()
            except Exception as error:
                problem = self._transient_problem(error)
                if problem is None:
                    raise
                if pause is None:
                    raise PublishError(
                        f"{self.address}: {problem}. Run the same command again: it continues where this one ended."
                    ) from error
                on_wait(f"{problem}; next try in {pause:g} s")
                time.sleep(pause)
        raise AssertionError("the last pause is None")

    def _transient_problem(self, error: Exception) -> str | None:
        """Return the text of a transient problem, None for other errors; raise PublishError where the hub refuses."""
        from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

        cause = error.__cause__ if type(error) is RuntimeError and error.__cause__ is not None else error
        if isinstance(cause, HfHubHTTPError):
            status = cause.response.status_code
            if status in (UNAUTHORIZED, FORBIDDEN) or isinstance(cause, RepositoryNotFoundError):
                refused = f"{self.address}: the hub refuses this account (status {status})"
                raise PublishError(f"{refused}. {LOG_IN} {self._repo}.") from error
            if status == OUTDATED:
                raise PublishError(
                    f"{self.address}: another commit came in between; run the same command again."
                ) from error
            if status == TOO_MANY or status >= SERVER_ERROR:
                return f"the hub answers with status {status}"
            raise PublishError(f"{self.address}: the hub refuses the commit: {cause}") from error
        if isinstance(cause, OfflineModeIsEnabled):
            raise PublishError(f"{self.address}: HF_HUB_OFFLINE is set; unset it to publish.") from error
        # The client has changed its HTTP library between versions and exports no common error.
        is_http = re.match(r"(httpx2?|httpcore2?|requests|urllib3)\b", type(cause).__module__) is not None
        is_lost = is_http or isinstance(cause, ConnectionError | TimeoutError)
        return f"no connection ({type(cause).__name__})" if is_lost else None
