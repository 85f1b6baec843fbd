"""Profiles: traces of the devices and the host over a few training steps, made on request.

JAX's profiler writes them (https://docs.jax.dev/en/latest/profiling.html), one for each host: `.xplane.pb` for XProf
and TensorBoard, and `.trace.json.gz` for Perfetto. They lie in the work folder beside the event log, never in a
committed output. A profile that fails is no error of the run.
"""

import logging
import tempfile
import threading
from pathlib import Path

import fsspec
import jax

from runtime.tracking.events import EventLog
from runtime.training.control import Decision

PROFILED_STEPS = 5
KINDS = (".xplane.pb", ".trace.json.gz")
CLOSE_SECONDS = 60.0
"""How long the end of a run waits for a trace that is being uploaded."""

logger = logging.getLogger(__name__)


class Profiler:
    """Traces one range of training steps at a time."""

    def __init__(self, folder: str, events: EventLog) -> None:
        """`folder` holds all profiles of the run, for TensorBoard's `--logdir`."""
        self._folder, self._events = folder, events
        self._decision: Decision | None = None
        self._begin_step = self._end_step = 0
        self._traces: tempfile.TemporaryDirectory[str] | None = None
        self._writers: list[threading.Thread] = []

    def begin(self, step: int, until_step: int, decision: Decision) -> None:
        """Trace the steps after `step`; the requests get their reply when the trace is written."""
        if self._decision is not None:
            decision.refuse(f"steps {self._begin_step + 1:,} to {self._end_step:,} are being profiled; ask again then")
            return
        try:
            self._traces = tempfile.TemporaryDirectory(prefix="profile", ignore_cleanup_errors=True)
            jax.profiler.start_trace(self._traces.name)
        except Exception as error:  # another profiler in this process, a full disk
            self._drop()
            logger.warning("the profiler does not start (%s: %s)", type(error).__name__, error)
            decision.refuse(f"JAX's profiler does not start: {type(error).__name__}: {error}")
            return
        self._decision = decision
        self._begin_step, self._end_step = step, min(step + PROFILED_STEPS, until_step)

    def is_due_at(self, step: int) -> bool:
        """Return whether `step` is the last step of the trace."""
        return self._decision is not None and step == self._end_step

    def end(self) -> None:
        """End the trace; a thread writes it to the folder and replies."""
        decision, self._decision, traces = self._decision, None, self._traces
        assert decision is not None and traces is not None
        first, last = self._begin_step + 1, self._end_step
        folder = f"{self._folder}/plugins/profile/steps-{first}-{last}"
        try:
            jax.profiler.stop_trace()
        except Exception as error:  # it writes the trace, to a disk that may be full
            self._drop()
            _refuse(decision, folder, error)
            return
        writer = threading.Thread(
            target=self._write, args=(decision, folder, traces, first, last), name="profile writer", daemon=True
        )
        self._writers.append(writer)
        writer.start()

    def close(self) -> None:
        """Drop a trace that is not complete, and wait for those that are being written."""
        if self._decision is not None:
            self._decision = None
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
        self, decision: Decision, folder: str, traces: tempfile.TemporaryDirectory[str], first: int, last: int
    ) -> None:
        try:
            filesystem, in_bucket = fsspec.core.url_to_fs(folder)
            filesystem.makedirs(in_bucket, exist_ok=True)
            for kind in KINDS:
                (path,) = Path(traces.name).rglob(f"*{kind}")
                # JAX names the file after the machine, which may run several hosts of a gang.
                filesystem.put_file(str(path), f"{in_bucket}/host-{jax.process_index()}{kind}")
        except Exception as error:  # a disk, or the client of any bucket
            _refuse(decision, folder, error)
            return
        finally:
            traces.cleanup()
        paths = [f"{folder}/host-{jax.process_index()}{kind}" for kind in KINDS]
        self._events.write("profile", step=last, first_step=first, paths=paths)
        hosts = "" if jax.process_count() == 1 else f"; this is the first of {jax.process_count()} hosts"
        decision.reply(
            f"profiled steps {first:,} to {last:,}: {folder} (.trace.json.gz opens in ui.perfetto.dev{hosts})"
        )


def _refuse(decision: Decision, folder: str, error: Exception) -> None:
    logger.warning("the profile %s is lost (%s: %s)", folder, type(error).__name__, error)
    decision.refuse(f"the profile could not be written to {folder}: {type(error).__name__}: {error}")
