"""(no command): plan, then run what is not done; with --dry-run only the plan."""

import shutil
import sys
from typing import Any

from marin_dag.commands.session import FAILED, INTERRUPTED, NOTHING_WOULD_RUN, SOMETHING_WOULD_RUN, Session
from marin_dag.explain import explain
from marin_dag.plan import Plan, PlannedStep, Verdict
from marin_dag.records import Records
from marin_dag.table import render_plan


def plan_and_run(session: Session) -> int:
    """Runs what the plan says, or prints it."""
    plan = session.plan()
    stuck = [step for step in plan.steps if step.is_selected and step.verdict in (Verdict.BLOCKED, Verdict.DRIFTED)]
    if session.parsed.dry_run:
        _print_plan(session, plan)
        _say_how_to_go_on(session, plan, stuck)
        return SOMETHING_WOULD_RUN if plan.will_run else FAILED if stuck else NOTHING_WOULD_RUN
    if not plan.will_run:
        if stuck:
            _print_plan(session, plan)
            _say_how_to_go_on(session, plan, stuck)
            return FAILED
        done = sum(step.is_selected for step in plan.steps)
        print(f"nothing to do: {done} steps, all done")
        _print_results(session, plan)
        return NOTHING_WOULD_RUN
    return _carry_out(session, plan, stuck)


def _carry_out(session: Session, plan: Plan, stuck: list[PlannedStep]) -> int:
    from marin_dag.live import display_for  # a dry run must not wait for what only a run needs
    from marin_dag.run import Run

    display = display_for()
    steps = [planned.step for planned in plan.will_run]
    forced = frozenset(plan.graph.step(name).key for name in session.parsed.force)
    backend = _backend(session.parsed.backend)
    run = Run(steps, session.store, backend, display, command=session.command_line(), force=forced)
    code = run.run()
    if run.was_interrupted:
        return INTERRUPTED
    if code == 0 and not stuck:
        _print_results(session, plan)
        return code
    for planned in stuck:
        print(explain(plan, planned.name, session.store))
    return FAILED


def _backend(name: str) -> Any:
    if name == "local":
        from marin_dag.local_backend import LocalBackend

        return LocalBackend()
    from marin_dag.ray_backend import RayBackend

    return RayBackend()


def _print_plan(session: Session, plan: Plan) -> None:
    is_terminal = sys.stdout.isatty()
    # A pipe has no width; what is read later should look like what was seen.
    width = max(shutil.get_terminal_size().columns, 60) if is_terminal else 100
    print(render_plan(plan, width=width, color=is_terminal, every_step=session.parsed.every_step))


def _say_how_to_go_on(session: Session, plan: Plan, stuck: list[PlannedStep]) -> None:
    lines = []
    if plan.will_run:
        lines.append(("run it", session.command_line()))
    asked = next(
        (step for step in plan.steps if step.is_selected and step.verdict not in (Verdict.DONE, Verdict.MISSING)),
        None,
    )
    if asked is not None:
        options = [word for word in session.command_line().split(" ") if word != "--every-step"]
        lines.append(("ask why", " ".join([*options[:2], "why", asked.name, *options[2:]])))
    if stuck:
        lines.append(("needs you", ", ".join(f"{step.name} ({step.verdict})" for step in stuck[:5])))
    if lines:
        print()
        print("\n".join(f"{what:<10} {command}" for what, command in lines))


def _print_results(session: Session, plan: Plan) -> None:
    records = Records(session.store)
    for step in plan.graph.steps:
        is_last = plan.graph.descendants(step.name) == {step.name}
        if not plan[step.name].is_selected or not (step.name in session.results or (not session.results and is_last)):
            continue
        record = records.find(step.key)
        if record is not None:
            shown = session.results.get(step.name, "")
            print(f"  {step.name}: {session.store.url(record.output_path)}{'/' if shown else ''}{shown}")
