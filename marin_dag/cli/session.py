"""Session: what every command shares (arguments, graph, store, forks), and what a command declares of itself."""

import argparse
import gc
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from marin_dag.errors import UserError
from marin_dag.graph.assignments import with_settings
from marin_dag.graph.forks import Follow, Forks, WithForks
from marin_dag.graph.graph import Graph, Selection
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Records
from marin_dag.ledger.requests import PUBLISH
from marin_dag.paused_collection import collection_paused
from marin_dag.plan.config_checks import RefusedStepsError
from marin_dag.plan.milestone_reasons import MilestoneNotRequested
from marin_dag.plan.plan import Plan, make_plan
from marin_dag.plan.planned import PlannedStep
from marin_dag.plan.remarks import Remarks
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Store

NOTHING_WOULD_RUN, FAILED, SOMETHING_WOULD_RUN = 0, 1, 2

Build = Callable[[argparse.Namespace], Sequence[Step[Any]]]
OnDryRun = Callable[["Session", Plan], None]
AfterRun = Callable[["Session", Plan], Iterable[str]]


class Finished:
    """A run that has ended well, or had nothing to do: what its steps returned."""

    def __init__(self, plan: Plan, store: Store, seconds: float | None) -> None:
        self._plan = plan
        self._records = Records(store)
        self.seconds = seconds
        """How long it took; None if nothing had to run."""

    @property
    def steps(self) -> tuple[str, ...]:
        """Names of the steps of this call, inputs first."""
        return tuple(planned.name for planned in self._plan.steps if planned.is_selected)

    def result(self, name: str) -> Any:
        """What the step returned, or None if it is no step of this call."""
        if name not in self.steps:
            return None
        step = self._plan[name].step
        record = self._records.find(step.key)
        return None if record is None else step.kind.result_type.model_validate(record.result)


class Session:
    """One call of the command line. Graph and plan are made anew each time they are asked for."""

    def __init__(
        self,
        parsed: argparse.Namespace,
        arguments: Sequence[str],
        build: Build,
        name: str,
        results: Mapping[str, str],
        flags: frozenset[str],
        summary: Callable[[Finished], Iterable[str]] | None,
        on_dry_run: OnDryRun | None,
        only_dry_run: frozenset[str],
        follow: Follow | None,
        takes: Mapping[str, frozenset[str]],
        variant: str,
        with_forks: WithForks | None,
        after_run: AfterRun | None,
        remarks: Remarks,
    ) -> None:
        self.parsed = parsed
        self.arguments = tuple(arguments)
        self.pipeline = name
        self.results = dict(results)
        """Step to the part of its output that a person wants to see in the end."""
        self.store: Store = open_store(parsed.prefix)
        self.forks = Forks(self.store, name, follow, variant=variant, with_forks=with_forks)
        self.on_dry_run = on_dry_run
        """What the pipeline has to add to a plan that is only shown."""
        self.after_run = after_run
        """What the pipeline has to write about a run that has ended, in no output; its lines are printed."""
        self.remarks = remarks
        """What the pipeline has to say of steps that are right and perhaps not meant."""
        self._build = build
        self._flags = flags
        self._only_dry_run = only_dry_run
        self._takes = takes
        self.summary = summary
        """Lines to end a run with."""

    @property
    def step(self) -> str:
        """The step that the command is about."""
        return str(self.parsed.names[0])

    def recipe(self) -> Graph:
        """The graph as written, and the forks."""
        return self.forks.added_to(Graph(self._build(self.parsed)))

    def graph(self) -> Graph:
        """The graph with the overrides of this call."""
        return with_settings(self.recipe(), self.parsed.set)

    def selection(self) -> Selection:
        """What --only, --until, --from and --force say."""
        parsed = self.parsed
        return Selection(tuple(parsed.only), tuple(parsed.until), tuple(parsed.from_), tuple(parsed.force))

    def plan(self, about: str | None = None) -> Plan:
        """A verdict for each step; for a command about one step, only for that step and all that it needs."""
        with collection_paused():
            graph = self.graph()
        selection = self.selection()
        if about is not None and selection == Selection():
            graph = Graph([graph.step(about)])
        try:
            plan = make_plan(graph, self.store, selection)
        except RefusedStepsError as error:  # a kept fork that today's checks refuse would be in the way of everybody
            forks = self.forks.refused_in(graph, error.names)
            said = [f"{fork.name} is a fork of {fork.base}: `drop {fork.name}` forgets it." for fork in forks]
            raise UserError("\n".join([str(error), *said])) from None
        gc.freeze()  # it stays until the command ends; to look through it once more then took a third of a second
        return plan

    def refuse_twice(self, option: str) -> None:
        """Raises UserError where an option that has one value was given several: but for the last they are ignored."""
        given = [words for words in options_of(self.arguments, self._flags) if words[0].partition("=")[0] == option]
        if len(given) > 1:
            raise UserError(f"{option}: given {len(given)} times, and one place is copied to; call it once for each.")

    def lines_to_tell(self, planned: Iterable[PlannedStep]) -> list[tuple[str, str]]:
        """What has an attempt at work keep a step that it was not told of, and that these steps start from."""
        found: dict[str, str] = {}
        for each in planned:
            inputs = dict(each.step.inputs)
            for reason in each.reasons:
                if isinstance(reason, MilestoneNotRequested) and reason.can_request and reason.field:
                    # The name under which it runs may be none of this graph.
                    words = ("tell", inputs[reason.field].name, PUBLISH, "--at", str(reason.wanted))
                    found[self.line(*words, without=["--every-step"])] = f"keep {reason.wanted}"
        return [(what, line) for line, what in found.items()]

    def line(self, *words: str, without: Sequence[str] = ()) -> str:
        """A line to paste: the pipeline, then `words`, then the options of this call that the line's command takes, but
        for those named."""
        dropped = {"--dry-run", "--json", *self._only_dry_run, *without}
        takes = self._takes[words[0] if words and not words[0].startswith("-") else ""]
        kept = []
        for option in options_of(self.arguments, self._flags):
            name = option[0].partition("=")[0]
            if name in takes and name not in dropped:
                kept += option
        return shlex.join([*program_words(), *words, *kept])


