"""pin STEP: keep its output even when no pipeline names it any more. Without a step: list the pins."""

from typing import Any

from marin_dag.cli.session import NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.ledger.pins import Pins
from marin_dag.ledger.records import Records


def _pin(session: Session) -> int:
    pins = Pins(session.store)
    if not session.parsed.names:
        every = pins.all()
        if not every:
            print(f"nothing is pinned under {session.store.prefix}")
        for pin in every:
            because = f": {pin.because}" if pin.because else ""
            print(f"{pin.name:<36} {pin.key[:8]}{pin.key[64:]}  by {pin.author}, {pin.created[:10]}{because}")
        return NOTHING_WOULD_RUN
    step = session.graph().step(session.step)
    if session.parsed.unpin:
        pins.unpin(step.key, step.name)
        print(f"{step.name}: no longer pinned")
        return NOTHING_WOULD_RUN
    if Records(session.store).find(step.key) is None:
        raise UserError(f"pin {step.name}: it is not committed. Run it first.")
    is_new = pins.pin(step.key, step.name, session.parsed.because)
    print(f"{step.name}: {'pinned' if is_new else 'was pinned already'}; `gc` keeps it")
    print(f"  take it back  {session.line('pin', step.name, '--unpin', without=['--because'])}")
    return NOTHING_WOULD_RUN


def _add_arguments(parser: Any) -> None:
    parser.add_argument("--unpin", action="store_true", help="(pin) remove the pin")


COMMAND = Command(
    "pin",
    "[STEP] [--unpin]",
    "keep an output even when no pipeline names it",
    _pin,
    0,
    1,
    _add_arguments,
    options=("--set", "--because"),
)
