"""A driver whose step can be held: python zombie_driver.py PREFIX MARKS. Its leases go stale within a second.

The step counts to 12 and publishes 5 and 10. It leaves a mark before each count, and waits at 7 while `MARKS/hold` is
there, deaf to all wishes to stop, as a trainer in the middle of an update is.
"""

import sys
import time
from pathlib import Path

from pydantic import BaseModel

from marin_dag import lease, run
from marin_dag.live import display_for
from marin_dag.local_backend import LocalBackend
from marin_dag.step import Runtime, Step, StepContext, StopAt, step
from marin_dag.store import open_store
from tests.marin_dag.toy_steps import Count, mark, write_file


class HeldConfig(BaseModel, frozen=True, extra="forbid"):
    until_step: StopAt[int]
    marks: Runtime[str]


@step()
def held(config: HeldConfig, context: StepContext) -> Count:
    start = max(context.milestones(), default=0)
    for number in range(start, config.until_step):
        mark(config.marks, f"count{number}")
        while number == 7 and (Path(config.marks) / "hold").exists():
            time.sleep(0.01)
        if (number + 1) % 5 == 0:
            write_file(f"{context.output_path}/step-{number + 1}/value.txt", str(number + 1))
            context.publish(number + 1, f"step-{number + 1}", Count(step=number + 1, value=number + 1))
    write_file(f"{context.output_path}/value.txt", str(config.until_step))
    return Count(step=config.until_step, value=config.until_step)


def the_step(marks: str) -> Step[Count]:
    return held("held", HeldConfig(until_step=12, marks=marks))


def main(prefix: str, marks: str) -> int:
    lease.HEARTBEAT_SECONDS, lease.LOST_SECONDS, lease.STALE_SECONDS = 0.2, 0.4, 0.8
    run.ELSEWHERE_POLL_SECONDS = 0.1
    display = display_for(stream_is_terminal=False)
    return run.Run([the_step(marks)], open_store(prefix), LocalBackend(), display, command="").run()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
