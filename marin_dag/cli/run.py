"""Run: plan, then run what is not done; with --dry-run only the plan. This is the call without a command word."""

import json
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from marin_dag.cli.copy import finish_copies, outstanding, start_copies, target_of
from marin_dag.cli.detached import detach
from marin_dag.cli.session import (
    FAILED,
    NOTHING_WOULD_RUN,
    SELECTION,
    SOMETHING_WOULD_RUN,
    Command,
    Finished,
    Session,
    command,
)
from marin_dag.errors import UserError
from marin_dag.ledger.provenance import RUN_NAME
from marin_dag.ledger.records import Record, Records
from marin_dag.plan.config_checks import settings_to_fix
from marin_dag.plan.document import plan_document
from marin_dag.plan.explain import explain
from marin_dag.plan.lint import LintWarning
from marin_dag.plan.plan import Plan
from marin_dag.plan.planned import Verdict
from marin_dag.plan.table import render_plan, uncovered_lines
from marin_dag.quantities import counted
from marin_dag.run.interrupts import INTERRUPTED
from marin_dag.store.store import Store

MAX_STUCK = 5


def plan_and_run(session: Session) -> int:
    plan = session.plan()
    if session.parsed.json and not session.parsed.dry_run:
        raise UserError("--json: only a plan is printed as JSON; use --dry-run --json, or the command `plan --json`.")
    if session.parsed.copy_to is not None:
        target_of(session, "--copy-to")
    if session.parsed.dry_run:
        return dry_run(session, plan)
    if plan.drifted or (plan.blocked and not plan.will_run):
        return show_plan(session, plan)
    if not plan.will_run:
        done = sum(step.is_selected for step in plan.steps)
        print(f"nothing to do: {counted(done, 'step')}, {'all ' if done != 1 else ''}done")
        for line in uncovered_lines(plan):
            print(line)
        _print_results(session, plan)
        _after_run(session, plan)
        return _run_and_copy(session, plan) if session.parsed.copy_to is not None else NOTHING_WOULD_RUN
    if plan.open_questions:
        questions = (f"{name}: {question}\n" for name, question in plan.open_questions.items())
        raise UserError(
            f"{''.join(questions)}Nothing was started. To run the other steps, select them with --until or --only."
        )
    for line in _lint_lines(_lint(session, plan)):
        print(f"warning: {line}", file=sys.stderr)
    return detach(session) if session.parsed.detach else _run_and_copy(session, plan)


def _lint(session: Session, plan: Plan) -> dict[str, Sequence[LintWarning]]:
    """Return the lint warnings about the steps that will run."""
    found = session.options.lint(plan.graph) if plan.will_run else {}  # a plan of what is done imports nothing heavy
    return {planned.name: found[planned.name] for planned in plan.will_run if planned.name in found}


def _lint_lines(warnings: Mapping[str, Sequence[LintWarning]]) -> Iterator[str]:
    for name, of_step in warnings.items():
        for warning in of_step:
            yield f"{name}: {warning.text}; instead: {warning.options(name)}"


@command(
    "plan [--json]",
    "show what would run, why, and what it costs; the same as --dry-run",
    "--dry-run --set --json --every-step --copy-to",
    *SELECTION,
)
def plan(session: Session) -> int:
    return dry_run(session, session.plan())


def dry_run(session: Session, plan: Plan) -> int:
    code = show_plan(session, plan)
    if session.options.on_dry_run is not None:
        session.options.on_dry_run(session, plan)
    return code


