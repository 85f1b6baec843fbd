"""Read failures: errors of reads and writes that are no damage, each with its fix.

A limit of the machine or an unreachable store that is taken for damage costs tokenizing terabytes again, or weeks of
training, and then happens again.
"""

import errno
import re
import resource

LOST = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
"""Errors that mean that the file is not there."""
MAX_MAP_COUNT = "/proc/sys/vm/max_map_count"
RUN_AGAIN = "run the same command again"

_DAMAGED = frozenset({"NOT_FOUND", "DATA_LOSS", "FAILED_PRECONDITION", "INVALID_ARGUMENT", "OUT_OF_RANGE"})
"""TensorStore's words for an array that is missing, cut short, changed or no array."""
_TRANSIENT = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "CANCELLED", "RESOURCE_EXHAUSTED"})
_REFUSED = frozenset({"PERMISSION_DENIED", "UNAUTHENTICATED"})
_REFUSING_CODES = frozenset({"400", "401", "403"})
"""HTTP. Buckets answer 400 for expired credentials, for which TensorStore has no word."""
_TRANSIENT_NUMBERS = frozenset({errno.EAGAIN, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH})
_OS_ERROR = re.compile(r"\[os_error_code='(\d+)'\]")
_HTTP_CODE = re.compile(r"\[http_response_code='(\d+)'\]")


def with_fix(path: str, error: OSError) -> OSError:
    """Return an error of the same type and number that names `path` and what to do."""
    return OSError(error.errno, f"{error.strerror}; the file is not known to be damaged: {_fix(error.errno)}", path)


def read_failure(path: str, error: ValueError) -> OSError | None:
    """Return the failure that TensorStore describes in the text of `error`; None if `path` is damaged."""
    words = str(error)
    status = _status(words)
    if status in _DAMAGED:
        return None
    if number := _OS_ERROR.search(words):
        return with_fix(path, OSError(int(number[1]), words))
    if status in _TRANSIENT:
        return ConnectionError(f"{path}: the store did not answer ({words}); nothing there is known to be damaged")
    fix = "renew the credentials or allow them to read and list there" if status in _REFUSED else "fix the error"
    return OSError(f"{path}: cannot be read ({words}); it is not known to be damaged: {fix}, then {RUN_AGAIN}.")


def write_fix(error: BaseException) -> str:
    """Return what to do about an error of a write, to a disk or through TensorStore."""
    words = str(error)
    if RUN_AGAIN in words:
        return "Everything saved before is kept."
    status, number = "", error.errno if isinstance(error, OSError) else None
    if isinstance(error, ValueError):
        found = _OS_ERROR.search(words)
        status, number = ("", int(found[1])) if found else (_status(words), None)
    if status in _TRANSIENT or number in _TRANSIENT_NUMBERS or isinstance(error, (ConnectionError, TimeoutError)):
        return "The error may be transient: the step is retried from the last checkpoint."
    if status in _REFUSED:
        return f"The store refused: renew the credentials or allow them to write there, then {RUN_AGAIN}."
    return f"Free space or fix the permissions there, then {RUN_AGAIN}."


def _status(words: str) -> str:
    """Return TensorStore's status: the first word of an error, or the meaning of a bucket's answer."""
    status, code = words.partition(":")[0], _HTTP_CODE.search(words)
    return "PERMISSION_DENIED" if code and code[1] in _REFUSING_CODES and status not in _TRANSIENT else status


def _fix(number: int | None) -> str:
    match number:
        case errno.EMFILE:
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            return f"this process may open {hard} files and each mapping keeps one open; raise the limit `ulimit -Hn`."
        case errno.ENFILE:
            return "the machine has as many files open as it may; raise the limit `sysctl fs.file-max`."
        case errno.ENOMEM:
            with open(MAX_MAP_COUNT) as file:
                limit = file.read().strip()
            return f"a process may map {limit} files, raise the limit `sysctl vm.max_map_count`; or memory ran out."
        case errno.EACCES | errno.EPERM:
            return "allow the user of this process to read it and to search the folders above it."
        case errno.EIO:
            return f"the disk or the file server failed, see the kernel's log; then {RUN_AGAIN}."
    return f"fix the error, then {RUN_AGAIN}."
