"""Stop notice: a file by which a host that is to stop is heard by those that wait for data.

Hosts agree between two updates, which a host that waits for its batch does not come to by itself; the others would wait
for it there until the batch comes, or the scheduler's patience ends.

It is advice: whoever comes to the agreement hears there all the same. So a store that fails stops no run; it is told.
"""

import logging

import fsspec

logger = logging.getLogger(__name__)


class StopNotice:
    """One file of one attempt, in a folder that all hosts see."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._is_left = False
        self._told: set[str] = set()
        """Failures: the store is asked every few seconds, and what fails in one way is told once."""

    def leave(self) -> None:
        """Tells the others, unless some host has; what failed is tried when it is called again."""
        if self.is_left():  # a bucket takes few writes of one object in a second, and a thousand hosts may be asked
            return
        try:
            with fsspec.open(self._url, "wb", auto_mkdir=True) as file:
                file.write(b"stop\n")
        except _store_errors(self._url) as error:
            self._tell("was not left, so hosts that wait for data do not hear that this one is to stop", error)
        else:
            self._is_left = True

    def is_left(self) -> bool:
        """Whether some host left it, as far as this one can tell."""
        if self._is_left:
            return True
        try:
            filesystem, path = fsspec.core.url_to_fs(self._url)
            filesystem.cat_file(path)  # and not `exists`, which may be answered from an old listing
        except FileNotFoundError:
            return False
        except _store_errors(self._url) as error:
            self._tell("cannot be read, so this host does not hear whether another one is to stop", error)
            return False
        self._is_left = True
        return True

    def _tell(self, what: str, error: Exception) -> None:
        message = f"the stop notice {self._url} {what} ({type(error).__name__}: {error}); the run goes on"
        if message not in self._told:
            logger.warning("%s", message)
            self._told.add(message)


def _store_errors(url: str) -> tuple[type[Exception], ...]:
    """What the client of the store raises when the store or the way to it fails."""
    if url.startswith("gs://"):
        import aiohttp
        import gcsfs.retry
        import google.auth.exceptions

        return OSError, gcsfs.retry.HttpError, aiohttp.ClientError, google.auth.exceptions.GoogleAuthError
    if url.startswith("s3://"):
        import botocore.exceptions

        return OSError, botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError
    return (OSError,)
