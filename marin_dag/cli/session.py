"""Session: what every command shares (options, graph, store, forks), and how a command is declared."""

import argparse
import dataclasses
import gc
import inspect
import itertools
import os
import shlex
import shutil
import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from marin_dag.cli.page_content import PageContent
from marin_dag.errors import UserError
from marin_dag.graph.assignments import build_graph
from marin_dag.graph.fork import Follow
from marin_dag.graph.graph import Graph, Selection
from marin_dag.graph.step import Step, StepKind
from marin_dag.ledger.records import Records
from marin_dag.ledger.requests import PUBLISH
from marin_dag.paused_collection import collection_paused
from marin_dag.plan.accepted_code import apply_acceptances
from marin_dag.plan.config_checks import RefusedStepsError
from marin_dag.plan.forks import Forks, WithForks
from marin_dag.plan.lint import Lint, no_lint
from marin_dag.plan.milestones import MilestoneNotRequested
from marin_dag.plan.plan import Plan, make_plan
from marin_dag.plan.planned import PlannedStep
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Store

NOTHING_WOULD_RUN, FAILED, SOMETHING_WOULD_RUN = 0, 1, 2
SELECTION = ("--only", "--until", "--from", "--force")
"""The options that select steps."""
ANY_NUMBER = 1_000_000

Build = Callable[[argparse.Namespace], Sequence[Step[Any]]]
OnDryRun = Callable[["Session", Plan], None]
MakePageContent = Callable[["Session", Graph], PageContent]
AfterRun = Callable[["Session", Plan], Iterable[str]]


@dataclasses.dataclass(frozen=True)
class Finished:
    """A successful run, or one with nothing to do, and the results of its steps."""

    plan: Plan
    store: Store
    seconds: float | None
    """Duration of the run; None if nothing had to run."""

    @property
    def graph(self) -> Graph:
        return self.plan.graph

    @property
    def steps(self) -> tuple[str, ...]:
        """Names of the selected steps, inputs first."""
        return tuple(planned.name for planned in self.plan.steps if planned.is_selected)

    def result(self, name: str) -> Any:
        """Return the result of a step, or None if the step was not selected or has no record."""
        if name not in self.steps:
            return None
        step = self.plan[name].step
        record = Records(self.store).find(step.key)
        return None if record is None else step.kind.result_type.model_validate(record.result)


class Command(NamedTuple):
    """A command of the command line; see `command`."""

    name: str
    usage: str
    """The rest of the line, such as "STEP --as NAME"."""
    help: str
    run: Callable[["Session"], int]
    """Returns the exit code."""
    min_names: int = 0
    """The least and the largest number of names."""
    max_names: int = 0
    options: tuple[str, ...] = ()
    """The options of the engine that the command takes: names in `parser.OPTIONS`."""
    own: Mapping[str, Mapping[str, Any]] = types.MappingProxyType({})
    """The other options that the command takes, each with its settings for argparse."""

    def check(self, names: Sequence[str]) -> None:
        usage = f"{program()} {self.name} {self.usage}".rstrip()
        if len(names) < self.min_names:
            raise UserError(f"{self.name}: give {'a step' if self.usage.startswith('STEP') else 'a name'}: `{usage}`.")
        if len(names) > self.max_names:
            extra = ", ".join(repr(name) for name in names[self.max_names :])
            raise UserError(f"{self.name}: unexpected {extra}. Usage: `{usage}`.")


def command(
    usage: str, help: str, *options: str, own: Mapping[str, Mapping[str, Any]] | None = None
) -> Callable[[Callable[["Session"], int]], Command]:
    """Return a decorator that makes a function the command that `usage` describes.

    Args:
        usage: the word and its names, such as "diff A [B]" or "ls [GLOB...]".
        help: one line about it.
        options: names in `parser.OPTIONS`, separated by spaces.
        own: further options, each with its settings for argparse.
    """
    word, _, rest = usage.partition(" ")
    names = list(itertools.takewhile(lambda each: not each.startswith(("-", "[-")), rest.split()))
    least = sum(not each.startswith("[") for each in names)
    most = ANY_NUMBER if any("..." in each for each in names) else len(names)
    words = tuple(" ".join(options).split())
    return lambda run: Command(word, rest, help, run, least, most, words, own or {})


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """Options that a recipe gives `main`."""

    build: Build
    """Makes the targets from the parsed arguments."""
    name: str
    """The pipeline's name; its forks are stored under it."""
    add_arguments: Callable[[argparse.ArgumentParser], None] | None = None
    """Declares the pipeline's own arguments."""
    results: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Steps to list after a run, each with the file or folder of its output to show ("" for all of it). By default the
    steps that no other step needs."""
    summary: Callable[[Finished], Iterable[str]] | None = None
    """Returns lines to print after a run, before the results."""
    commands: Sequence[Command] = ()
    on_dry_run: OnDryRun | None = None
    """Called after --dry-run has printed a plan, to print more about it."""
    only_dry_run: Collection[str] = ()
    """Options of the pipeline that need --dry-run; the printed commands leave them out."""
    follow: Follow | None = None
    """Kind of step to the kinds that each of its forks gets too, because they follow the fork's base."""
    variant: Callable[[argparse.Namespace], str] = lambda parsed: ""
    """Names the variant of the recipe that the arguments choose ("" for the default); a fork belongs to one variant."""
    with_forks: WithForks | None = None
    """Returns steps to add where there are forks, such as a report that compares them with their bases."""
    after_run: AfterRun | None = None
    """Called with the plan after each run, successful or not, to write files that belong to no output. Its lines are
    printed."""
    shown_after_run: Collection[StepKind[Any, Any]] = ()
    """Kinds whose steps `after_run` prints an address for; the results leave them out."""
    page_content: MakePageContent | None = None
    """Returns the content of the command `page` besides the graph, such as curves."""
    lint: Lint = no_lint
    """Returns warnings about valid configs; plans and `fork` print them."""

    def check(self) -> None:
        """Raise UserError for a name that no folder can have, or a `build` that does not take the arguments."""
        if not self.name.strip(".") or not {"/", "@"}.isdisjoint(self.name):
            raise UserError(
                f"main(name={self.name!r}): the pipeline's forks are stored in a folder of this name. Use a word "
                'without "/" and "@", such as name="tootsie".'
            )
        try:
            inspect.signature(self.build).bind(argparse.Namespace())
        except TypeError as error:
            raise UserError(
                f"main(build): the recipe's function is called as build(arguments): {error}. Pass a function "
                "of one argument."
            ) from None


