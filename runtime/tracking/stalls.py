"""Data stalls: how long a phase waited for data, and for what, from the event logs of its attempts.

Times differ between equal runs, so they are in the work folder and in no output.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Stall:
    """A wait of more than a second."""

    step: int
    """Updates finished before it."""
    cause: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class DataStalls:
    """Data stalls of one phase, all its attempts together."""

    phase: str
    num_attempts: int
    seconds: float
    """Time in the loop, from the request for the first batch to the last known event."""
    waited_seconds: float
    by_cause: Mapping[str, float]
    """Seconds; causes of less than a millisecond are left out."""
    stalls: tuple[Stall, ...]
    """Stalls in order of time."""

    @property
    def share(self) -> float:
        return self.waited_seconds / self.seconds if self.seconds else 0.0


SECONDS_HEADINGS = ("phase", "#attempts", "#in the loop, s", "#waited, s", "#share", "#stalls", "for")
STALLS_HEADINGS = ("phase", "stalled for", "#stalls", "#seconds", "#longest, s", "#before step")
"""Headings of tables; "#" marks numbers."""


def seconds_rows(phases: Iterable[DataStalls]) -> list[list[str]]:
    """Return a row for each phase, with the causes of its waits, the longest first."""
    rows = []
    for each in phases:
        causes = sorted(each.by_cause.items(), key=lambda item: -item[1])
        waited = [f"{each.seconds:,.1f}", f"{each.waited_seconds:.2f}", f"{each.share:.2%}", str(len(each.stalls))]
        listed = ", ".join(f"{cause} {seconds:.2f} s" for cause, seconds in causes)
        rows.append([each.phase, str(each.num_attempts), *waited, listed])
    return rows


def stalls_rows(phases: Iterable[DataStalls]) -> list[list[str]]:
    """Return number, seconds and the longest of the stalls, by phase and cause."""
    rows = []
    for each in phases:
        for cause in sorted({stall.cause for stall in each.stalls}):
            found = [stall for stall in each.stalls if stall.cause == cause]
            longest = max(found, key=lambda stall: stall.seconds)
            seconds = f"{sum(stall.seconds for stall in found):.1f}", f"{longest.seconds:.1f}"
            rows.append([each.phase, cause, f"{len(found):,}", *seconds, f"{longest.step + 1:,}"])
    return rows


def sum_stalls(phase: str, attempts: Iterable[Sequence[Mapping[str, Any]]]) -> DataStalls:
    """Return the data stalls in the events of each attempt; one host's events are enough, as hosts wait together.

    A killed attempt counts up to its last `progress` event, written every ten seconds; its stalls all count.
    """
    num_attempts, seconds, waited = 0, 0.0, 0.0
    by_cause: dict[str, float] = {}
    stalls: list[Stall] = []
    for events in attempts:
        begin = next((event for event in events if event["event"] == "begin"), None)
        if begin is None:
            continue
        num_attempts += 1
        stalls += [
            Stall(event["step"], event["cause"], event["waited_for_data_seconds"])
            for event in events
            if event["event"] == "stall"
        ]
        if progress := [event for event in events if event["event"] == "progress"]:
            last = progress[-1]
            seconds += last["elapsed_seconds"] - begin["elapsed_seconds"]
            waited += last["waited_for_data_seconds"]
            for cause, part in last["waited_by_cause"].items():
                by_cause[cause] = by_cause.get(cause, 0.0) + part
    return DataStalls(phase, num_attempts, seconds, waited, dict(sorted(by_cause.items())), tuple(stalls))