def show_plan(session: Session, plan: Plan) -> int:
    """Print the plan and the commands to continue; return the exit code of a dry run."""
    copies = outstanding(session, plan)
    code, commands = exit_code(plan), commands_to_continue(session, plan)
    if code == NOTHING_WOULD_RUN and copies is not None and copies["num_left"]:
        code, commands = SOMETHING_WOULD_RUN, [("copy them", session.line()), *commands]
    warnings = _lint(session, plan)
    if session.parsed.json:
        document = plan_document(
            plan,
            pipeline=session.pipeline,
            store=session.store,
            exit_code=code,
            warnings=warnings,
            copies=copies,
            commands=commands,
        )
        print(json.dumps(document, indent=1))
        return code
    is_terminal = sys.stdout.isatty()
    is_dumb = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    width = max(shutil.get_terminal_size().columns, 60) if is_terminal else None
    print(render_plan(plan, width=width, color=is_terminal and not is_dumb, every_step=session.parsed.every_step))
    if warnings:
        print("\nWarnings (the plan is valid as it is):")
    for line in _lint_lines(warnings):
        print(f"  {line}")
    lines = [("outputs in", _outputs(session.store, plan))]
    if copies is not None:
        finished = counted(copies["num_outputs"], "finished output")
        lines.append(("copies in", f"{copies['prefix']}; {copies['num_left']:,} to copy, {finished}"))
    if session.parsed.dry_run and session.parsed.detach and plan.will_run:
        cluster = f"the cluster of RAY_ADDRESS, {os.environ.get('RAY_ADDRESS') or 'which is not set'}"
        lines.append(("--detach", f"nothing is submitted now; without --dry-run the driver goes to {cluster}"))
    lines += commands
    width = max(len(what) for what, _ in lines)
    print("\n".join(["", *(f"{what:<{width}} {text}" for what, text in lines)]))
    return code


def _outputs(store: Store, plan: Plan) -> str:
    """Return the full prefix: a relative one depends on the working directory."""
    is_made = any(planned.verdict is Verdict.DONE for planned in plan.steps) or Records(store).committed_keys()
    return store.prefix if is_made else f"{store.prefix}, which holds no output yet"


def exit_code(plan: Plan) -> int:
    """Return the exit code of a dry run. Drift stops the whole plan; a blocked step stops only what needs it."""
    if plan.drifted:
        return FAILED
    return SOMETHING_WOULD_RUN if plan.will_run else FAILED if plan.blocked else NOTHING_WOULD_RUN


def commands_to_continue(session: Session, plan: Plan) -> list[tuple[str, str]]:
    """Return what the user can do next, each with the command to paste."""
    lines = []
    if plan.will_run and not plan.drifted:
        undecided = plan.undecided.items()
        settings = [setting for name, error in undecided for setting in settings_to_fix(name, error)]
        decided = [word for setting in settings for word in ("--set", setting)]
        lines.append(("once decided" if undecided else "run it", session.line(*decided)))
    lines += session.publish_commands(planned for planned in plan.steps if planned.is_selected)
    plain = (Verdict.DONE, Verdict.MISSING, Verdict.BEGUN)
    asked = next((step for step in plan.steps if step.is_selected and step.verdict not in plain), None)
    if asked is not None:
        lines.append(("ask why", session.line("why", asked.name)))
    stuck = [*plan.drifted, *plan.blocked]
    if stuck:
        lines.append(("needs you", ", ".join(f"{step.name} ({step.verdict})" for step in stuck[:MAX_STUCK])))
    if plan.drifted:
        name = plan.drifted[0].name
        lines.append(("same output", session.line("accept", name, "--because", "...")))
        lines.append(("make again", session.line("bump", name)))
    return lines


def _run_and_copy(session: Session, plan: Plan) -> int:
    from marin_dag.run.live import display_for  # a dry run must not wait for imports that only a run needs

    display = _with_notifications(session, display_for())
    copies = start_copies(session, plan, display)
    code = NOTHING_WOULD_RUN
    try:
        if plan.will_run:
            code = _run(session, plan, display, (lambda key: None) if copies is None else copies.add)
    except BaseException:
        if copies is not None:
            copies.leave()
        raise
    return finish_copies(copies, code)


def _with_notifications(session: Session, display: Any) -> Any:
    if session.parsed.notify is None:
        return display
    from marin_dag.run.notifications import Notifier, NotifyingDisplay, read_webhook

    url = read_webhook(session.parsed.notify)
    notifier = Notifier(url, pipeline=session.pipeline, prefix=session.store.prefix, warn=display.complain)
    return NotifyingDisplay(display, notifier)


