"""Stop notice: a file that informs hosts waiting for data that another host has to stop.

Hosts agree between two training steps. A host that waits for its batch does not reach that point by itself, and the
others would wait for it until the batch comes or the scheduler kills them. The notice is a hint: hosts that reach the
agreement learn of the stop there. A failing store therefore stops no run, and is only logged.
"""

import logging

import fsspec

logger = logging.getLogger(__name__)


class StopNotice:
    """The file of one attempt, in a folder that all hosts see."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._is_left = False
        self._logged: set[str] = set()
        """Failures already logged: the store is read every few seconds."""

    def leave(self) -> None:
        """Write the file unless a host has; a failed write is retried by the next call."""
        if self.is_left():  # a bucket takes few writes of one object in a second, and a thousand hosts may stop
            return
        try:
            with fsspec.open(self._url, "wb", auto_mkdir=True) as file:
                file.write(b"stop\n")
        except _store_errors(self._url) as error:
            self._log("was not written, so hosts that wait for data do not learn that this one has to stop", error)
        else:
            self._is_left = True

    def is_left(self) -> bool:
        """Return whether a host has left the notice, as far as this host can see."""
        if self._is_left:
            return True
        try:
            filesystem, path = fsspec.core.url_to_fs(self._url)
            filesystem.cat_file(path)  # `exists` may answer from an old listing
        except FileNotFoundError:
            return False
        except _store_errors(self._url) as error:
            self._log("cannot be read, so this host does not learn whether another one has to stop", error)
            return False
        self._is_left = True
        return True

    def _log(self, what: str, error: Exception) -> None:
        message = f"the stop notice {self._url} {what} ({type(error).__name__}: {error}); the run continues"
        if message not in self._logged:
            logger.warning("%s", message)
            self._logged.add(message)


def _store_errors(url: str) -> tuple[type[Exception], ...]:
    """Return what the client of the store raises when the store or the network fails."""
    if url.startswith("gs://"):
        import aiohttp
        import gcsfs.retry
        import google.auth.exceptions

        return OSError, gcsfs.retry.HttpError, aiohttp.ClientError, google.auth.exceptions.GoogleAuthError
    if url.startswith("s3://"):
        import botocore.exceptions

        return OSError, botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError
    return (OSError,)
