"""Command line: the parser and the dispatch. Every error of a user is one message and exit code 1.

A command is a module of `marin_dag.cli` whose `COMMAND` is listed here, or one that a pipeline brings along.
"""

import argparse
import contextlib
import inspect
import math
import os
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TextIO, cast

from pydantic import ValidationError

from marin_dag.cli import (
    accept,
    adopt,
    attach,
    bump,
    copy,
    diff,
    drop,
    fork,
    gc,
    log,
    ls,
    page,
    pin,
    plan,
    show,
    stop,
    tell,
    verify,
    why,
)
from marin_dag.cli.ascii_terminal import made_printable
from marin_dag.cli.mistakes import config_mistakes
from marin_dag.cli.parser import Parser
from marin_dag.cli.run import plan_and_run
from marin_dag.cli.session import (
    EVERYWHERE,
    FAILED,
    NOTHING_WOULD_RUN,
    SELECTION,
    AfterRun,
    Build,
    Command,
    Finished,
    OnDryRun,
    Session,
    options_of,
    program,
)
from marin_dag.errors import UserError, listed
from marin_dag.graph.fork import Follow
from marin_dag.paused_collection import collection_of_a_command
from marin_dag.plan.forks import WithForks
from marin_dag.plan.remarks import Remarks, no_remarks
from marin_dag.run.early_interrupt import INTERRUPTED, is_interrupt
from marin_dag.store.redact import RedactingStream
from marin_dag.values.changes import nearest

COMMANDS = {
    command.name: command
    for command in (
        fork.COMMAND,
        plan.COMMAND,
        why.COMMAND,
        diff.COMMAND,
        show.COMMAND,
        log.COMMAND,
        accept.COMMAND,
        bump.COMMAND,
        ls.COMMAND,
        drop.COMMAND,
        attach.COMMAND,
        stop.COMMAND,
        tell.COMMAND,
        page.COMMAND,
        verify.COMMAND,
        copy.COMMAND,
        adopt.COMMAND,
        pin.COMMAND,
        gc.COMMAND,
    )
}
DEFAULT = Command(
    "(none)",
    "",
    "run what is not done",
    plan_and_run,
    options=("--dry-run", "--set", "--json", "--every-step", "--detach", "--copy-to", "--notice", *SELECTION),
)
OTHER_WORDS = {
    "status": "plan",
    "list": "ls",
    "watch": "page",
    "dashboard": "page",
    "serve": "page",
    "logs": "log",
    "explain": "why",
    "info": "show",
    "rm": "drop",
    "remove": "drop",
    "delete": "drop",
    "cancel": "stop",
    "kill": "stop",
    "save": "tell",
    "publish": "tell",
    "cp": "copy",
    "backup": "copy",
    "mirror": "copy",
    "sync": "copy",
    "clean": "gc",
    "prune": "gc",
}
"""What other tools call a command of ours."""
MAX_OWNERS = 6
"""Commands that take an option, of those named to whoever gave it to another."""
EXIT_CODES = """\
exit codes: 0 all is done (or, with --dry-run, nothing would run), 1 something is wrong,
2 (--dry-run, gc that only lists) something would run, be copied or go,
130 interrupted, 141 nobody read it to its end
"""
UNREAD = 141
"""As of a program that SIGPIPE ends: what was found is not said, and 0 would say that nothing would run."""


