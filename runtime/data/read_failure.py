"""Read failures: errors of reads and writes that are no damage, each with its fix.

A limit of the machine or an unreachable store that is taken for damage costs tokenizing terabytes again, or weeks of
training, and then happens again.
"""

import errno
import re
import resource

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


def read_failure(path: str, error: ValueError) -> OSError | None:
    """Return the failure that TensorStore describes in the text of `error`; None if `path` is damaged."""
    words = str(error)
    status = _status(words)
    if status in _DAMAGED:
        return None
    if number := _OS_ERROR.search(words):
        code = int(number[1])
        return OSError(code, f"{words}; the file is not known to be damaged: {_fix(code)}", path)
    if status in _TRANSIENT:
        return ConnectionError(f"{path}: the store did not answer ({words}); nothing there is known to be damaged")
    fix = "fix the error"
    if status in _REFUSED:
        fix = "renew the credentials or allow them to read and list there"
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


def _fix(number: int) -> str:
    match number:
        case errno.EMFILE:
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            return f"this process may open {hard} files; raise the limit `ulimit -n`, then {RUN_AGAIN}."
        case errno.ENFILE:
            return (
                f"the machine has as many files open as it may; raise the limit `sysctl fs.file-max`, then {RUN_AGAIN}."
            )
        case errno.EACCES | errno.EPERM:
            return "allow the user of this process to read it and to search the folders above it."
        case errno.EIO:
            return f"the disk or the file server failed, see the kernel's log; then {RUN_AGAIN}."
    return f"fix the error, then {RUN_AGAIN}."