@dataclasses.dataclass(eq=False)
class Session:
    """A call of the command line. The graph and the plan are made again each time they are asked for."""

    options: PipelineOptions
    parsed: argparse.Namespace
    given: Sequence[Sequence[str]]
    """Each option of the call with its value."""
    takes: Mapping[str, Collection[str]]
    """The options of each command."""

    def __post_init__(self) -> None:
        options, self.pipeline = self.options, self.options.name
        self.store: Store = open_store(self.parsed.prefix)
        variant = options.variant(self.parsed)
        self.forks = Forks(self.store, options.name, options.follow, variant=variant, with_forks=options.with_forks)

    @property
    def step(self) -> str:
        """The first name given to the command."""
        return str(self.parsed.names[0])

    def recipe(self) -> Graph:
        return self.forks.added_to(Graph(self.options.build(self.parsed)))

    def graph(self, assignments: Sequence[str] | None = None) -> Graph:
        """Return the graph with the forks, `assignments` (by default those of --set) and accepted code."""
        graph = build_graph(self.recipe, self.parsed.set if assignments is None else assignments)
        apply_acceptances(graph, self.store, without=self.selection().forced(graph))
        return graph

    def selection(self) -> Selection:
        parsed = self.parsed
        return Selection(tuple(parsed.only), tuple(parsed.until), tuple(parsed.from_), tuple(parsed.force))

    def plan(self, about: str | None = None) -> Plan:
        """Return the plan of all steps, or of the step `about` and its inputs where no option selects others."""
        with collection_paused():
            graph = self.graph()
        selection = self.selection()
        if about is not None and selection == Selection():
            graph = Graph([graph.step(about)])
        try:
            plan = make_plan(graph, self.store, selection)
        except RefusedStepsError as error:  # a stored fork that a newer check refuses would block every command
            forks = self.forks.refused_in(graph, error.names)
            fixes = [f"{fork.name} is a fork of {fork.base}: `drop {fork.name}` forgets it." for fork in forks]
            raise UserError("\n".join([str(error), *fixes])) from None
        gc.freeze()  # it lives until the command ends; another collection over it took a third of a second
        return plan

    def publish_commands(self, planned: Iterable[PlannedStep]) -> list[tuple[str, str]]:
        """Return the commands that ask running attempts to publish the milestones that these steps start from."""
        found: dict[str, str] = {}
        for each in planned:
            inputs = dict(each.step.inputs)
            for reason in each.reasons:
                if isinstance(reason, MilestoneNotRequested) and reason.can_request and reason.field:
                    # The attempt may run under a name that this graph does not have.
                    words = ("tell", inputs[reason.field].name, PUBLISH, "--at", str(reason.wanted))
                    found[self.line(*words)] = f"keep {reason.wanted}"
        return [(what, line) for line, what in found.items()]

    def line(self, *words: str, without: Sequence[str] = ()) -> str:
        """Return a command line to paste: the pipeline, `words`, and those options of this call that the new command
        takes, except `without`."""
        dropped = {"--dry-run", "--json", *self.options.only_dry_run, *without}
        takes = self.takes[words[0] if words and not words[0].startswith("-") else ""]
        kept: list[str] = []
        for option in self.given:
            name = option[0].partition("=")[0]
            if name in takes and name not in dropped:
                kept += option
        return shlex.join([*program_words(), *words, *kept])


def program_words() -> list[str]:
    return [_python(), _from_here(Path(sys.argv[0]))]


def _python() -> str:
    """Return Python's name where the shell finds this Python by it, and else its path."""
    here = Path(sys.executable)
    named = (name for name in ("python", "python3") if Path(shutil.which(name) or "").parent == here.parent)
    return next(named, _from_here(here))


def _from_here(path: Path) -> str:
    return os.path.relpath(path) if path.is_absolute() and path.is_relative_to(Path.cwd()) else str(path)


def program() -> str:
    return " ".join(program_words())