def options_of(arguments: Sequence[str], flags: frozenset[str]) -> Iterator[list[str]]:
    """Each option among the arguments with its value; no command and no names."""
    words = iter(arguments)
    for word in words:
        if word.startswith("-"):
            takes_a_word = word not in flags and "=" not in word
            yield [word, *([next(words)] if takes_a_word else [])]


# Options of several commands. Where things are and run is every command's, and so are the pipeline's own options.
SELECTION = ("--only", "--until", "--from", "--force")
EVERYWHERE = frozenset({"--prefix", "--backend", "--traceback"})
NO_ADVICE: Mapping[str, str] = {}
ONLY_LOOKS: Mapping[str, str] = {"--dry-run": "it only looks, and starts and writes nothing; leave --dry-run out"}
"""The advice of every command that writes nothing."""
WRITES_WHAT_IS_ASKED_FOR: Mapping[str, str] = {
    "--dry-run": "it starts nothing, and writes nothing but what an option of its own asks for; leave --dry-run out"
}
"""The advice of every command that looks, and that draws or writes what it saw where it is told to."""


class Command(NamedTuple):
    """One word of the command line. A module of `marin_dag.cli` declares it as `COMMAND`."""

    name: str
    usage: str
    """After the name, such as "STEP --as NAME"."""
    help: str
    run: Callable[[Session], int]
    """Returns the exit code."""
    min_names: int = 0
    """How many steps it takes, at least and at most."""
    max_names: int = 0
    add_arguments: Callable[[Any], None] | None = None
    """Declares options that no other command has; the help names the command in parentheses."""
    options: tuple[str, ...] = ()
    """The options that it takes besides those it declares and those of every command."""
    advice: Mapping[str, str] = NO_ADVICE
    """To an option that it does not take and that a person may well try, what to do instead."""

    def check(self, names: Sequence[str]) -> None:
        """Refuses too few or too many names."""
        if len(names) < self.min_names:
            what = "a step" if self.usage.startswith("STEP") else "what it is about"
            raise UserError(f"{self.name}: name {what}: `{program()} {self.name} {self.usage}`.")
        if len(names) > self.max_names:
            extra = ", ".join(repr(name) for name in names[self.max_names :])
            raise UserError(
                f"{self.name}: {extra} is too much; write `{f'{program()} {self.name} {self.usage}'.strip()}`."
            )


def program_words() -> list[str]:
    """How this pipeline is called, as words: python and the script."""
    script = Path(sys.argv[0])
    return [_python(), _from_here(script)]


def _python() -> str:
    """By its name where the shell finds it so, and else by its path: nobody need have activated an environment."""
    here = Path(sys.executable)
    named = (name for name in ("python", "python3") if Path(shutil.which(name) or "").parent == here.parent)
    return next(named, _from_here(here))


def _from_here(path: Path) -> str:
    return os.path.relpath(path) if path.is_absolute() and path.is_relative_to(Path.cwd()) else str(path)


def program() -> str:
    """How this pipeline is called."""
    return " ".join(program_words())
