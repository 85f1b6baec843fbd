"""Command line: plan a pipeline, run it, explain it, fork it. Every error of a user is one message and exit code 1."""

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from marin_dag.errors import UserError
from marin_dag.explain import explain
from marin_dag.forks import Forks
from marin_dag.graph import Graph, Selection, parse_assignment
from marin_dag.plan import Plan, PlannedStep, Verdict, make_plan
from marin_dag.records import Records
from marin_dag.step import Step
from marin_dag.store import Store, open_store
from marin_dag.table import render_plan

NOTHING_WOULD_RUN, FAILED, SOMETHING_WOULD_RUN, INTERRUPTED = 0, 1, 2, 130
COMMANDS = ("fork", "why", "ls", "drop")
EPILOG = """\
commands:
  (none)                                   run what is not done
  fork STEP --as NAME --set FIELD=VALUE    branch off STEP, keep the branch under NAME
  why STEP                                 the reason for STEP's verdict, down to the field or function
  ls                                       every step, its digest and output, and the forks
  drop NAME                                forget a fork

exit codes: 0 all is done (or, with --dry-run, nothing would run), 1 something is wrong,
2 (--dry-run) something would run, 130 interrupted
"""

Build = Callable[[argparse.Namespace], Sequence[Step[Any]]]


def main(
    build: Build,
    *,
    add_arguments: Callable[[argparse.ArgumentParser], None] | None = None,
    name: str,
    results: Mapping[str, str] | None = None,
    argv: Sequence[str] | None = None,
) -> int:
    """Runs one command; returns its exit code.

    Args:
        build: makes the targets from the parsed arguments.
        add_arguments: declares the pipeline's own arguments.
        name: of the pipeline; its forks are kept under it.
        results: the steps whose outputs a person wants to see in the end, each with the file or folder of it to show
            ("" for all of it); by default the steps that nothing else needs.
        argv: arguments; by default the process's.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _parser(name, add_arguments)
    parsed = parser.parse_intermixed_args(arguments)
    try:
        return _Command(parsed, arguments, build, name, dict(results or {})).run()
    except BrokenPipeError:  # `| head` has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 -- the interpreter flushes it at exit
        return NOTHING_WOULD_RUN
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except (UserError, ValidationError, ValueError, OSError) as error:
        if parsed.traceback:
            raise
        print(f"{name}: {_message(error)}", file=sys.stderr)
        return FAILED


def _message(error: Exception) -> str:
    if isinstance(error, ValidationError):
        problems = error.errors(include_url=False)
        said = (f"{error.title}.{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in problems)
        return "\n".join(said)
    return str(error)


def _parser(name: str, add_arguments: Callable[[argparse.ArgumentParser], None] | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_program(),
        description=f"The pipeline {name!r}: plan it, run it, explain it, fork it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("command", nargs="?", choices=COMMANDS, metavar="COMMAND", help=", ".join(COMMANDS))
    parser.add_argument("step", nargs="?", metavar="STEP", help="the step that COMMAND is about")
    parser.add_argument("--dry-run", action="store_true", help="print the plan; start nothing, write nothing")
    parser.add_argument("--every-step", action="store_true", help="in the plan, a line for each step")
    parser.add_argument(
        "--set", action="append", default=[], metavar="STEP.FIELD=VALUE", help="override a config field"
    )
    parser.add_argument("--only", action="append", default=[], metavar="GLOB", help="only the steps that match")
    parser.add_argument("--until", action="append", default=[], metavar="STEP", help="STEP and all that it needs")
    parser.add_argument(
        "--from", action="append", default=[], metavar="STEP", dest="from_", help="STEP and all that needs it"
    )
    parser.add_argument("--force", action="append", default=[], metavar="STEP", help="run STEP although it is done")
    parser.add_argument("--prefix", default="runs", metavar="DIR|gs://...", help="where outputs are (default: runs)")
    parser.add_argument("--backend", choices=("ray", "local"), default="ray", help="local: in this process")
    parser.add_argument("--as", dest="as_", metavar="NAME", help="(fork) the name of the branch")
    parser.add_argument("--reason", default="", metavar="TEXT", help="(fork) why, for those who find it later")
    parser.add_argument("--traceback", action="store_true", help="show where in the code an error was raised")
    if add_arguments is not None:
        add_arguments(parser.add_argument_group("this pipeline"))  # type: ignore[arg-type]
    return parser


def _program() -> str:
    script = Path(sys.argv[0])
    shown = os.path.relpath(script) if script.is_absolute() and script.is_relative_to(Path.cwd()) else str(script)
    return f"python {shown}"


class _Command:
    def __init__(
        self, parsed: argparse.Namespace, arguments: list[str], build: Build, name: str, results: dict[str, str]
    ) -> None:
        self.parsed = parsed
        self.arguments = arguments
        self.build = build
        self.results = results
        self.store: Store = open_store(parsed.prefix)
        self.forks = Forks(self.store, name)

    def run(self) -> int:
        if self.parsed.command in ("fork", "why", "drop") and self.parsed.step is None:
            raise UserError(f"{self.parsed.command}: name a step, such as `{_program()} {self.parsed.command} STEP`.")
        match self.parsed.command:
            case "fork":
                return self.fork()
            case "why":
                return self.why()
            case "ls":
                return self.list()
            case "drop":
                return self.drop()
        return self.plan_and_run()

    def recipe(self) -> Graph:
        return self.forks.added_to(Graph(self.build(self.parsed)))

    def graph(self) -> Graph:
        graph = self.recipe()
        for text in self.parsed.set:
            step, field, value = parse_assignment(text, graph)
            graph = graph.override(step, field, value)
        return graph

    def selection(self) -> Selection:
        parsed = self.parsed
        return Selection(tuple(parsed.only), tuple(parsed.until), tuple(parsed.from_), tuple(parsed.force))

    def plan(self) -> Plan:
        return make_plan(self.graph(), self.store, self.selection())

    def plan_and_run(self) -> int:
        plan = self.plan()
        stuck = [step for step in plan.steps if step.is_selected and step.verdict in (Verdict.BLOCKED, Verdict.DRIFTED)]
        if self.parsed.dry_run:
            self._print_plan(plan)
            self._say_how_to_go_on(plan, stuck)
            return SOMETHING_WOULD_RUN if plan.will_run else FAILED if stuck else NOTHING_WOULD_RUN
        if not plan.will_run:
            if stuck:
                self._print_plan(plan)
                self._say_how_to_go_on(plan, stuck)
                return FAILED
            done = sum(step.is_selected for step in plan.steps)
            print(f"nothing to do: {done} steps, all done")
            self._print_results(plan)
            return NOTHING_WOULD_RUN
        return self._carry_out(plan, stuck)

    def _carry_out(self, plan: Plan, stuck: list[PlannedStep]) -> int:
        from marin_dag.live import display_for  # a dry run must not wait for what only a run needs
        from marin_dag.run import Run

        display = display_for()
        steps = [planned.step for planned in plan.will_run]
        forced = frozenset(plan.graph.step(name).key for name in self.parsed.force)
        run = Run(steps, self.store, self._backend(), display, command=self._command(), force=forced)
        code = run.run()
        if run.was_interrupted:
            return INTERRUPTED
        if code == 0 and not stuck:
            self._print_results(plan)
            return code
        for planned in stuck:
            print(explain(plan, planned.name, self.store))
        return FAILED

    def _backend(self) -> Any:
        if self.parsed.backend == "local":
            from marin_dag.local_backend import LocalBackend

            return LocalBackend()
        from marin_dag.ray_backend import RayBackend

        return RayBackend()

    def _command(self) -> str:
        return shlex.join([*_program().split(" ", 1), *(word for word in self.arguments if word != "--dry-run")])

    def _print_plan(self, plan: Plan) -> None:
        is_terminal = sys.stdout.isatty()
        # A pipe has no width; what is read later should look like what was seen.
        width = max(shutil.get_terminal_size().columns, 60) if is_terminal else 100
        print(render_plan(plan, width=width, color=is_terminal, every_step=self.parsed.every_step))

    def _say_how_to_go_on(self, plan: Plan, stuck: list[PlannedStep]) -> None:
        lines = []
        if plan.will_run:
            lines.append(("run it", self._command()))
        asked = next(
            (step for step in plan.steps if step.is_selected and step.verdict not in (Verdict.DONE, Verdict.MISSING)),
            None,
        )
        if asked is not None:
            options = [word for word in self._command().split(" ") if word != "--every-step"]
            lines.append(("ask why", " ".join([*options[:2], "why", asked.name, *options[2:]])))
        if stuck:
            lines.append(("needs you", ", ".join(f"{step.name} ({step.verdict})" for step in stuck[:5])))
        if lines:
            print()
            print("\n".join(f"{what:<10} {command}" for what, command in lines))

    def _print_results(self, plan: Plan) -> None:
        records = Records(self.store)
        for step in plan.graph.steps:
            is_last = plan.graph.descendants(step.name) == {step.name}
            if not plan[step.name].is_selected or not (step.name in self.results or (not self.results and is_last)):
                continue
            record = records.find(step.key)
            if record is not None:
                shown = self.results.get(step.name, "")
                print(f"  {step.name}: {self.store.url(record.output_path)}{'/' if shown else ''}{shown}")

    def why(self) -> int:
        print(explain(self.plan(), self.parsed.step, self.store))
        return NOTHING_WOULD_RUN

    def list(self) -> int:
        plan = self.plan()
        records = Records(self.store)
        for planned in plan.steps:
            step = planned.step
            record = records.find(step.key) if planned.verdict is Verdict.DONE else None
            where = "" if record is None else f"  {self.store.url(record.output_path)}"
            at = "" if step.until is None else f"@{step.until}"
            print(f"{step.name:<36} {planned.verdict:<8} {step.digest[:8]}{at}{where}")
        for fork in self.forks.all():
            changes = ", ".join(f"{field}={text}" for field, text in fork.changes.items())
            because = f": {fork.reason}" if fork.reason else ""
            print(f"fork {fork.name} of {fork.base} with {changes}, by {fork.author}, {fork.created[:10]}{because}")
        return NOTHING_WOULD_RUN

    def fork(self) -> int:
        if not self.parsed.as_:
            raise UserError(f"fork {self.parsed.step}: say what to call it: --as NAME.")
        fork = self.forks.add(
            self.recipe(),
            base=self.parsed.step,
            name=self.parsed.as_,
            assignments=self.parsed.set,
            reason=self.parsed.reason,
        )
        program = [*_program().split(" ", 1), *self._other_arguments()]
        print(f"{fork.name} is a fork of {fork.base}: " + ", ".join(f"{k}={v}" for k, v in fork.changes.items()))
        print(f"plan it    {shlex.join([*program, '--dry-run', '--until', fork.name])}")
        print(f"run it     {shlex.join([*program, '--until', fork.name])}")
        print(f"forget it  {shlex.join([*program[:2], 'drop', fork.name, *program[2:]])}")
        return NOTHING_WOULD_RUN

    def _other_arguments(self) -> Sequence[str]:
        """The arguments that say which graph and which store, without those of this command."""
        kept = []
        words = iter(self.arguments)
        for word in words:
            if word in ("--as", "--set", "--reason"):
                next(words, None)
            elif word not in ("fork", self.parsed.step) and not word.startswith(("--as=", "--set=", "--reason=")):
                kept.append(word)
        return kept

    def drop(self) -> int:
        fork = self.forks.drop(self.parsed.step)
        print(f"dropped {fork.name}, a fork of {fork.base}; what it made stays in {self.store.prefix}")
        return NOTHING_WOULD_RUN
