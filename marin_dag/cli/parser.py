"""Parsers: one for each command with the options that it takes, and one for a run, which has no command word."""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from marin_dag.cli.run import RUN
from marin_dag.cli.session import Command, PipelineOptions, program
from marin_dag.errors import UserError
from marin_dag.values.changes import nearest

EVERYWHERE: dict[str, dict[str, Any]] = {
    "--prefix": {"default": "runs", "metavar": "DIR|gs://...", "help": "where outputs are (default: runs)"},
    "--backend": {"choices": ("ray", "local"), "default": "ray", "help": "local: in this process"},
    "--traceback": {"action": "store_true", "help": "show where in the code an error was raised"},
}
"""Options of every command."""
EXIT_CODES = """\
exit codes: 0 everything is done (with --dry-run: nothing would run), 1 something is wrong,
2 (--dry-run, gc without --yes) something would run, be copied or be deleted,
130 interrupted, 141 the reader of the output closed it early
"""


def number(
    what: str, *, least: float, most: float = math.inf, kind: type[int] | type[float] = float
) -> Callable[[str], float]:
    """Return a type for argparse that refuses a number outside these limits."""

    def parsed(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            number = math.nan
        if not least <= number <= most or math.isinf(number):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return number

    return parsed


_REPEATED = {"action": "append", "default": []}
_FLAG = {"action": "store_true"}
_PLACE = "DIR|gs://..."
OPTIONS: dict[str, dict[str, Any]] = {
    "--dry-run": {**_FLAG, "help": "print the plan; start nothing, write nothing"},
    "--json": {**_FLAG, "help": "print JSON"},
    "--every-step": {**_FLAG, "help": "one line for each step of the plan"},
    "--set": {**_REPEATED, "metavar": "STEP.FIELD=VALUE", "help": "override a field (fork: FIELD=VALUE)"},
    "--only": {**_REPEATED, "metavar": "GLOB", "help": "only steps that match; * matches / too"},
    "--until": {**_REPEATED, "metavar": "STEP|GLOB", "help": "STEP and everything it needs"},
    "--from": {**_REPEATED, "metavar": "STEP|GLOB", "dest": "from_", "help": "STEP and everything that needs it"},
    "--force": {**_REPEATED, "metavar": "STEP|GLOB", "help": "run STEP although it is done"},
    "--detach": {**_FLAG, "help": "hand the run to the cluster of RAY_ADDRESS and return"},
    "--copy-to": {"metavar": _PLACE, "help": "also copy what the run commits to this prefix"},
    "--notice": {
        "type": number("a duration; give seconds, such as 600", least=0.001),
        "metavar": "SECONDS",
        "help": "time between the scheduler's warning and its kill, for a last save",
    },
    "--notify": {
        "metavar": "FILE",
        "help": "send failures, stops, alarms and the end to the webhook whose URL FILE holds",
    },
    "--as": {"dest": "as_", "metavar": "NAME", "help": "the name of the new step"},
    "--reason": {"default": "", "metavar": "TEXT", "help": "why, for later readers"},
    "--because": {"default": "", "metavar": "TEXT", "help": "why, for later readers"},
    "--revoke": {**_FLAG, "help": "take an earlier acceptance back"},
    "--to": {"metavar": _PLACE, "help": "the prefix to copy to"},
    "--check": {**_FLAG, "help": "compare the files at the target, and replace damaged ones"},
    "--now": {**_FLAG, "help": "cancel running steps, as a second stop does"},
    "--at": {"type": int, "metavar": "N", "help": "the milestone to publish"},
    "--port": {
        "type": number("a port; give a number up to 65535, or 0 for any free one", least=0, most=65535, kind=int),
        "default": 8790,
        "metavar": "N",
        "help": "port of this machine (default 8790; 0: any free one)",
    },
    "--unpin": {**_FLAG, "help": "remove the pin"},
    "--yes": {**_FLAG, "help": "delete it"},
    "--older-than-days": {
        "type": number("a number of days; use one of 0 or more", least=0),
        "default": 7.0,
        "metavar": "DAYS",
        "help": "keep what is younger (default 7)",
    },
    "--also": {**_REPEATED, "metavar": "SCRIPT", "help": "keep what this pipeline leads to, too"},
    "--name": {**_REPEATED, "metavar": "NAME", "help": "also delete what was made under this name"},
    "--good-of": {**_REPEATED, "metavar": "STEP", "help": "delete good checkpoints of a finished step"},
    "--roots": {**_FLAG, "help": "print what this pipeline leads to, for --also"},
}
"""Options of the engine's commands. `Command.options` lists those that a command takes."""
OTHER_NAMES = {"--plot": "--page", "--chart": "--page", "--html": "--page"}
"""Names that users try for an option; no spelling leads from one to the other."""
DEFAULTS: dict[str, Any] = {"names": []} | {
    settings.get("dest", name[2:].replace("-", "_")): settings.get("default", False if "action" in settings else None)
    for name, settings in OPTIONS.items()
}
"""Values of the options that a command does not take."""


class Parser(argparse.ArgumentParser):
    """A parser that lists its options and raises `UserError` for a mistake."""

    def __init__(self, *, parents: Sequence["Parser"] = (), **settings: Any) -> None:
        self.takes_value: dict[str, bool] = {}
        """Option to whether a value follows it."""
        for parent in parents:
            self.takes_value |= parent.takes_value
        super().__init__(
            parents=list(parents), formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **settings
        )

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        action = super().add_argument(*names, **settings)
        self.takes_value |= dict.fromkeys(action.option_strings, action.nargs != 0)
        return action

    def error(self, message: str) -> NoReturn:
        """Raise UserError: argparse would exit with 2, which means of a dry run that something would run."""
        raise UserError(f"{message}. `{self.prog} --help` lists all options.")


class Call(NamedTuple):
    """The arguments of one call, parsed."""

    command: Command
    parsed: argparse.Namespace
    given: list[list[str]]
    """Each option as it was given, with its value."""


def make_parsers(options: PipelineOptions, commands: Mapping[str, Command]) -> dict[str, Parser]:
    """Return the parser of each command by its name; that of a run has the name "" and knows all commands."""
    everywhere = Parser(add_help=False)
    for name, settings in EVERYWHERE.items():
        everywhere.add_argument(name, **settings)
    if options.add_arguments is not None:
        options.add_arguments(everywhere)
    start = program()
    run = Parser(
        prog=start,
        usage="%(prog)s [COMMAND] [STEP ...] [option ...]",
        description=f"The pipeline {options.name!r}. Without COMMAND it runs what is not done.",
        epilog=f"{EXIT_CODES}\n`{start} COMMAND --help` lists the options of COMMAND.",
        parents=[everywhere],
    )
    _declare(run, RUN)
    found = {"": run}
    table = run.add_subparsers(title="commands", metavar="COMMAND", prog=start)
    for command in commands.values():
        usage = f"{start} {command.name} {command.usage}".rstrip()
        parser = table.add_parser(
            command.name,
            usage=f"{usage} [option ...]",
            description=command.help,
            help=command.help,
            parents=[everywhere],
        )
        _declare(parser, command)
        parser.add_argument("names", nargs="*", metavar="STEP", help=argparse.SUPPRESS)
        found[command.name] = parser
    return found


def _declare(parser: Parser, command: Command) -> None:
    for name in command.options:
        parser.add_argument(name, **OPTIONS[name])
    for name, settings in command.own.items():
        parser.add_argument(name, **settings)


def parse(arguments: Sequence[str], parsers: Mapping[str, Parser], commands: Mapping[str, Command]) -> Call | str:
    """Return the parsed call, or the page of help that the arguments ask for.

    The command is the first word that is neither an option nor the value of one, so options may stand before it.
    """
    names, given = _split(arguments, parsers)
    word = names.pop(0) if names else ""
    if word not in parsers:
        is_run = word in ("run", "start", "resume")
        meant = " To run what is not done, give no command." if is_run else nearest(word, commands)
        raise UserError(f"there is no command {word!r}.{meant} `{program()} --help` lists all.")
    parser, command = parsers[word], commands.get(word, RUN)
    options = [words[0].partition("=")[0] for words in given]
    if {"-h", "--help"} & set(options):
        return parser.format_help()
    command.check(names)
    for option in options:
        if option not in parser.takes_value:
            what = f"`{word}`" if word else "a run"
            raise UserError(f"{what} has no option {option}. `{parser.prog} --help` lists its options.")
    words = [word for option in given for word in option]
    parsed = parser.parse_args([*words, *(["--", *names] if names else [])])
    return Call(command, argparse.Namespace(**DEFAULTS | vars(parsed)), given)


def _split(arguments: Sequence[str], parsers: Mapping[str, Parser]) -> tuple[list[str], list[list[str]]]:
    takes_value = {name: value for parser in parsers.values() for name, value in parser.takes_value.items()}
    names: list[str] = []
    given: list[list[str]] = []
    words = iter(arguments)
    for word in words:
        option, equals, _ = word.partition("=")
        if word == "--":
            names += words
        elif not word.startswith("-") or word == "-":
            names.append(word)
        elif option not in takes_value:
            command = next((name for name in [*names, *words] if name in parsers), "")
            raise UserError(_unknown(option, parsers[command]))
        else:
            value = next(words, None) if takes_value[option] and not equals else None
            given.append([word] if value is None else [word, value])
            if word == "--set" and value and "=" not in value:
                raise UserError(f"--set {value}: write field and value as one word: --set {value}=VALUE.")
    return names, given


def _unknown(option: str, parser: Parser) -> str:
    other = OTHER_NAMES.get(option)
    meant = f" Did you mean {other!r}?" if other in parser.takes_value else nearest(option, parser.takes_value)
    return f"there is no option {option}.{meant} `{parser.prog} --help` lists all."
