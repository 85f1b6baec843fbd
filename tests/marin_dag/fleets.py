"""Fleets: backends of a kill campaign, and the worker processes that it may kill."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from tests.marin_dag import forking_backend
from tests.marin_dag.forking_backend import ForkingBackend
from tests.marin_dag.toy_driver import graph


class Fleet(Protocol):
    """Context manager for the length of a campaign."""

    def __enter__(self) -> Any: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def backend(self, meeting: Path) -> Any:
        """Return a backend for one driver, in its own process."""

    def workers(self, meeting: Path) -> list[int]:
        """Return the process ids of the workers that run steps or shards."""


class ForkedFleet:
    """Runs each attempt as a fork of its driver's process, which outlives the driver."""

    def __enter__(self) -> "ForkedFleet":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def backend(self, meeting: Path) -> Any:
        """See Fleet."""
        return ForkingBackend(meeting)

    def workers(self, meeting: Path) -> list[int]:
        """See Fleet."""
        return forking_backend.workers(meeting)


class RayFleet:
    """Runs attempts as tasks of one Ray cluster, which all drivers join in turn."""

    def __init__(self) -> None:
        self._mark = f"CAMPAIGN={uuid.uuid4().hex}"

    def __enter__(self) -> "RayFleet":
        from tests.ray_nodes import RayNodes

        self._nodes = RayNodes({"num_cpus": 4}, with_dashboard=False, **dict([self._mark.split("=")]))
        self._nodes.__enter__()
        os.environ.update({name: value for name, value in self._nodes.environment.items() if name.startswith("RAY_")})
        import ray  # noqa: F401 -- once, before the forks

        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._nodes.__exit__(kind, error, trace)

    def backend(self, meeting: Path) -> Any:
        """See Fleet."""
        from marin_dag.run.ray.backend import RayBackend

        return RayBackend()

    def workers(self, meeting: Path) -> list[int]:
        """See Fleet. The title of a Ray worker names its task: `ray::both`, `ray::squares: shards 1/4`."""
        names = {step.name for step in graph(0.0, "")}
        return [pid for pid, title in self._titles() if title.partition(":")[0] in names]

    def _titles(self) -> Iterator[tuple[int, str]]:
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):  # ended meanwhile
                if not process.name.isdigit():
                    continue
                title = (process / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
                if title.startswith("ray::") and self._mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                    yield int(process.name), title.removeprefix("ray::")
