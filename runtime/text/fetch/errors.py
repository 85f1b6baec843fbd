"""What can go wrong on the way from a publisher to here; each message says what to do about it."""


class FetchError(Exception):
    """A file that cannot be had as asked; trying the same again would not help."""

    # What fetches has tried again already; a step that waits once more would only hide the message.
    is_transient = False


class ChecksumError(FetchError):
    """A file came, but not the one that was asked for."""


class UnreachableError(FetchError, ConnectionError):
    """Nobody answered, or not now; trying again later may help."""