def main(
    build: Build,
    *,
    add_arguments: Callable[[argparse.ArgumentParser], None] | None = None,
    name: str,
    results: Mapping[str, str] | None = None,
    summary: Callable[[Finished], Iterable[str]] | None = None,
    commands: Sequence[Command] = (),
    on_dry_run: OnDryRun | None = None,
    only_dry_run: Collection[str] = (),
    follow: Follow | None = None,
    variant: Callable[[argparse.Namespace], str] = lambda parsed: "",
    with_forks: WithForks | None = None,
    after_run: AfterRun | None = None,
    remarks: Remarks = no_remarks,
    argv: Sequence[str] | None = None,
) -> int:
    """Runs one command; returns its exit code.

    Args:
        build: makes the targets from the parsed arguments.
        add_arguments: declares the pipeline's own arguments.
        name: of the pipeline; its forks are kept under it.
        results: the steps whose outputs a person wants to see in the end, each with the file or folder of it to show
            ("" for all of it); by default the steps that nothing else needs.
        summary: the lines that a run ends with, before the results; of what its steps returned.
        commands: the pipeline's own, beside those of every pipeline.
        on_dry_run: called with each plan that --dry-run has printed, to say more about it.
        only_dry_run: options of the pipeline's own that a run refuses; the lines that a plan ends with leave them out.
        follow: kind of step to the kinds that follow each of its forks, as they follow what it was forked from.
        variant: the name of the recipe that these arguments choose, where they choose among several ("" for the usual
            one); a fork belongs to the variant that it was made of.
        with_forks: the steps to add where there are forks, such as a page that compares them with what they left.
        after_run: called with the plan of a run that has ended, well or not, or had nothing to do: to write what is
            about the run and belongs in no output. The lines that it returns are printed.
        remarks: what is right about steps and perhaps not meant; a plan says it of those that would run, and `fork`.
        argv: arguments; by default the process's.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    known = COMMANDS | {command.name: command for command in commands}
    parser, takes = _parser(name, known, add_arguments)
    parser.refuse_unknown_options(arguments)
    if {"-h", "--help"} & set(arguments):  # who asks what there is need not know what has to be given
        for action in parser._actions:
            action.required = False
    parsed = parser.parse_intermixed_args(arguments)
    command = DEFAULT if parsed.command is None else known.get(parsed.command)
    if parsed.help and command is not None:
        of_command = parser.help_of(command, takes[command.name] - frozenset(only_dry_run)) if parsed.command else None
        print(of_command or parser.format_help(), end="")
        return NOTHING_WOULD_RUN
    flags = frozenset(text for action in parser._actions if action.nargs == 0 for text in action.option_strings)

    def carry_out() -> int:
        _refuse_wrong_call(build, name)
        if argv is None:
            _refuse_another_checkout()
        _refuse_other_bytes(arguments)
        if command is None:
            said = _torn(parsed.set, parsed.command) or _unknown(parsed.command, known)
            raise UserError(f"{said} `{program()} --help` lists the commands.")
        if len(parsed.names) > command.max_names and (torn := _torn(parsed.set, parsed.names[command.max_names])):
            raise UserError(torn)
        command.check(parsed.names)
        given = [option[0].partition("=")[0] for option in options_of(arguments, flags)]
        _refuse_foreign(command, given, takes)
        if (of_a_plan := sorted({*given} & {*only_dry_run})) and not parsed.dry_run:
            raise UserError(f"{of_a_plan[0]} belongs to --dry-run: it starts and writes nothing of the run.")
        session = Session(
            parsed,
            arguments,
            build,
            name,
            results or {},
            flags,
            summary,
            on_dry_run,
            frozenset(only_dry_run),
            follow,
            takes,
            variant(parsed),
            with_forks,
            after_run,
            remarks,
        )
        return command.run(session)

    # Who starts it may have closed one (`>&-`).
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 -- until the process ends
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    made_printable(sys.stdout)
    made_printable(sys.stderr)
    try:
        # Whatever prints, and the traceback of what was not foreseen, prints no secret.
        with (
            RedactingStream(sys.stdout) as out,
            RedactingStream(sys.stderr) as err,
            contextlib.redirect_stdout(cast(TextIO, out)),
            contextlib.redirect_stderr(cast(TextIO, err)),
            collection_of_a_command(is_run=command is DEFAULT) if argv is None else contextlib.nullcontext(),
        ):
            return _code_of(carry_out, name or program(), with_traceback=parsed.traceback)
    except BrokenPipeError:  # `| head` has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 -- the interpreter flushes it at exit
        return UNREAD


def _code_of(carry_out: Callable[[], int], name: str, *, with_traceback: bool) -> int:
    try:
        return carry_out()
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except (UserError, ValidationError, ValueError, OSError) as error:
        if with_traceback:
            traceback.print_exc()
        else:
            print(f"{name}: {config_mistakes(error) if isinstance(error, ValidationError) else error}", file=sys.stderr)
        return FAILED
    except Exception as error:
        if is_interrupt(error):
            print("interrupted", file=sys.stderr)
            return INTERRUPTED
        # Not an error of the user's: where it was raised is what helps.
        traceback.print_exc()
        return FAILED


def _refuse_wrong_call(build: Build, name: str) -> None:
    """What a recipe's last line hands to `main`."""
    if not name.strip(".") or not {"/", "@"}.isdisjoint(name):
        raise UserError(
            f"main(name={name!r}): the forks of a pipeline are kept in a folder of its name, so it is a word without "
            '"/" and "@", such as name="tootsie".'
        )
    try:
        inspect.signature(build).bind(argparse.Namespace())
    except TypeError as error:
        raise UserError(f"main(build): it calls the recipe's function as build(arguments): {error}.") from None


