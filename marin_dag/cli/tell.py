"""tell STEP [ACTION]: requests to running steps, and their replies."""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from marin_dag.cli.session import FAILED, NOTHING_WOULD_RUN, Session, command
from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.ledger.lease import Held, Leases
from marin_dag.ledger.records import Records
from marin_dag.ledger.requests import PUBLISH, STOP, Request, Requests
from marin_dag.plan.milestones import LostMilestones, MilestoneOutsideRun
from marin_dag.record_key import key_of
from marin_dag.store.store import Store
from marin_dag.values.changes import nearest

POLL_SECONDS = 1.0
GONE_SECONDS = 15.0
"""How long to wait after an attempt died: its driver retries a few seconds later."""


class Sent(NamedTuple):
    """A request that was sent, and to whom."""

    request: Request
    to: str
    """Text for the sender."""
    is_awaited: bool
    """Whether a running attempt will reply."""


@command(
    "tell STEP [ACTION] [--at N]",
    "send a request to a running step (stop; a phase: save, publish, profile), or list its requests",
    "--set --reason --at",
)
def tell(session: Session) -> int:
    graph = session.graph()
    step = graph.step(session.step)
    if len(session.parsed.names) < 2:
        if session.parsed.at is not None or session.parsed.reason:
            raise UserError(f"tell {step.name}: the action is missing. Add one of {_listed(step)}.")
        _print_all(Requests(session.store), step)
        return NOTHING_WOULD_RUN
    action, reason = session.parsed.names[1], session.parsed.reason
    sent = send_request(session.store, graph, step, action, at=session.parsed.at, reason=reason)
    print(f"{step.name}: {sent.to}")
    if not sent.is_awaited:
        return NOTHING_WOULD_RUN
    print("waiting for the reply; Ctrl-C leaves, and the request stays", flush=True)
    return _wait(Leases(session.store), Requests(session.store), step, sent.request)


def send_request(store: Store, graph: Graph, step: Step[Any], action: str, *, at: int | None, reason: str) -> Sent:
    """Send a request to the attempt that runs `step`, or will pass milestone `at` of it; refuse a useless one."""
    running = Leases(store).at_work()
    _check(store, graph, step, action, at, running)
    request = Requests(store).send(step.digest, step.name, action, milestone=at, reason=reason)
    held = running.get(step.digest)
    if held is None and at is not None:
        return Sent(request, f"not running; the next attempt that passes step {at:,} publishes it", is_awaited=False)
    if held is None:
        hosts = ", ".join(sorted({f"{each.holder.host} (pid {each.holder.pid})" for each in running.values()}))
        return Sent(request, f"not running; the drivers on {hosts} will not start it", is_awaited=False)
    done = held.progress
    progress = "" if done is None else f", at {done.done:,} of {done.total:,} {done.unit}"
    state = "waits for its resources" if held.is_queued else "is running"
    what = action if at is None else f"{action} step {at:,}"
    to = f"asked to {what}; it {state}, its driver on {held.holder.host} (pid {held.holder.pid}){progress}"
    return Sent(request, to, is_awaited=True)


def _check(
    store: Store, graph: Graph, step: Step[Any], action: str, at: int | None, running: Mapping[str, Held]
) -> None:
    known = actions_of(step)
    if action not in known:
        raise UserError(f"tell {step.name} {action}: the step takes {_listed(step)}.{nearest(action, known)}")
    if at is not None:
        _check_milestone(store, graph, step, action, at, is_running=step.digest in running)
    if step.digest in running:
        return
    is_done = Records(store).find(step.key) is not None
    other = next((each.holder for each in running.values() if each.holder.name == step.name), None)
    if other is None and (at is not None or (action == STOP and running and not is_done)):
        return
    hint = "" if is_done else " If you have just started it, repeat the command in a few seconds."
    if other is not None:
        hint = (
            f" On {other.host} (pid {other.pid}) a step of that name runs with another identity. Add the options with "
            "which its driver was started (--set and the pipeline's own), and use the same code."
        )
    raise UserError(f"tell {step.name} {action}: the step is {'done' if is_done else 'not running'}.{hint}")


def _check_milestone(store: Store, graph: Graph, step: Step[Any], action: str, at: int, *, is_running: bool) -> None:
    where, records = f"tell {step.name} {action} --at {at}", Records(store)
    if action != PUBLISH:
        raise UserError(f"{where}: only `publish` takes a step. Remove --at.")
    if records.find(key_of(step.digest, at)) is not None:
        raise UserError(f"{where}: step {at:,} is published already.")
    reason = LostMilestones(graph, store).of_milestone(step.at(step=at))
    if isinstance(reason, MilestoneOutsideRun):
        raise UserError(f"{where}: use a step from {reason.begin + 1:,} to {reason.end:,}.")
    if reason is not None and not is_running:
        raise UserError(f"{where}: {reason}.")


def _wait(leases: Leases, requests: Requests, step: Step[Any], request: Request) -> int:
    gone_since = None
    while True:
        is_running = step.digest in leases.at_work()
        reply = requests.reply_to(request)  # after the lease: an attempt may reply just before its end
        if reply is not None:
            print(f"{step.name}: {reply.text}")
            return FAILED if reply.is_declined else NOTHING_WOULD_RUN
        gone_since = None if is_running else gone_since or time.monotonic()
        if gone_since is not None and time.monotonic() - gone_since > GONE_SECONDS:
            print(f"{step.name}: ended without a reply; another attempt of the same driver still gets the request")
            return FAILED
        time.sleep(POLL_SECONDS)


def _print_all(requests: Requests, step: Step[Any]) -> None:
    found = [(request, requests.reply_to(request)) for request in requests.of(step.digest)]
    for damaged in requests.damaged.values():
        print(damaged)
    if not found:
        print(f"{step.name}: no requests yet; it takes {_listed(step)}")
    for request, reply in found:
        print(f"{request.sent}  {request.text}")
        print(f"{' ' * len(request.sent)}  {'no reply' if reply is None else f'{reply.text} ({reply.sent})'}")


def actions_of(step: Step[Any]) -> tuple[str, ...]:
    """Return the actions that a running step of this kind takes."""
    return (STOP, *step.kind.requests)


def _listed(step: Step[Any]) -> str:
    return ", ".join(repr(action) for action in actions_of(step))
