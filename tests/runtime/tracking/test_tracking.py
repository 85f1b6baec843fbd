"""Metrics tables are deterministic; event logs survive a kill; W&B runs offline or says why it cannot."""

import json
import math
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.tracking import events as events_module
from runtime.tracking.events import EventLog, read_events
from runtime.tracking.metrics import INTEGERS, MetricsError, MetricsRow, MetricsTable
from runtime.tracking.wandb_export import WandbExport, WandbMissingError


def row(step: int, loss: float = 2.5) -> MetricsRow:
    return MetricsRow(step, step * 2**40, 4, 28, 1e-3, loss, 0.0, 1.0, 0.1, 10.0, 3.4)


def table(*rows: MetricsRow) -> MetricsTable:
    filled = MetricsTable()
    for one in rows:
        filled.append(one)
    return filled


@given(losses=st.lists(st.floats(allow_nan=False), max_size=20), cut=st.integers(0, 20))
def test_a_table_carried_through_parquet_in_the_middle_ends_with_the_same_bytes(losses, cut):
    rows = [row(step, loss) for step, loss in enumerate(losses, start=1)]
    carried = MetricsTable.from_parquet(table(*rows[:cut]).to_parquet())
    for one in rows[cut:]:
        carried.append(one)
    assert carried.to_parquet() == table(*rows).to_parquet()
    assert [carried[index] for index in range(len(carried))] == rows


def test_a_row_out_of_order_is_refused():
    with pytest.raises(MetricsError, match="step 4 cannot follow step 2"):
        table(row(1), row(2), row(4))


def test_a_copy_is_not_reached_by_later_rows():
    first = table(row(1))
    copy = first.copy()
    first.append(row(2))
    assert (len(first), len(copy)) == (2, 1)


def test_the_final_loss_is_the_mean_of_the_last_rows():
    filled = table(row(1, 9.0), row(2, 2.0), row(3, 1.0))
    assert filled.mean_loss_of_last(2) == 1.5
    assert filled.mean_loss_of_last(20) == 4.0
    assert MetricsTable().mean_loss_of_last(2) is None
    assert table(row(1, math.nan)._replace(is_skipped=1)).mean_loss_of_last(2) is None


def test_a_foreign_table_is_refused_by_its_columns():
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.table({"loss": [1.0]}), buffer)
    with pytest.raises(MetricsError, match=r"columns recorded: \['loss'\]; now: \['step'"):
        MetricsTable.from_parquet(buffer.getvalue())
    assert set(INTEGERS) < set(MetricsRow._fields)


def test_events_are_on_the_disk_line_by_line_and_a_torn_last_line_is_left_out(tmp_path):
    path = tmp_path / "events" / "attempt.jsonl"
    log = EventLog(str(path))
    log.write("begin", step=1, kernels={"loss": "chunked"})
    assert [event["event"] for event in read_events(str(path))] == ["begin"]
    with path.open("a") as file:
        file.write('{"event": "cut sho')
    (event,) = read_events(str(path))
    assert event["kernels"] == {"loss": "chunked"}
    assert set(event) == {"event", "time", "elapsed_seconds", "step", "kernels"}
    log.close()


def test_events_in_a_bucket_are_complete_once_closed(monkeypatch):
    monkeypatch.setattr(events_module, "REMOTE_FLUSH_SECONDS", 1e9)
    with EventLog("memory://run/events/1.jsonl") as log:
        for step in range(3):
            log.write("step", step=step)
    with fsspec.open("memory://run/events/1.jsonl", "r") as file:
        assert [json.loads(line)["step"] for line in file] == [0, 1, 2]


LOG_TWO_ATTEMPTS = """
import sys
from tests.runtime.tracking.test_tracking import row
from runtime.tracking.wandb_export import WandbExport
for steps in ((1, 2, 3), (3, 4)):
    identity = {"project": "p", "run_id": "0123456789abcdef", "name": "phase"}
    export = WandbExport(**identity, directory=sys.argv[1], config={"seed": 0})
    for step in steps:
        export.log(row(step))
    export.finish()
"""


def test_wandb_writes_offline_runs_under_one_id(tmp_path):
    """In a child: W&B starts a service of its own, and its warnings are not ours."""
    subprocess.run([sys.executable, "-c", LOG_TWO_ATTEMPTS, str(tmp_path)], check=True, timeout=480)
    # A folder an attempt, named by the second it began in: the second one of a second gets a suffix, the file does not.
    logs = sorted((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert [log.name for log in logs] == ["run-0123456789abcdef.wandb"] * 2


def test_wandb_asked_for_and_missing_is_an_error_with_the_cure(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(WandbMissingError, match=r"wandb_project='p' .* is not installed; install the extra"):
        WandbExport(project="p", run_id="1", name="phase", directory=str(tmp_path), config={})


def test_wandb_cannot_write_into_a_bucket(tmp_path):
    with pytest.raises(ValueError, match="W&B writes offline runs to a local folder only"):
        WandbExport(project="p", run_id="1", name="phase", directory="gs://bucket/work", config={})


def test_importing_the_export_does_not_import_wandb():
    code = "import sys, runtime.tracking.wandb_export; assert 'wandb' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path.cwd(), timeout=480)
