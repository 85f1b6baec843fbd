"""Confined process: runs a program, and writes a token if the program reaches its end.

Usage: -m runtime.evaluation.confined PROGRAM TOKEN PROCESSOR_SECONDS MEMORY_BYTES
"""

import code
import contextlib
import ctypes
import io
import os
import platform
import resource
import struct
import sys

ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050001, 0x80000000
"""Answers of a filter; REFUSE makes the call fail with EPERM."""
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# Calls by number, in the order of ARCHITECTURES; None where there is no such call.
REFUSED = {
    # sockets
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "io_uring_setup": (425, 425),
    # processes
    "fork": (57, None), "vfork": (58, None), "clone": (56, 220), "clone3": (435, 435), "execve": (59, 221),
    "execveat": (322, 281), "ptrace": (101, 117), "process_vm_writev": (311, 271),
    # signals
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "pidfd_send_signal": (424, 424),
    "rt_sigqueueinfo": (129, 138),
    # files
    "creat": (85, None), "openat2": (437, 437), "unlink": (87, None), "unlinkat": (263, 35), "rmdir": (84, None),
    "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276), "mkdir": (83, None), "mkdirat": (258, 34),
    "link": (86, None), "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36), "truncate": (76, 45),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "chown": (92, None), "fchown": (93, 55),
    "lchown": (94, None), "fchownat": (260, 54), "mknod": (133, None), "mknodat": (259, 33), "utimensat": (280, 88),
    "setxattr": (188, 5), "open_by_handle_at": (304, 265), "mount": (165, 40),
}  # fmt: skip
OPENING = {"open": (2, None), "openat": (257, 56)}
"""Calls that are refused with flags to write; the flags are the argument after the path."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _filter(machine: str) -> bytes:
    """Return the seccomp filter for a machine, as a program of the kernel's packet filter."""
    load, equal, at_least, any_bit, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    column = list(ARCHITECTURES).index(machine)
    refused = [number for numbers in REFUSED.values() if (number := numbers[column]) is not None]
    opening = {name: number for name, numbers in OPENING.items() if (number := numbers[column]) is not None}
    lines = [(load, 0, 0, 4), (equal, 1, 0, ARCHITECTURES[machine]), (answer, 0, 0, KILL), (load, 0, 0, 0)]
    lines += [(at_least, 0, 1, 0x40000000), (answer, 0, 0, REFUSE)]  # the calls of another interface
    for number in refused:
        lines += [(equal, 0, 1, number), (answer, 0, 0, REFUSE)]
    for name, number in opening.items():
        flags = 24 if name == "open" else 32  # offsets of the second and third argument
        lines += [(equal, 0, 4, number), (load, 0, 0, flags), (any_bit, 0, 1, WRITING)]
        lines += [(answer, 0, 0, REFUSE), (answer, 0, 0, ALLOW)]
    lines.append((answer, 0, 0, ALLOW))
    return b"".join(struct.pack("HBBI", *line) for line in lines)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def confine(processor_seconds: int, memory_bytes: int) -> None:
    """Restrict this process to computing and reading, for ever; raise OSError if the kernel refuses."""
    resource.setrlimit(resource.RLIMIT_CPU, (processor_seconds, processor_seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    instructions = _filter(platform.machine())
    program = _Program(len(instructions) // 8, instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((38, 1, 0, 0, 0), (22, 2, ctypes.byref(program), 0, 0)):  # no new privileges; the filter
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def main() -> None:
    """Run the program of the command line under its limits."""
    program, token, processor_seconds, memory_bytes = sys.argv[1:]
    del sys.argv[1:]
    with open(program, "rb") as file:
        source = file.read()
    answer = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    confine(int(processor_seconds), int(memory_bytes))
    interpreter = _Interpreter({"__name__": "__main__"})
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        interpreter.runcode(compile(source, "generated", "exec"))
    if not interpreter.has_failed:
        os.write(answer, token.encode())


class _Interpreter(code.InteractiveInterpreter):
    """An interpreter that notes whether its program raised."""

    has_failed = False

    def showtraceback(self) -> None:
        self.has_failed = True


if __name__ == "__main__":
    main()