def _run(session: Session, plan: Plan, display: Any, on_committed: Callable[[str], None]) -> int:
    from marin_dag.run.driver import Run

    steps = [planned.step for planned in plan.will_run]
    forced = frozenset(plan.graph.step(name).key for name in session.selection().forced(plan.graph))
    backend = _backend(session.parsed.backend, session.pipeline)
    run = Run(
        steps,
        session.store,
        backend,
        display,
        command=session.line(),
        command_to_force=lambda step: session.line("--force", step, "--until", step, without=SELECTION),
        force=forced,
        wanted=plan.wanted_milestones,
        on_committed=on_committed,
        name=os.environ.get(RUN_NAME, ""),
        notice_seconds=session.parsed.notice,
    )
    if shared := plan.num_shared:  # the run counts fewer steps than the plan
        display.say(f"{counted(len(steps), 'step')} to run; {shared} more of the plan share the output of one of them")
    started = time.monotonic()
    code = run.run()
    seconds = time.monotonic() - started
    _print_warnings(run.warned, session.store)
    is_whole = code == 0 and not plan.blocked and not run.was_interrupted
    if is_whole:
        print("\nResults:")
        _print_results(session, plan, seconds)
    _after_run(session, plan)
    if is_whole or run.was_interrupted:
        return INTERRUPTED if run.was_interrupted else code
    for planned in plan.blocked:
        print(explain(plan, planned.name, session.store))
    return FAILED


def _backend(name: str, pipeline: str) -> Any:
    # Imported here, because most commands need no backend.
    if name == "local":
        from marin_dag.run.local.backend import LocalBackend

        return LocalBackend()
    from marin_dag.run.ray.backend import RayBackend

    return RayBackend(pipeline)


def _after_run(session: Session, plan: Plan) -> None:
    """Call the pipeline's `after_run`; its errors do not change the result of the run."""
    if session.options.after_run is None:
        return
    try:
        for line in session.options.after_run(session, plan):
            print(f"  {line}")
    except BrokenPipeError:  # from the prints
        raise
    except (UserError, ValueError, OSError) as error:
        print(f"{session.pipeline}: the run is over, and its after_run failed: {error}", file=sys.stderr)
    except Exception:  # an error of the pipeline: the traceback shows where
        traceback.print_exc()


def _print_warnings(warned: Mapping[str, Record], store: Store) -> None:
    """Print the warnings about the outputs that a run made; while it ran they passed among many lines."""
    if warned:
        print("\nWarnings about outputs; plans repeat them:")
    for name, record in warned.items():
        for warning in record.warnings:
            first, *others = warning.lines(store.url(record.output_path))
            print("\n".join([f"  {name}: {first}", *(f"  {line}" for line in others)]))


def _print_results(session: Session, plan: Plan, seconds: float | None = None) -> None:
    options = session.options
    if options.summary is not None:
        for line in options.summary(Finished(plan, session.store, seconds)):
            print(f"  {line}")
    records = Records(session.store)
    last = [name for name in plan.graph.last if plan.graph.step(name).background is None]
    wanted = {*(options.results or last), *session.forks.names_in(plan.graph)}
    wanted |= {name for word in session.parsed.until for name in plan.graph.named(word, "--until")}
    for planned in plan.steps:
        is_wanted = planned.name in wanted and planned.step.kind not in options.shown_after_run
        if planned.is_selected and is_wanted and (record := records.find(planned.step.key)) is not None:
            part = options.results.get(planned.name, "")
            print(f"  {planned.name}: {session.store.url(record.output_path)}{'/' if part else ''}{part}")


OPTIONS = ("--dry-run", "--set", "--json", "--every-step", "--detach", "--copy-to", "--notice", "--notify", *SELECTION)
RUN = Command("", "", "run what is not done", plan_and_run, options=OPTIONS)
"""A call without a command word."""
