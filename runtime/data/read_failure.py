"""Read failures: what keeps a file from being read that is not known to be damaged, each with its cure.

Whoever takes a limit of this machine, or a store that is away, for damage tokenizes terabytes again or gives up weeks
of training, and meets the same once more.
"""

import errno
import re
import resource

LOST = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
"""Errors that mean that the file is not there."""
MAX_MAP_COUNT = "/proc/sys/vm/max_map_count"

_DAMAGED = frozenset({"NOT_FOUND", "DATA_LOSS", "FAILED_PRECONDITION", "INVALID_ARGUMENT", "OUT_OF_RANGE"})
"""TensorStore's words for what is missing, cut short, changed or something else than an array."""
_PASSING = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "CANCELLED", "RESOURCE_EXHAUSTED"})
_REFUSED = frozenset({"PERMISSION_DENIED", "UNAUTHENTICATED"})
_REFUSING_CODES = frozenset({"400", "401", "403"})
"""Of HTTP. Buckets answer 400 for credentials that are expired, and TensorStore has no word for that."""
_PASSING_NUMBERS = frozenset({errno.EAGAIN, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH})
_OS_ERROR = re.compile(r"\[os_error_code='(\d+)'\]")
_HTTP_CODE = re.compile(r"\[http_response_code='(\d+)'\]")
SAYS_WHAT_TO_DO = "run the same command again"


def with_cure(path: str, error: OSError) -> OSError:
    """The error of `path`, of the same type and number, with what to do about it."""
    return OSError(error.errno, f"{error.strerror}; the file is not known to be damaged: {_cure(error.errno)}", path)


def of_tensorstore(path: str, error: ValueError) -> OSError | None:
    """What kept TensorStore from reading `path`, which it says in words alone; None if `path` is damaged."""
    words = str(error)
    status = _status(words)
    if status in _DAMAGED:
        return None
    if number := _OS_ERROR.search(words):
        return with_cure(path, OSError(int(number[1]), words))
    if status in _PASSING:
        return ConnectionError(f"{path}: the store did not answer ({words}); nothing there is known to be damaged")
    cure = "mend what is named here"
    if status in _REFUSED:
        cure = "the store refused, renew the credentials or let them read and list there"
    return OSError(
        f"{path}: cannot be read ({words}); it is not known to be damaged: {cure}, then run the same command again."
    )


def cure_of_write(error: BaseException) -> str:
    """What to do about the `error` that a write met, on a disk or through TensorStore."""
    words = str(error)
    if SAYS_WHAT_TO_DO in words:
        return "What was saved before it is kept."
    status, number = "", error.errno if isinstance(error, OSError) else None
    if isinstance(error, ValueError):
        found = _OS_ERROR.search(words)
        status, number = ("", int(found[1])) if found else (_status(words), None)
    if status in _PASSING or number in _PASSING_NUMBERS or isinstance(error, (ConnectionError, TimeoutError)):
        return "That may pass: the step is tried again, from the last checkpoint."
    if status in _REFUSED:
        return "The store refused: renew the credentials or let them write there, then run the same command again."
    return "Free space or mend the permissions there, then run the same command again."


def _status(words: str) -> str:
    """Of TensorStore: its first word, or what the answer of a bucket means."""
    status, code = words.partition(":")[0], _HTTP_CODE.search(words)
    return "PERMISSION_DENIED" if code and code[1] in _REFUSING_CODES and status not in _PASSING else status


def _cure(number: int | None) -> str:
    match number:
        case errno.EMFILE:
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            return f"this process may open {hard} files and each mapping keeps one open, raise the limit `ulimit -Hn`."
        case errno.ENFILE:
            return "the machine has as many files open as it may, raise the limit `sysctl fs.file-max`."
        case errno.ENOMEM:
            with open(MAX_MAP_COUNT) as file:
                limit = file.read().strip()
            return f"a process may map {limit} files, raise the limit `sysctl vm.max_map_count`; or memory ran out."
        case errno.EACCES | errno.EPERM:
            return "let the user that runs this read it, and search the folders above it."
        case errno.EIO:
            return "the disk or the file server failed, see the kernel's log; then run the same command again."
    return "mend what is named here, then run the same command again."
