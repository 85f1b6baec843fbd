"""Stop notice: a file by which a host that is to stop is heard by those that wait for data.

Hosts agree between two updates, which a host that waits for its batch does not come to by itself; the others would wait
for it there until the batch comes, or the scheduler's patience ends.
"""

import fsspec


class StopNotice:
    """One file of one attempt, in a folder that all hosts see."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._is_left = False

    def leave(self) -> None:
        """Tells the others; may be called again."""
        if not self._is_left:
            with fsspec.open(self._url, "wb", auto_mkdir=True) as file:
                file.write(b"stop\n")
            self._is_left = True

    def is_left(self) -> bool:
        """Whether some host left it."""
        filesystem, path = fsspec.core.url_to_fs(self._url)
        try:
            filesystem.cat_file(path)  # and not `exists`, which may be answered from an old listing
        except FileNotFoundError:
            return False
        return True
