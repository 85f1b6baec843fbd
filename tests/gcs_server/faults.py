"""Faults: what goes wrong on purpose, with which requests and how often; the same each time for one seed."""

import dataclasses
import random
import re
import threading
from typing import Any, Literal

Kind = Literal["status", "slow", "reset", "lost_reply", "truncated", "short", "corrupt"]


@dataclasses.dataclass(frozen=True)
class Fault:
    """One kind of trouble.

    Attributes:
        kind: `status`: answers `status` and applies nothing. `slow`: waits `seconds`, then goes on. `reset`: cuts the
            connection and applies nothing. `lost_reply`: applies the request, then cuts the connection.
            `truncated`: sends half of the body that it announced, then cuts. `short`: sends half of the body and
            announces just that. `corrupt`: changes one byte of the body.
        where: a regular expression, searched in `METHOD /path?query` with %-escapes undone.
        probability: of each request that matches.
        count: how many times at most; None for no limit.
        seed: of the draws.
        status: of the answer, for `status`.
        seconds: the wait, for `slow`; the Retry-After header, for `status`, where it is not 0.
    """

    kind: Kind
    where: str = ""
    probability: float = 1.0
    count: int | None = None
    seed: int = 0
    status: int = 503
    seconds: float = 0.0


class Faults:
    """The faults in force; of those that match a request the first that is drawn strikes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed: list[tuple[Fault, random.Random, list[int]]] = []

    def add(self, fault: Fault) -> None:
        re.compile(fault.where)
        with self._lock:
            self._armed.append((fault, random.Random(fault.seed), [0]))

    def clear(self) -> None:
        with self._lock:
            self._armed.clear()

    def strike(self, request: str) -> Fault | None:
        """The fault of this request, if it has one."""
        with self._lock:
            for fault, draws, num_struck in self._armed:
                if fault.count is not None and num_struck[0] >= fault.count:
                    continue
                if re.search(fault.where, request) and draws.random() < fault.probability:
                    num_struck[0] += 1
                    return fault
        return None


def fault_from_json(values: dict[str, Any]) -> Fault:
    return Fault(**values)
