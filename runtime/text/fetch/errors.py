"""What can go wrong on the way from a publisher to here; each message says what to do about it."""


class FetchError(Exception):
    """A file that cannot be had as asked; trying the same again would not help."""

    # What fetches has tried again already; a step that waits once more would only hide the message.
    is_transient = False


class ChecksumError(FetchError):
    """A file came, but not the one that was asked for."""


class ChangedFileError(FetchError):
    """The publisher put another file in the place of the one that was being fetched."""


class UnreachableError(FetchError, ConnectionError):
    """Nobody answered, or not now; trying again later may help."""


class MissingFileError(FetchError):
    """The server says that there is no such file, now and for good."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])
