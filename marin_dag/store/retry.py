"""Transient errors, which may be gone at a later try, and the pauses before it."""

import errno
import re
import time
import urllib.error
from collections.abc import Callable, Sequence
from typing import TypeVar

ResultT = TypeVar("ResultT")
PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)
SHARD_PAUSES_SECONDS = (1.0, 2.0)
"""Fewer pauses for a shard, since each try may take long."""

TRANSIENT_CODES = frozenset({408, 425, 429, 500, 502, 503, 504})
TRANSIENT_NUMBERS = frozenset(
    {
        errno.EAGAIN,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EPIPE,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)
STATUS_IN_TEXT = re.compile(r"(?:ABORTED|CANCELLED|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED|UNAVAILABLE): ")
OS_ERROR_CODE = re.compile(r"\[os_error_code='(\d+)'\]")
"""Array libraries raise ValueError for every failure; only the text shows whether a bucket was unreachable or what the
local disk reported."""
# By name: the libraries are heavy to import, and one that is not loaded has raised nothing.
TRANSIENT_NAMES = frozenset(
    {
        "requests.exceptions.ConnectionError",
        "requests.exceptions.Timeout",
        "requests.exceptions.ChunkedEncodingError",
        "requests.exceptions.ProxyError",
        "aiohttp.client_exceptions.ClientConnectionError",
        "aiohttp.client_exceptions.ClientPayloadError",
        "botocore.exceptions.ConnectionError",
        "botocore.exceptions.HTTPClientError",
        "botocore.exceptions.IncompleteReadError",
        "botocore.exceptions.ResponseStreamingError",
        "urllib3.exceptions.ProtocolError",
        "fsspec.exceptions.FSTimeoutError",
        "ray.exceptions.ActorDiedError",
        "ray.exceptions.ActorUnavailableError",
        "ray.exceptions.LocalRayletDiedError",
        "ray.exceptions.NodeDiedError",
        "ray.exceptions.ObjectLostError",
        "ray.exceptions.OutOfMemoryError",
        "ray.exceptions.WorkerCrashedError",
    }
)


def patiently(operation: Callable[[], ResultT], pauses_seconds: Sequence[float] | None = None) -> ResultT:
    """Call `operation`, and again after growing pauses as long as it raises transient errors."""
    for pause in PAUSES_SECONDS if pauses_seconds is None else pauses_seconds:
        try:
            return operation()
        except Exception as error:
            if not is_transient(error):
                raise
        time.sleep(pause)
    return operation()


def is_transient(error: BaseException) -> bool:
    """Return whether `error`, or its cause, is transient.

    Unknown errors are permanent: repeating hours of work on a guess costs more than a command of the user.
    """
    current: BaseException | None = error
    seen: set[int] = set()
    while current is not None and id(current) not in seen:  # `raise error from error`
        seen.add(id(current))
        declared = getattr(current, "is_transient", None)
        if isinstance(declared, bool):
            return declared
        if _is_transient_itself(current):
            return True
        current = current.__cause__
    return False


def _is_transient_itself(error: BaseException) -> bool:
    if isinstance(error, urllib.error.HTTPError):
        return error.code in TRANSIENT_CODES
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, BaseException):
        return is_transient(error.reason)
    if isinstance(error, (ConnectionError, TimeoutError)):
        return True
    if isinstance(error, OSError) and error.errno in TRANSIENT_NUMBERS:
        return True
    if isinstance(error, ValueError) and (number := OS_ERROR_CODE.search(str(error))):
        return int(number[1]) in TRANSIENT_NUMBERS
    if isinstance(error, ValueError) and STATUS_IN_TEXT.match(str(error)):
        return True
    if any(f"{base.__module__}.{base.__qualname__}" in TRANSIENT_NAMES for base in type(error).__mro__):
        return True
    answer = getattr(error, "response", None)
    if isinstance(answer, dict):  # botocore's
        return answer.get("ResponseMetadata", {}).get("HTTPStatusCode") in TRANSIENT_CODES
    code = getattr(error, "code", None) or getattr(error, "status", None)
    return str(code).isdigit() and int(str(code)) in TRANSIENT_CODES
