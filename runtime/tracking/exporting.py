"""Exporting: the checks that exports of curves to other tools share."""

import importlib
import shlex
import sys


class ExportError(RuntimeError):
    """The package of another tool is not installed, or writes to another folder than the given one."""


def check_package(package: str, tool: str) -> None:
    """Raise ExportError unless `package`, which writes the files of `tool`, is installed."""
    try:
        importlib.import_module(package)
    except ImportError as error:
        install = shlex.join([sys.executable, "-m", "pip", "install", package])
        raise ExportError(f"files for {tool} need the package `{package}`; install it: {install}") from error
