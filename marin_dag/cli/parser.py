"""Parser: of the command line; a mistake in it is an error like any other, with the name of what was mistaken."""

import argparse
import re
from collections.abc import Collection, Sequence
from typing import NoReturn

from marin_dag.cli.session import FAILED, Command
from marin_dag.values.changes import nearest

NEGATIVE_NUMBER = re.compile(r"-\.?\d.*")


class Parser(argparse.ArgumentParser):
    """Exits with 1 where argparse would with 2, which says of a dry run that something would run."""

    def error(self, message: str) -> NoReturn:
        """Says what is wrong with the arguments, and exits."""
        self.exit(FAILED, f"{self.prog}: error: {message}\n`{self.prog} --help` lists commands and options.\n")

    def help_of(self, command: Command, options: Collection[str]) -> str:
        """The help of one command, with those options only that it takes."""
        page = argparse.ArgumentParser(
            usage=f"{self.prog} {command.name} {command.usage}".rstrip(),
            description=f"{command.name}: {command.help}.",
            epilog=f"`{self.prog} --help` lists all commands.",
            add_help=False,
        )
        for action in self._actions:
            if not set(options).isdisjoint(action.option_strings):
                page._add_action(action)
        return page.format_help()

    def refuse_unknown_options(self, arguments: Sequence[str]) -> None:
        """Names the first that is not known; argparse would take its value for the command and find fault with that."""
        known = self._option_string_actions
        for word in arguments:
            if word == "--":
                return
            name = word.partition("=")[0]
            # What argparse takes for a value: a dash alone, a number, a text with a space.
            is_value = not word.startswith("-") or word == "-" or NEGATIVE_NUMBER.fullmatch(word) or " " in word
            is_cluster = not word.startswith("--") and word[:2] in known
            if not (is_value or name in known or is_cluster):
                self.error(f"there is no option {name}.{nearest(name, known)}")
