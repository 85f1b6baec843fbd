"""Command line: dispatch to one command, and the rendering of errors as one message and an exit code."""

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from marin_dag.cli import care, copy, detached, drift, fork, gc, outputs, page, run, tell
from marin_dag.cli.mistakes import config_mistakes
from marin_dag.cli.parser import make_parsers, parse
from marin_dag.cli.session import FAILED, NOTHING_WOULD_RUN, Build, PipelineOptions, Session, program
from marin_dag.errors import UserError
from marin_dag.paused_collection import collection_of_a_command
from marin_dag.run.interrupts import INTERRUPTED, is_interrupt
from marin_dag.store.redacted_output import RedactingStream

COMMANDS = {
    command.name: command
    for command in (
        fork.fork, run.plan, outputs.why, outputs.diff, outputs.show, outputs.log, drift.accept, drift.bump,
        outputs.ls, fork.drop, detached.attach, detached.stop, tell.tell, page.page,
        care.verify, copy.copy, care.adopt, care.pin, gc.gc,
    )
}  # fmt: skip
BROKEN_PIPE = 141
"""The exit code of a program that SIGPIPE ends: the reader left, so 0 ("nothing would run") could be wrong."""


def main(build: Build, *, name: str, argv: Sequence[str] | None = None, **options: Any) -> int:
    """Run one command and return its exit code.

    Args:
        build: makes the targets from the parsed arguments.
        name: of the pipeline.
        argv: arguments; by default the process's.
        options: other fields of `PipelineOptions`.
    """
    pipeline = PipelineOptions(build=build, name=name, **options)
    arguments = list(sys.argv[1:] if argv is None else argv)
    # The caller may have closed one of them (`>&-`).
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 -- until the process ends
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):  # Python's defaults
            stream.reconfigure(errors="backslashreplace")  # no print fails on a terminal without UTF-8
    try:
        # Everything printed inside, tracebacks included, is printed without secrets.
        with (
            RedactingStream(sys.stdout) as out,
            RedactingStream(sys.stderr) as err,
            contextlib.redirect_stdout(cast(Any, out)),
            contextlib.redirect_stderr(cast(Any, err)),
        ):
            return _exit_code(
                lambda: _run_command(pipeline, arguments, is_process=argv is None),
                name or program(),
                with_traceback="--traceback" in arguments,
            )
    except BrokenPipeError:  # `| head` has read enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 -- the interpreter flushes it at exit
        return BROKEN_PIPE


def _run_command(options: PipelineOptions, arguments: Sequence[str], *, is_process: bool) -> int:
    options.check()
    if is_process:
        _check_checkout()
    _check_encoding(arguments)
    commands = COMMANDS | {command.name: command for command in options.commands}
    parsers = make_parsers(options, commands)
    call = parse(arguments, parsers, commands)
    if isinstance(call, str):
        print(call, end="")
        return NOTHING_WOULD_RUN
    needs_dry_run = [words[0] for words in call.given if words[0].partition("=")[0] in options.only_dry_run]
    if needs_dry_run and not call.parsed.dry_run:
        raise UserError(f"{needs_dry_run[0]} needs --dry-run: it describes a plan and starts nothing.")
    takes = {word: parser.takes_value for word, parser in parsers.items()}
    is_run = not call.command.name
    if is_process and is_run and call.parsed.backend == "local" and not (call.parsed.dry_run or os.isatty(2)):
        from marin_dag.run.error_filter import redact_standard_error

        redact_standard_error()  # of the steps' children; with Ray, the steps run in other processes
    with collection_of_a_command(is_run=is_run) if is_process else contextlib.nullcontext():
        return call.command.run(Session(options, call.parsed, call.given, takes))


def _exit_code(run: Callable[[], int], name: str, *, with_traceback: bool) -> int:
    """Return the code of `run`; print an error of the user as one message, and any other with its traceback."""
    try:
        return run()
    except BrokenPipeError:
        raise
    except (Exception, KeyboardInterrupt) as error:
        if is_interrupt(error):
            print("interrupted", file=sys.stderr)
            return INTERRUPTED
        if with_traceback or not isinstance(error, (UserError, ValueError, OSError)):  # pydantic's is a ValueError
            traceback.print_exc()
        else:
            print(f"{name}: {config_mistakes(error) if isinstance(error, ValidationError) else error}", file=sys.stderr)
        return FAILED


def _check_encoding(arguments: Sequence[str]) -> None:
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:  # no record could store it
            raise UserError(f"the argument {argument!r} is not UTF-8; give it, or rename the file, in UTF-8.") from None


def _check_checkout() -> None:
    """Raise UserError where the script lies in another clone or worktree than the imported engine."""
    script = getattr(sys.modules["__main__"], "__file__", None)
    imported = Path(__file__).resolve().parents[2]
    folders = Path(script).resolve().parents if script else ()
    own = next((folder for folder in folders if (folder / "marin_dag/__init__.py").is_file()), imported)
    if not own.samefile(imported):  # a mount gives one folder several names
        raise UserError(
            f"{script} lies in the checkout {own}, but this Python imports the code of {imported}. Run it with "
            f"{own}/.venv/bin/python (`make .venv/ready` there creates it), or put PYTHONPATH={own} before the "
            f"command; or move it out of {own} to run it with the code of {imported}."
        )
