"""Faults: planned errors of a server, by request and number; a seed always gives the same ones."""

import dataclasses
import random
import re
import threading
from typing import Any, Literal

Kind = Literal["status", "slow", "reset", "lost_reply", "truncated", "short", "corrupt", "damaged"]


@dataclasses.dataclass(frozen=True)
class Fault:
    """A kind of error.

    Attributes:
        kind: `status`: answers `status`, applies nothing. `slow`: waits `seconds`, then goes on. `reset`: cuts the
            connection, applies nothing. `lost_reply`: applies the request, then cuts the connection. `truncated`: sends
            half of the announced body, then cuts. `short`: announces and sends half of the body. `corrupt`: changes one
            byte of the body. `damaged`: changes one byte of the request's body, then goes on.
        where: regular expression, searched in the unescaped `METHOD /path?query`.
        probability: probability for each matching request.
        count: maximum number; None for no limit.
        seed: seed of the random numbers.
        status: status of the answer, for `status`.
        document: JSON of the answer, for `status`, in place of the usual one.
        seconds: the wait for `slow`; the Retry-After header for `status`, if not 0.
    """

    kind: Kind
    where: str = ""
    probability: float = 1.0
    count: int | None = None
    seed: int = 0
    status: int = 503
    document: str = ""
    seconds: float = 0.0


class Faults:
    """The active faults; the first that matches a request and is drawn applies."""

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
        """Return the fault of a request, if it has one."""
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
