"""A driver whose step can be held: python zombie_driver.py PREFIX MARKS STEP. Its leases expire within a second.

Step `held` counts to 12 and publishes 5 and 10. It writes a mark before each count, and waits at 7 as long as
`MARKS/hold` exists, ignoring requests to stop.

Step `signed` makes four shards, each with the pid of its maker. It waits in shard 2 in the same way, and before it
reads that shard back, as long as `MARKS/hold-reading` exists.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from marin_dag.graph.step import Runtime, Step, StepContext, StopAt, step
from marin_dag.ledger import lease
from marin_dag.run import driver as run
from marin_dag.run import shards
from marin_dag.run.live import display_for
from marin_dag.run.local.backend import LocalBackend
from marin_dag.store.prefix import open_store
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


class SignedConfig(BaseModel, frozen=True, extra="forbid"):
    num_shards: int
    marks: Runtime[str]


class Signatures(BaseModel, frozen=True, extra="forbid"):
    made_by: tuple[int, ...]


def sign(item: tuple[int, str], path: str) -> int:
    number, marks = item
    mark(marks, f"shard{number}")
    while number == 2 and (Path(marks) / "hold").exists():
        time.sleep(0.01)
    write_file(f"{path}/made-by.txt", str(os.getpid()))
    return os.getpid()


@step()
def signed(config: SignedConfig, context: StepContext) -> Signatures:
    items = [(number, config.marks) for number in range(config.num_shards)]
    return Signatures(made_by=tuple(context.map(sign, items, in_flight=1)))


def hold_reading(marks: Path) -> None:
    """Write a mark when a shard is finished; wait before shard 2 is read back if it was made here."""
    made: set[int] = set()
    call, read = shards.ShardCall.__call__, shards.ShardMap._read

    def called(self: shards.ShardCall) -> None:
        call(self)
        made.add(self.item[0])
        mark(str(marks), f"finished{self.item[0]}")

    def read_late(self: shards.ShardMap, *which: Any) -> shards.Shard:
        while max(made, default=0) == 2 and (marks / "hold-reading").exists():
            time.sleep(0.01)
        return read(self, *which)

    shards.ShardCall.__call__, shards.ShardMap._read = called, read_late  # type: ignore[method-assign]


def the_signed_step(marks: str) -> Step[Signatures]:
    return signed("signed", SignedConfig(num_shards=4, marks=marks))


def main(prefix: str, marks: str, name: str) -> int:
    lease.HEARTBEAT_SECONDS, lease.LOST_SECONDS, lease.STALE_SECONDS = 0.2, 0.4, 0.8
    run.ELSEWHERE_POLL_SECONDS = 0.1
    display = display_for(stream_is_terminal=False)
    hold_reading(Path(marks))
    item = {"held": the_step, "signed": the_signed_step}[name](marks)
    return run.Run([item], open_store(prefix), LocalBackend(), display, command="").run()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
