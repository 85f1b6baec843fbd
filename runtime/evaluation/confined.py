"""Confined process: runs a program, and writes a token if the program reaches its end.

The kernel allows the calls listed here and refuses all others: sockets, processes, signals, other processes' limits and
priorities, changes to files, memory outside the limit. The program can read files, and pass nothing on.

Usage: -m runtime.evaluation.confined PROCESSOR_SECONDS MEMORY_BYTES, with the token and then the program as input.
"""

import code
import contextlib
import ctypes
import fcntl
import io
import os
import platform
import resource
import signal
import struct
import sys

ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050001, 0x80000000
"""Answers of a filter; REFUSE makes the call fail with EPERM."""
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# Calls by number, in the order of ARCHITECTURES; None where there is no such call.
ALLOWED = {
    # open files
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67), "lseek": (8, 62),
    "close": (3, 57), "dup": (32, 23), "poll": (7, None), "ppoll": (271, 73), "select": (23, None),
    "pselect6": (270, 72), "fadvise64": (221, 223),
    # names of files
    "stat": (4, None), "lstat": (6, None), "fstat": (5, 80), "newfstatat": (262, 79), "statx": (332, 291),
    "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439), "readlink": (89, None),
    "readlinkat": (267, 78), "getdents64": (217, 61), "getcwd": (79, 17), "chdir": (80, 49),
    # memory
    "mmap": (9, 222), "munmap": (11, 215), "mprotect": (10, 226), "mremap": (25, 216), "madvise": (28, 233),
    "brk": (12, 214),
    # signals and timers of the process itself
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132),
    "alarm": (37, None), "setitimer": (38, 103), "getitimer": (36, 102), "restart_syscall": (219, 128),
    # locks of the process itself
    "futex": (202, 98), "set_robust_list": (273, 99), "rseq": (334, 293), "membarrier": (324, 283),
    "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    # time and facts
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
    "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153), "getrusage": (98, 165),
    "sysinfo": (99, 179), "uname": (63, 160), "getrandom": (318, 278), "getpid": (39, 172), "getppid": (110, 173),
    "gettid": (186, 178), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177),
    "exit": (60, 93), "exit_group": (231, 94),
}  # fmt: skip
OPENING = {"open": (2, None), "openat": (257, 56)}
"""Calls that are refused with flags to write; the flags are the argument after the path."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CONTROL = (72, 25)
"""The call fcntl, which may copy an open file and read its flags. Others of its commands signal or lock out others."""
CONTROLS = (fcntl.F_DUPFD, fcntl.F_DUPFD_CLOEXEC, fcntl.F_GETFD, fcntl.F_SETFD, fcntl.F_GETFL)


def _filter(machine: str) -> bytes:
    """Return a program of the kernel's packet filter."""
    load, equal, any_bit, answer = 0x20, 0x15, 0x45, 0x06
    second, third = 24, 32  # offsets of arguments
    column = list(ARCHITECTURES).index(machine)
    lines = [(load, 0, 0, 4), (equal, 1, 0, ARCHITECTURES[machine]), (answer, 0, 0, KILL), (load, 0, 0, 0)]
    for name, numbers in OPENING.items():
        if (number := numbers[column]) is not None:
            lines += [(equal, 0, 4, number), (load, 0, 0, second if name == "open" else third)]
            lines += [(any_bit, 0, 1, WRITING), (answer, 0, 0, REFUSE), (answer, 0, 0, ALLOW)]
    lines += [(equal, 0, 2 * len(CONTROLS) + 2, CONTROL[column]), (load, 0, 0, second)]
    for command in CONTROLS:
        lines += [(equal, 0, 1, command), (answer, 0, 0, ALLOW)]
    lines.append((answer, 0, 0, REFUSE))
    for numbers in ALLOWED.values():
        if (number := numbers[column]) is not None:
            lines += [(equal, 0, 1, number), (answer, 0, 0, ALLOW)]
    lines.append((answer, 0, 0, REFUSE))
    return b"".join(struct.pack("HBBI", *line) for line in lines)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def confine(processor_seconds: int, memory_bytes: int, written_bytes: int) -> None:
    """Give up, for ever, everything but to compute and to read; raise OSError if the kernel does not do it."""
    limits = {
        resource.RLIMIT_CPU: processor_seconds,
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_FSIZE: written_bytes,
        resource.RLIMIT_CORE: 0,
    }
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, value))
    instructions = _filter(platform.machine())
    program = _Program(len(instructions) // 8, instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    # End with the parent; no new privileges; the filter.
    for arguments in ((1, signal.SIGKILL, 0, 0, 0), (38, 1, 0, 0, 0), (22, 2, ctypes.byref(program), 0, 0)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def main() -> None:
    processor_seconds, memory_bytes = map(int, sys.argv[1:])
    del sys.argv[1:]
    token, _, source = sys.stdin.buffer.read().partition(b"\n")
    answer = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    confine(processor_seconds, memory_bytes, written_bytes=len(token))
    interpreter = _Interpreter({"__name__": "__main__"})
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        interpreter.runcode(compile(source, "generated", "exec"))
    if not interpreter.has_failed:
        os.write(answer, token)


class _Interpreter(code.InteractiveInterpreter):
    """An interpreter that notes whether its program raised."""

    has_failed = False

    def showtraceback(self) -> None:
        self.has_failed = True


if __name__ == "__main__":
    main()