def _refuse_other_bytes(arguments: Sequence[str]) -> None:
    """What is no text could be planned, and written down by no record."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UserError(f"the argument {argument!r} is not UTF-8; give it, or rename the file, in UTF-8.") from None


def _refuse_another_checkout() -> None:
    """A second clone or worktree under the first one's environment would run the first one's code, and say nothing."""
    script = getattr(sys.modules["__main__"], "__file__", None)
    imported = Path(__file__).resolve().parents[2]
    folders = Path(script).resolve().parents if script else ()
    own = next((folder for folder in folders if (folder / "marin_dag/__init__.py").is_file()), imported)
    if not own.samefile(imported):  # one folder has other names through a mount
        raise UserError(
            f"{script} lies in the checkout {own}, and this Python imports the code of {imported}. Run it by "
            f"{own}/.venv/bin/python (`make .venv/ready` there makes it), or put PYTHONPATH={own} before the command; "
            f"or move it out of {own}, to run it with the code of {imported}."
        )


def _unknown(word: str, known: Collection[str]) -> str:
    """That there is no such command, and which one was meant."""
    meant = f" Did you mean {OTHER_WORDS[word]!r}?" if word in OTHER_WORDS else nearest(word, known)
    if word in ("run", "start", "resume"):
        meant = f" What is not done is run by `{program()}` without one."
    return f"there is no command {word!r}.{meant}"


def _torn(settings: Iterable[str], word: str) -> str:
    """That a --set has no value, where `word`, for which there is no place, may be what was torn off it."""
    for text in settings:
        if "=" not in text:
            whole = f"{text}.{word}" if "=" in word else f"{text}={word}"
            return f"--set {text} {word}: write field and value as one word: --set {whole}."
    return ""


def _refuse_foreign(command: Command, given: Iterable[str], takes: Mapping[str, frozenset[str]]) -> None:
    """What a command does not take would be ignored, and somebody believes that it was heard."""
    of = "a run" if command is DEFAULT else f"`{command.name}`"
    taken = takes["" if command is DEFAULT else command.name]
    for option in (text.partition("=")[0] for text in given):
        if option not in taken:
            if option in command.advice:
                raise UserError(f"{option}: {of} does not take it; {command.advice[option]}.")
            owners = [f"`{other}`" if other else "a run" for other in takes if option in takes[other]]
            raise UserError(
                f"{option}: {of} does not take it; it is an option of {listed(owners, MAX_OWNERS)}. Leave it out."
            )


def _parser(
    name: str, known: Mapping[str, Command], add_arguments: Callable[[argparse.ArgumentParser], None] | None
) -> tuple[Parser, dict[str, frozenset[str]]]:
    """The parser, and the options that each command takes ("" for none)."""
    parser = Parser(
        prog=program(),
        usage="%(prog)s [COMMAND] [STEP ...] [option ...]",
        description=f"The pipeline {name!r}: plan it, run it, explain it, fork it.",
        epilog=_epilog(known.values()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    parser.add_argument("-h", "--help", action="store_true", help="this list; COMMAND --help: what COMMAND takes")
    parser.add_argument("command", nargs="?", metavar="COMMAND", help=", ".join(known))
    parser.add_argument("names", nargs="*", metavar="STEP", help="what COMMAND is about")
    parser.add_argument("--dry-run", action="store_true", help="print the plan; start nothing, write nothing")
    parser.add_argument("--json", action="store_true", help="(--dry-run, plan, show, ls and others) print JSON")
    parser.add_argument("--every-step", action="store_true", help="in the plan, a line for each step")
    parser.add_argument(
        "--set", action="append", default=[], metavar="STEP.FIELD=VALUE", help="override a field (fork: FIELD=VALUE)"
    )
    parser.add_argument("--only", action="append", default=[], metavar="GLOB", help="only what matches; * takes / too")
    parser.add_argument("--until", action="append", default=[], metavar="STEP", help="STEP and all that it needs")
    parser.add_argument(
        "--from", action="append", default=[], metavar="STEP", dest="from_", help="STEP and all that needs it"
    )
    parser.add_argument("--force", action="append", default=[], metavar="STEP", help="run STEP although it is done")
    parser.add_argument("--prefix", default="runs", metavar="DIR|gs://...", help="where outputs are (default: runs)")
    parser.add_argument("--backend", choices=("ray", "local"), default="ray", help="local: in this process")
    parser.add_argument("--detach", action="store_true", help="hand the run to the cluster of RAY_ADDRESS and leave")
    parser.add_argument("--copy-to", metavar="DIR|gs://...", help="copy what the run commits to this prefix, too")
    parser.add_argument(
        "--notice", type=_seconds, metavar="SECONDS", help="what the scheduler gives a run to save before it kills"
    )
    parser.add_argument("--traceback", action="store_true", help="show where in the code an error was raised")
    own: dict[str, frozenset[str]] = {}
    for command in known.values():
        before = _options_in(parser)
        if command.add_arguments is not None:
            command.add_arguments(parser)
        own[command.name] = _options_in(parser) - before
    before = _options_in(parser)
    if add_arguments is not None:
        add_arguments(parser.add_argument_group("this pipeline"))  # type: ignore[arg-type]
    everywhere = EVERYWHERE | (_options_in(parser) - before)
    takes = {"": everywhere | frozenset(DEFAULT.options)}
    for command in known.values():
        takes[command.name] = everywhere | own[command.name] | frozenset(command.options)
    return parser, takes


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write seconds, such as 600")
    return seconds


def _options_in(parser: argparse.ArgumentParser) -> frozenset[str]:
    return frozenset(text for action in parser._actions for text in action.option_strings)


def _epilog(commands: Iterable[Command]) -> str:
    listed = ((f"{command.name} {command.usage}".strip(), command.help) for command in (DEFAULT, *commands))
    lines = (f"  {usage:<40} {said}" for usage, said in listed)
    return "\n".join(["commands:", *lines, "", EXIT_CODES])
