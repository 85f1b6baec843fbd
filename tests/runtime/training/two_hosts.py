"""A JAX process of two that agree before each step: python two_hosts.py COORDINATOR INDEX.

Host 0 has its batch and waits in the agreement; host 1 waits for a batch that never comes.
"""

import sys
import threading
from collections.abc import Iterator

import jax

from runtime.data import prefetch
from runtime.data.prefetch import Prefetch
from runtime.parallel.hosts import Agreement, StopNotice, join_hosts
from runtime.training import control as control_module
from runtime.training.control import STEP_LIMIT, Action, Control


class Asked(Exception):  # noqa: N818 -- as the loop's own
    """Raised while it waits for the batch."""


def wait_for_a_batch(control: Control) -> None:
    never = threading.Event()

    def source() -> Iterator[int]:
        never.wait()
        yield from ()

    def hear() -> None:
        if control.is_stopping():
            raise Asked

    with Prefetch(source(), 1, unblock=never.set, while_waiting=hear) as batches:
        try:
            next(batches)
        except Asked:
            return
    raise AssertionError("there is no batch")


def main(coordinator: str, index: int) -> None:
    prefetch.CALL_BACK_SECONDS = control_module.POLL_SECONDS = 0.1
    join_hosts(coordinator=coordinator, num_hosts=2, index=index)

    agree = Agreement("two hosts")

    def told_agree(number: int) -> int:
        print(f"says {number // STEP_LIMIT}", flush=True)
        return agree(number)

    control = Control(agree=told_agree, notice=StopNotice("two hosts"))
    with control.listening():
        assert control.decide(0, until_step=9).action == Action.CONTINUE
        print("updated", flush=True)
        if index == 1:
            wait_for_a_batch(control)
        print("hears", control.decide(1, until_step=9).action.name, control.reason, flush=True)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
