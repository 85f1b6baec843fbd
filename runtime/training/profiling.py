"""Profiles: what the devices and the host did in a few updates, traced where somebody asks for it.

A trace is what JAX's profiler writes (https://docs.jax.dev/en/latest/profiling.html), on each host that of the host:
`.xplane.pb` for XProf and TensorBoard, and the same as `.trace.json.gz`, which Perfetto opens. It lies in the work
folder, as the event log does, and never in a committed output.
"""

import logging
import tempfile
from pathlib import Path

import fsspec
import jax

from runtime.tracking.events import EventLog
from runtime.training.control import Order

PROFILED_UPDATES = 5
KINDS = (".xplane.pb", ".trace.json.gz")

logger = logging.getLogger(__name__)


class Profiler:
    """Traces one stretch of updates at a time."""

    def __init__(self, folder: str, events: EventLog) -> None:
        """`folder` is that of all profiles of the run, which TensorBoard is given as `--logdir`."""
        self._folder, self._events = folder, events
        self._order: Order | None = None
        self._begin_step = self._end_step = 0
        self._traces: tempfile.TemporaryDirectory[str] | None = None

    def begin(self, step: int, until_step: int, order: Order) -> None:
        """Traces the updates that follow `step`, and answers when their trace is written."""
        if self._order is not None:
            order.refuse(f"updates {self._begin_step + 1:,} to {self._end_step:,} are being profiled; ask again then")
            return
        traces = tempfile.TemporaryDirectory(prefix="profile")
        try:
            jax.profiler.start_trace(traces.name)
        except RuntimeError as error:  # somebody else profiles this process
            traces.cleanup()
            order.refuse(f"JAX's profiler does not start: {error}")
            return
        self._order, self._traces = order, traces
        self._begin_step, self._end_step = step, min(step + PROFILED_UPDATES, until_step)

    def is_due_at(self, step: int) -> bool:
        """Whether the last update that is traced is the one that ends with `step`."""
        return self._order is not None and step == self._end_step

    def end(self) -> None:
        """Writes the trace, and answers. A trace that cannot be written fails no run."""
        assert self._order is not None
        name = f"steps-{self._begin_step + 1}-{self._end_step}"
        order, folder = self._order, f"{self._folder}/plugins/profile/{name}"
        try:
            paths = self._write(folder)
        except Exception as error:  # of the profiler, of the disk, of any bucket's client
            logger.warning("the profile %s is lost (%s: %s)", name, type(error).__name__, error)
            order.refuse(f"the profile could not be written to {folder}: {type(error).__name__}: {error}")
            return
        updates = f"updates {self._begin_step + 1:,} to {self._end_step:,}"
        self._events.write("profile", step=self._end_step, first_step=self._begin_step + 1, paths=paths)
        order.answer(f"profiled {updates}: {folder} (.trace.json.gz opens in ui.perfetto.dev)")

    def close(self) -> None:
        """Drops the trace of a run that ends before its last update; nobody is answered."""
        if self._order is not None:
            jax.profiler.stop_trace()
            self._drop()

    def _write(self, folder: str) -> list[str]:
        assert self._traces is not None
        try:
            jax.profiler.stop_trace()
            filesystem, in_bucket = fsspec.core.url_to_fs(folder)
            filesystem.makedirs(in_bucket, exist_ok=True)
            for kind in KINDS:
                (path,) = Path(self._traces.name).rglob(f"*{kind}")
                # JAX names it after the machine, on which there may be several hosts of a gang.
                filesystem.put_file(str(path), f"{in_bucket}/host-{jax.process_index()}{kind}")
            return [f"{folder}/host-{jax.process_index()}{kind}" for kind in KINDS]
        finally:
            self._drop()

    def _drop(self) -> None:
        assert self._traces is not None
        self._traces.cleanup()
        self._order = self._traces = None
