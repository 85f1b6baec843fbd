"""TensorBoard: the curves of a phase as an event file, written whole each time."""

import shlex
import sys
import time
from pathlib import Path

from runtime.tracking.curves import Curves, ExportError

SUFFIX = ".curves"
"""Tells our event files from others in the folder."""


def refuse_missing_package() -> None:
    """Raises ExportError; for whoever wants to know before there is something to write."""
    try:
        import tensorboardX.event_file_writer  # noqa: F401
    except ImportError as error:
        raise ExportError(
            "event files for TensorBoard are written by the package `tensorboardX`, which is not installed; install "
            f"it: {shlex.join([sys.executable, '-m', 'pip', 'install', 'tensorboardX'])}"
        ) from error


def write_events(curves: Curves, folder: Path) -> Path:
    """The event file, one event an update; what an earlier call wrote into `folder` is deleted when it is complete.

    Tables tell no times, which would differ from run to run: all events have the time of this call.
    """
    refuse_missing_package()
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary

    folder.mkdir(parents=True, exist_ok=True)
    earlier = set(folder.glob(f"events.out.tfevents.*{SUFFIX}"))
    writer = EventsWriter(str(folder / "events"), SUFFIX)
    now = time.time()
    for step, figures in curves.rows():
        values = [Summary.Value(tag=name, simple_value=value) for name, value in figures.items()]
        writer.write_event(Event(wall_time=now, step=step, summary=Summary(value=values)))
    writer.close()
    written = Path(writer._file_name)
    for file in earlier - {written}:
        file.unlink(missing_ok=True)
    return written
