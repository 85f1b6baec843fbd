"""Profiles: traces of the devices and the host over a few training steps, made on request.

JAX's profiler writes them (https://docs.jax.dev/en/latest/profiling.html), one for each host: `.xplane.pb` for XProf
and TensorBoard, and `.trace.json.gz` for Perfetto. They lie in the work folder beside the event log, never in a
committed output. They hold no Python frames. A profile that fails is no error of the run.
"""

import contextlib
import logging
import shutil
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
        self._first_step = self._last_step = 0
        self._traces = ""
        self._writers: list[threading.Thread] = []

    def begin(self, step: int, until_step: int, decision: Decision) -> None:
        """Trace the steps after `step`; the requests get their reply when the trace is written."""
        if self._decision is not None:
            decision.refuse(f"steps {self._first_step:,} to {self._last_step:,} are being profiled; ask again then")
            return
        self._first_step, self._last_step = step + 1, min(step + PROFILED_STEPS, until_step)
        self._traces = ""
        try:
            self._traces = tempfile.mkdtemp(prefix="profile")
            options = jax.profiler.ProfileOptions()
            # To trace Python, JAX sets a profile function in the name of every thread. The audit hook of a step runs
            # then, and may switch threads: new ones fail to start, and the process crashes.
            options.python_tracer_level = 0
            jax.profiler.start_trace(self._traces, profiler_options=options)
        except Exception as error:  # another profiler in this process, a full disk
            _refuse(decision, "JAX's profiler does not start", error)
            shutil.rmtree(self._traces, ignore_errors=True)
            return
        self._decision = decision

    def is_due_at(self, step: int) -> bool:
        """Return whether `step` is the last step of the trace."""
        return self._decision is not None and step == self._last_step

    def end(self) -> None:
        """End the trace; a thread writes it to the folder and replies."""
        decision, self._decision = self._decision, None
        assert decision is not None
        first, last = self._first_step, self._last_step
        folder = f"{self._folder}/plugins/profile/steps-{first}-{last}"
        try:
            jax.profiler.stop_trace()
        except Exception as error:  # it writes the trace, to a disk that may be full
            _refuse(decision, f"the profile could not be written to {folder}", error)
            shutil.rmtree(self._traces, ignore_errors=True)
            return
        arguments = decision, folder, self._traces, first, last
        writer = threading.Thread(target=self._write, args=arguments, name="profile writer", daemon=True)
        self._writers.append(writer)
        writer.start()

    def close(self) -> None:
        """Drop a trace that is not complete, and wait for those that are being written."""
        if self._decision is not None:
            self._decision = None
            with contextlib.suppress(Exception):
                jax.profiler.stop_trace()
            shutil.rmtree(self._traces, ignore_errors=True)
        for writer in self._writers:
            writer.join(CLOSE_SECONDS)

    def _write(self, decision: Decision, folder: str, traces: str, first: int, last: int) -> None:
        paths = []
        try:
            filesystem, in_bucket = fsspec.core.url_to_fs(folder)
            filesystem.makedirs(in_bucket, exist_ok=True)
            for kind in KINDS:
                (path,) = Path(traces).rglob(f"*{kind}")
                # JAX names the file after the machine, which may run several hosts of a gang.
                name = f"host-{jax.process_index()}{kind}"
                filesystem.put_file(str(path), f"{in_bucket}/{name}")
                paths.append(f"{folder}/{name}")
        except Exception as error:  # a disk, or the client of any bucket
            _refuse(decision, f"the profile could not be written to {folder}", error)
            return
        finally:
            shutil.rmtree(traces, ignore_errors=True)
        self._events.write("profile", step=last, first_step=first, paths=paths)
        hosts = "" if jax.process_count() == 1 else f"; this is the first of {jax.process_count()} hosts"
        decision.reply(
            f"profiled steps {first:,} to {last:,}: {folder} (.trace.json.gz opens in ui.perfetto.dev{hosts})"
        )


def _refuse(decision: Decision, what: str, error: Exception) -> None:
    logger.warning("%s (%s: %s)", what, type(error).__name__, error)
    decision.refuse(f"{what}: {type(error).__name__}: {error}")
