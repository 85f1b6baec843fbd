"""Environment reads: the class of `os.environ` while a step runs, which reports each variable that code reads by name.

Python announces opened files to an audit hook, but not reads of variables. The class derives from the private one of
`os`: it has the same layout, so that references to the mapping, such as those of imported modules, stay valid.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

LIBRARY_MODULES = ("os", "collections.abc", "_collections_abc")
"""Modules whose functions read a variable for their caller, such as `os.getenv`."""

set_here: set[str] = set()
"""Variables that a step of this process has set; a step may read such a variable to extend or restore it."""


class _Copying(threading.local):
    names: Iterator[str] = iter(())
    """Names that a copy such as `dict(os.environ)` reads next: all in their order, after an iteration over them."""


_copying = _Copying()
_report: Callable[[str, FrameType], None] | None = None


def report_reads(report: Callable[[str, FrameType], None]) -> None:
    """Call `report` with the name of each variable that is read by name, and the frame of its reader, from now on."""
    global _report
    _report = report
    os.environ.__class__ = _Environment


def end_reports() -> None:
    os.environ.__class__ = os._Environ


def _is_copied(name: str) -> bool:
    """Return whether a read is the next one of a copy; any other read ends the copy."""
    if next(_copying.names, None) == name:
        return True
    _copying.names = iter(())
    return False


class _Environment(os._Environ):
    def __getitem__(self, key: str) -> str:
        if not _is_copied(key) and _report is not None:
            reader = sys._getframe(1)
            while reader.f_back is not None and reader.f_globals.get("__name__") in LIBRARY_MODULES:
                reader = reader.f_back
            _report(key, reader)
        return super().__getitem__(key)

    def __setitem__(self, key: str, value: str) -> None:
        set_here.add(key)
        super().__setitem__(key, value)

    def __iter__(self) -> Iterator[str]:
        names = list(super().__iter__())
        _copying.names = iter(names)  # a copy is for a process that the step starts
        return iter(names)


def names_the_environment(reader: FrameType) -> bool:
    """Return whether the code of a frame reads the environment itself; compiled code that it calls has no frame."""
    names = reader.f_code.co_names
    if not {"environ", "getenv"}.isdisjoint(names):
        return True
    values = (*(reader.f_globals.get(name) for name in names), *reader.f_locals.values())
    return any(value is os.environ for value in values)
