"""Profiles: what the devices and the host did in a few updates, traced where somebody asks for it.

A trace is what JAX's profiler writes (https://docs.jax.dev/en/latest/profiling.html), on each host that of the host:
`.xplane.pb` for XProf and TensorBoard, and the same as `.trace.json.gz`, which Perfetto opens. It lies in the work
folder, as the event log does, and never in a committed output. Nothing that goes wrong with one is an error of the run.
"""

import logging
import tempfile
import threading
from pathlib import Path

import fsspec
import jax

from runtime.tracking.events import EventLog
from runtime.training.control import Order

PROFILED_UPDATES = 5
KINDS = (".xplane.pb", ".trace.json.gz")
CLOSE_SECONDS = 60.0
"""That the end of a run waits for a trace on its way to a bucket."""

logger = logging.getLogger(__name__)


class Profiler:
    """Traces one stretch of updates at a time."""

    def __init__(self, folder: str, events: EventLog) -> None:
        """`folder` is that of all profiles of the run, which TensorBoard is given as `--logdir`."""
        self._folder, self._events = folder, events
        self._order: Order | None = None
        self._begin_step = self._end_step = 0
        self._traces: tempfile.TemporaryDirectory[str] | None = None
        self._writers: list[threading.Thread] = []

    def begin(self, step: int, until_step: int, order: Order) -> None:
        """Traces the updates that follow `step`, and answers when their trace is written."""
        if self._order is not None:
            order.refuse(f"updates {self._begin_step + 1:,} to {self._end_step:,} are being profiled; ask again then")
            return
        try:
            self._traces = tempfile.TemporaryDirectory(prefix="profile", ignore_cleanup_errors=True)
            jax.profiler.start_trace(self._traces.name)
        except Exception as error:  # somebody else profiles this process, a disk is full
            self._drop()
            logger.warning("a profile does not begin here (%s: %s)", type(error).__name__, error)
            order.refuse(f"JAX's profiler does not start: {type(error).__name__}: {error}")
            return
        self._order = order
        self._begin_step, self._end_step = step, min(step + PROFILED_UPDATES, until_step)

    def is_due_at(self, step: int) -> bool:
        """Whether the last update that is traced is the one that ends with `step`."""
        return self._order is not None and step == self._end_step

    def end(self) -> None:
        """Ends the trace; a thread brings it where it belongs, and answers."""
        order, self._order, traces = self._order, None, self._traces
        assert order is not None and traces is not None
        first, last = self._begin_step + 1, self._end_step
        folder = f"{self._folder}/plugins/profile/steps-{first}-{last}"
        try:
            jax.profiler.stop_trace()
        except Exception as error:  # it writes the trace, to a disk that may be full
            self._drop()
            _refuse(order, folder, error)
            return
        writer = threading.Thread(
            target=self._write, args=(order, folder, traces, first, last), name="writes a profile", daemon=True
        )
        self._writers.append(writer)
        writer.start()

    def close(self) -> None:
        """Drops the trace of a run that ends before its last update, and waits for those that are being written."""
        if self._order is not None:
            self._order = None
            try:
                jax.profiler.stop_trace()
            except Exception as error:
                logger.warning("a profile could not be ended (%s: %s)", type(error).__name__, error)
            self._drop()
        for writer in self._writers:
            writer.join(CLOSE_SECONDS)

    def _drop(self) -> None:
        if self._traces is not None:
            self._traces.cleanup()
            self._traces = None

    def _write(
        self, order: Order, folder: str, traces: tempfile.TemporaryDirectory[str], first: int, last: int
    ) -> None:
        try:
            filesystem, in_bucket = fsspec.core.url_to_fs(folder)
            filesystem.makedirs(in_bucket, exist_ok=True)
            for kind in KINDS:
                (path,) = Path(traces.name).rglob(f"*{kind}")
                # JAX names it after the machine, on which there may be several hosts of a gang.
                filesystem.put_file(str(path), f"{in_bucket}/host-{jax.process_index()}{kind}")
        except Exception as error:  # of the disk, of any bucket's client
            _refuse(order, folder, error)
            return
        finally:
            traces.cleanup()
        paths = [f"{folder}/host-{jax.process_index()}{kind}" for kind in KINDS]
        self._events.write("profile", step=last, first_step=first, paths=paths)
        hosts = "" if jax.process_count() == 1 else f"; of {jax.process_count()} hosts this is the first"
        order.answer(
            f"profiled updates {first:,} to {last:,}: {folder} (.trace.json.gz opens in ui.perfetto.dev{hosts})"
        )


def _refuse(order: Order, folder: str, error: Exception) -> None:
    logger.warning("the profile %s is lost (%s: %s)", folder, type(error).__name__, error)
    order.refuse(f"the profile could not be written to {folder}: {type(error).__name__}: {error}")
