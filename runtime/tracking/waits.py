"""Waits: how long a phase waited for data, and for what, from the event logs of its attempts.

A committed output holds no times, for they differ between equal runs; so this is read from the work folder, whenever
somebody asks.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

PAGE_FILE = "waits.html"
"""Above the folder of a report, which links there: a page of times is no part of an output."""


@dataclasses.dataclass(frozen=True)
class Stall:
    """One wait of more than a second."""

    step: int
    """Updates finished before it."""
    cause: str
    """What most of it was for."""
    seconds: float


@dataclasses.dataclass(frozen=True)
class Waits:
    """Of one phase, all its attempts together."""

    phase: str
    num_attempts: int
    seconds: float
    """In the loop: from its first batch being asked for to the last that is known."""
    waited_seconds: float
    by_cause: Mapping[str, float]
    """Seconds; causes of less than a millisecond are left out."""
    stalls: tuple[Stall, ...]
    """In the order in which they happened."""

    @property
    def share(self) -> float:
        """Of the time in the loop."""
        return self.waited_seconds / self.seconds if self.seconds else 0.0

    @property
    def stalls_by_cause(self) -> dict[str, tuple[int, float]]:
        """Number and seconds of the stalls."""
        found: dict[str, tuple[int, float]] = {}
        for stall in self.stalls:
            number, seconds = found.get(stall.cause, (0, 0.0))
            found[stall.cause] = number + 1, seconds + stall.seconds
        return found


def waits_of(phase: str, attempts: Iterable[Sequence[Mapping[str, Any]]]) -> Waits:
    """Adds up what the events of each attempt (of one host: all wait together) say of its waits.

    An attempt that was killed counts up to its last `progress` event, which it wrote every ten seconds; its stalls all.
    """
    num_attempts, seconds, waited = 0, 0.0, 0.0
    by_cause: dict[str, float] = {}
    stalls: list[Stall] = []
    for events in attempts:
        begun = [event for event in events if event["event"] == "begin"]
        if not begun:
            continue
        num_attempts += 1
        stalls += [
            Stall(event["step"], event["cause"], event["waited_for_data_seconds"])
            for event in events
            if event["event"] == "stall"
        ]
        told = [event for event in events if event["event"] == "progress"]
        if told:
            seconds += told[-1]["elapsed_seconds"] - begun[0]["elapsed_seconds"]
            waited += told[-1]["waited_for_data_seconds"]
            for cause, part in told[-1]["waited_by_cause"].items():
                by_cause[cause] = by_cause.get(cause, 0.0) + part
    return Waits(phase, num_attempts, seconds, waited, dict(sorted(by_cause.items())), tuple(stalls))
