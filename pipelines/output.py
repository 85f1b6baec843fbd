"""Output of commands: each command declares its lines, its JSON and its page in one place."""

import json
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from marin_dag.cli.parser import number
from marin_dag.cli.session import NOTHING_WOULD_RUN, Command, Session
from marin_dag.cli.session import command as engine_command
from marin_dag.errors import UserError

SUFFIXES = (".html", ".htm")
positive = number("a whole number of at least 1; use one such as 16", least=1, kind=int)
"""Type for argparse of an option that takes a count."""
Settings = Mapping[str, Any]
"""Settings of an option for argparse."""


class Shown(NamedTuple):
    """Output of a command: lines for people, JSON data, a page."""

    lines: Iterable[str] = ()
    """Printed one by one, as they come."""
    code: int | Callable[[], int] = NOTHING_WOULD_RUN
    """The exit code, or returns it after the lines."""
    document: Callable[[], Any] | None = None
    """Returns the data that `--json` prints instead of the lines."""
    page: Callable[[], str | None] | None = None
    """Returns the page that `--page` writes, after the lines; None if there is nothing to draw."""


def command(
    usage: str, help: str, options: str = "--set", *, page: str = "", own: Mapping[str, Settings] | None = None
) -> Callable[[Callable[[Session], Shown]], Command]:
    """Return a decorator that makes a function a command of pipelines.

    Args:
        usage: the command and its arguments, such as "batch PHASE@STEP" or "runs [GLOB...]".
        help: one line about the command.
        options: names of the engine's options, separated by spaces.
        page: help of `--page`; a command without it has no such option.
        own: further options, each as `flag` or `value` makes it.
    """
    every = {**(own or {}), **({"--page": value("FILE.html", page)} if page else {})}

    def declared(show: Callable[[Session], Shown]) -> Command:
        def run(session: Session) -> int:
            path = getattr(session.parsed, "page", None)
            check_writable(path)
            shown = show(session)
            is_json = "--json" in options and session.parsed.json
            if is_json and shown.document is not None:
                print(json.dumps(shown.document(), ensure_ascii=False, indent=1))
            else:
                for line in shown.lines:
                    print(line)
            page = None if path is None or shown.page is None else shown.page()
            if path is not None and page is not None:
                write_page(path, page)
                print(f"drawn: {path}", file=sys.stderr if is_json else sys.stdout)  # the JSON is alone
            return shown.code() if callable(shown.code) else shown.code

        return engine_command(usage, help, options, own=every)(run)

    return declared


def flag(help: str) -> Settings:
    """Return the settings of an option without a value."""
    return {"action": "store_true", "help": help}


def value(metavar: str, help: str, **settings: Any) -> Settings:
    """Return the settings of an option with a value."""
    return {"metavar": metavar, "help": help, **settings}


def repeated(metavar: str, help: str, **settings: Any) -> Settings:
    """Return the settings of an option that may be given several times."""
    return {"action": "append", "default": [], **value(metavar, help, **settings)}


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> list[str]:
    """Return a line for each row; the columns `left` are left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def check_writable(path: str | None) -> None:
    """Raise UserError if `--page` names a file that cannot be written; leave no file behind."""
    if path is None:
        return
    file = Path(path)
    if "://" in path:
        raise UserError(f"--page {path}: the file must be local. Name a path without {path.partition('://')[0]}://.")
    if file.suffix.lower() not in SUFFIXES:
        raise UserError(f"--page {path}: cannot draw a file with {file.suffix or 'no ending'}. End the name in .html.")
    # Permission bits are not enough: root has all of them, and /sys or a full disk still refuses new files.
    try:
        if file.exists():
            file.open("ab").close()
        else:
            tempfile.TemporaryFile(dir=file.absolute().parent).close()
    except OSError as error:
        raise _refused(path, error) from error


def write_page(path: str, content: str) -> None:
    """Write a page that `check_writable` accepted; raise UserError if that fails, as on a full disk."""
    try:
        Path(path).write_text(content, encoding="utf-8")
    except OSError as error:
        raise _refused(path, error) from error


def _refused(path: str, error: OSError) -> UserError:
    return UserError(f"--page {path}: cannot be written ({error.strerror or error}). Name another file.")
