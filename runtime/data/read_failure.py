"""Read failures: what keeps a file from being read that is not known to be damaged, each with its cure.

Whoever takes a limit of this machine for damage tokenizes terabytes again, and meets the limit once more.
"""

import errno
import re
import resource

LOST = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
"""Errors that mean that the file is not there."""
MAX_MAP_COUNT = "/proc/sys/vm/max_map_count"

_DAMAGED = frozenset({"NOT_FOUND", "DATA_LOSS", "FAILED_PRECONDITION", "INVALID_ARGUMENT", "OUT_OF_RANGE"})
"""TensorStore's words for what is missing, cut short, changed or something else than an array."""
_PASSING = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "CANCELLED"})


def with_cure(path: str, error: OSError) -> OSError:
    """The error of `path`, of the same type and number, with what to do about it."""
    return OSError(error.errno, f"{error.strerror}; the file is not known to be damaged: {_cure(error.errno)}", path)


def of_tensorstore(path: str, error: ValueError) -> OSError | None:
    """What kept TensorStore from reading `path`, which it says in words alone; None if `path` is damaged."""
    words = str(error)
    status = words.partition(":")[0]
    if status in _DAMAGED:
        return None
    if number := re.search(r"\[os_error_code='(\d+)'\]", words):
        return with_cure(path, OSError(int(number[1]), words))
    if status in _PASSING:
        return ConnectionError(f"{path}: {words}; the store was not reached, run the same command again.")
    return OSError(f"{path}: cannot be read ({words}); it is not known to be damaged.")


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
