"""TensorBoard export: the curves of a phase as an event file, written whole each time."""

import time
from pathlib import Path

from runtime.tracking.curves import Curves
from runtime.tracking.exporting import check_package

PACKAGE, TOOL = "tensorboardX", "TensorBoard"
SUFFIX = ".curves"
"""Ending of our event files, beside others in the folder."""


def write_events(curves: Curves, folder: Path) -> Path:
    """Write the event file, one event an update; delete the file of an earlier call once the new one is complete.

    The tables have no times, so all events have the time of this call.
    """
    check_package(PACKAGE, TOOL)
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
