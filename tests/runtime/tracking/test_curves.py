"""Curves have each update of a phase once, with its figures, also as exported to TensorBoard and W&B."""

import json
import math
import subprocess
import sys
import tracemalloc
import types
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.tables.parquet_bytes import from_parquet, to_parquet
from runtime.tracking import curves as curves_module
from runtime.tracking.curves import Curves, curves_of, with_norms, with_sources, with_validation
from runtime.tracking.exports import SUFFIX, ExportError, TensorBoard, WeightsAndBiases
from runtime.tracking.metrics import MetricsRow, MetricsTable
from runtime.tracking.parts import Tensor, norms_fields
from runtime.tracking.source_losses import SourceLosses, SourceLossesTable
from tests.catalogue import expect_error

LOSSES = (3.5, math.nan, 2.5, 2.25)
OF_CODE = {1: (8, 16.0, 24.0), 2: (8, math.nan, math.nan), 3: (0, 0.0, 0.0)}
"""Predicted positions and the sums of their losses and log-normalisers, by step; the last update draws none."""


def tables() -> tuple[bytes, bytes]:
    """Return tables of four updates, the second of them skipped; `code` is drawn in the first three."""
    metrics, losses = MetricsTable(), SourceLossesTable()
    for step, loss in enumerate(LOSSES, start=1):
        metrics.append(MetricsRow(step, step * 2**40, 4, 28, 1e-3, loss, 0.0, 1.0, 0.1, 10.0, 3.4, int(loss != loss)))
        rows = [SourceLosses(step, "code", "c", 0.25, 1, *OF_CODE[step])] if step in OF_CODE else []
        losses.append([*rows, SourceLosses(step, "web", "w", 1 - 0.25 * len(rows), 3, 10, 10 * step, 10 * (step + 2))])
    return metrics.to_parquet(), losses.to_parquet()


def curves_behind(after_step: int) -> Curves:
    metrics, source_losses = tables()
    curves = curves_of(metrics, after_step=after_step)
    return with_sources(curves, source_losses) if curves.step.size else curves


def test_an_update_has_its_own_figures_and_no_others():
    rows = dict(curves_behind(0).rows())
    assert list(rows) == [1, 2, 3, 4]
    of_code = ("loss_by_source/code", "log_normalizer_by_source/code", "share_by_source/code")
    names = ("train/loss", "train/is_skipped", *of_code, "loss_by_source/web", "log_normalizer_by_source/web")
    assert [tuple(rows[step].get(name) for name in names) for step in rows] == [
        (3.5, 0, 2, 3, 0.25, 1, 3),
        (None, 1, None, None, 0.25, 2, 4),
        (2.5, 0, None, None, 0.25, 3, 5),
        (2.25, 0, None, None, None, 4, 6),
    ]
    assert rows[4]["train/consumed_tokens"] == 4 * 2**40 and "train/step" not in rows[4]


def validation(step: int, **bits_per_byte: dict[str, float]) -> dict:
    means = {which: sum(found.values()) / len(found) for which, found in bits_per_byte.items()}
    fields = {"bits_per_byte": bits_per_byte, "mean_bits_per_byte": means, "tokens_per_domain": 64}
    return {"event": "validation", "step": step, **fields}


def test_right_answers_have_curves_and_another_number_of_answers_is_another_curve():
    def measured(step: int, number: int, value: float) -> dict:
        answers = {"answer_bits_per_byte": {"hot": {"piqa_0shot": value}, "slow": {"piqa_0shot": 9.0}}}
        return validation(step, hot={"web": 1.0}) | answers | {"num_answers": {"piqa_0shot": number}}

    figures = with_validation(curves_behind(0), [[measured(1, 10, 5.0), measured(2, 20, 4.0), measured(4, 20, 3.0)]])
    curve = figures.figures["answer_bits_per_byte/piqa_0shot"]
    np.testing.assert_array_equal(curve, [np.nan, 4.0, np.nan, 3.0])
    assert np.nanmax(figures.figures["answer_bits_per_byte_slow/piqa_0shot"]) == 9.0
    assert figures.figures["bits_per_byte/mean"][3] == 1.0, "tasks are no domain of the mean"


def test_measurements_of_held_out_text_appear_once_at_saved_steps():
    hot, averaged = {"code": 1.0, "web": 3.0}, {"code": 1.5, "web": 2.0}
    first = [validation(0, hot=averaged), {"event": "begin", "step": 0}, validation(2, hot=hot, averaged=averaged)]
    second = [validation(2, hot=hot, averaged=averaged), validation(4, hot=averaged, averaged=hot)]
    not_saved = [validation(6, hot=hot)]
    curves = with_validation(curves_behind(0), [first, second, not_saved])
    rows = {step: {k: v for k, v in row.items() if k.startswith("bits_per_byte")} for step, row in curves.rows()}
    before = {f"bits_per_byte/{name}": value for name, value in {"mean": 1.75, "code": 1.5, "web": 2.0}.items()}
    assert rows == {
        0: before,
        1: {},
        2: {
            "bits_per_byte/mean": 2.0,
            "bits_per_byte/code": 1.0,
            "bits_per_byte/web": 3.0,
            "bits_per_byte_averaged/mean": 1.75,
            "bits_per_byte_averaged/code": 1.5,
            "bits_per_byte_averaged/web": 2.0,
        },
        3: {},
        4: {
            "bits_per_byte/mean": 1.75,
            "bits_per_byte/code": 1.5,
            "bits_per_byte/web": 2.0,
            "bits_per_byte_averaged/mean": 2.0,
            "bits_per_byte_averaged/code": 1.0,
            "bits_per_byte_averaged/web": 3.0,
        },
    }
    assert curves.newest_validation["mean_bits_per_byte"]["hot"] == 1.75
    assert curves_behind(0).newest_validation is None
    assert with_validation(curves_behind(0), []).figures.keys() == curves_behind(0).figures.keys()
    assert dict(curves.rows())[0] == before, "no update made the state that was measured before the first"
    assert with_validation(curves_behind(2), [first, second]).step.tolist() == [2, 3, 4]


TENSORS = (Tensor("embed_tokens", None), Tensor("layers.down_proj", 2))


def norms(step: int, first: float) -> dict:
    """Return an event as it is read."""
    values = first + np.arange(9, dtype=np.float32).reshape(3, 3)
    return json.loads(json.dumps({"event": "norms", "step": step, **norms_fields(TENSORS, values)}))


def test_norms_by_part_appear_once_at_saved_steps():
    killed, resumed = [norms(2, 1.0), norms(4, 1.0)], [{"event": "begin", "step": 3}, norms(4, math.nan), norms(6, 3.0)]
    attempts = [killed, [norms(4, 2.0)]]
    rows = dict(with_norms(curves_behind(1), attempts).rows())
    assert {step: {k: v for k, v in row.items() if "_by_part/" in k} for step, row in rows.items()} == {
        2: {
            "grad_norm_by_part/embed_tokens": 1.0,
            "grad_norm_by_part/layers.0.down_proj": 2.0,
            "grad_norm_by_part/layers.1.down_proj": 3.0,
            "update_norm_by_part/embed_tokens": 4.0,
            "update_norm_by_part/layers.0.down_proj": 5.0,
            "update_norm_by_part/layers.1.down_proj": 6.0,
            "param_norm_by_part/embed_tokens": 7.0,
            "param_norm_by_part/layers.0.down_proj": 8.0,
            "param_norm_by_part/layers.1.down_proj": 9.0,
        },
        3: {},
        4: {name: value + 1 for name, value in rows[2].items() if "_by_part/" in name},
    }
    assert {name: rows[4][name] for name in curves_behind(1).figures if name in rows[4]} == dict(
        curves_behind(1).rows()
    )[4]
    # A norm that is not finite is no figure, and replaces the norm of an earlier attempt.
    assert not [name for name in dict(with_norms(curves_behind(1), [killed, resumed]).rows())[4] if "_by_part" in name]
    with_both = with_validation(with_norms(curves_behind(0), attempts), [[validation(0, hot={"web": 8.0})]])
    assert [step for step, row in with_both.rows() if "grad_norm_by_part/embed_tokens" in row] == [2, 4]


def test_a_measurement_on_another_number_of_tokens_is_no_point_of_a_curve():
    few = [validation(step, hot={"web": 1.0}) | {"tokens_per_domain": 16} for step in (1, 2)]
    figures = with_validation(curves_behind(0), [few, [validation(2, hot={"web": 3.0})]]).figures
    assert np.array_equal(figures["bits_per_byte/web"], [np.nan, 3, np.nan, np.nan], equal_nan=True)


def test_a_mean_over_fewer_sources_is_no_point_of_the_curve_of_all():
    growing = [validation(1, hot={"web": 1.0}), validation(2, hot={"web": 1.0})]
    whole = [validation(2, hot={"code": 4.0, "web": 1.0}), validation(3, hot={"code": 4.0, "web": 1.0})]
    curves = with_validation(curves_behind(0), [growing, whole])
    figures = curves.figures
    assert np.array_equal(figures["bits_per_byte/web"], [1, 1, 1, np.nan], equal_nan=True)
    assert np.array_equal(figures["bits_per_byte/mean"], [np.nan, 2.5, 2.5, np.nan], equal_nan=True)
    assert sorted(curves.newest_validation["bits_per_byte"]["hot"]) == ["code", "web"]


@pytest.mark.parametrize("newer", [{"bits_per_byte": {"hot": {"code": 4.0, "web": 1.0}}}, {"tokens_per_domain": 16}])
def test_a_measurement_after_the_newest_checkpoint_hides_none_before_it(newer):
    attempts = [[validation(0, hot={"web": 8.0}), validation(4, hot={"web": 2.0})]]
    before = with_validation(curves_behind(0), attempts)
    not_saved = validation(8, hot={"web": 1.0}) | newer
    curves = with_validation(curves_behind(0), [*attempts, [not_saved]])
    assert dict(curves.rows()) == dict(before.rows()) and curves.newest_validation == before.newest_validation
    assert curves.step.tolist() == [0, 1, 2, 3, 4]
    assert np.array_equal(curves.consumed_tokens, [np.nan, *(2.0**40 * np.arange(1, 5))], equal_nan=True)


@given(after_step=st.integers(0, 5), together=st.integers(1, 5))
def test_rows_are_those_after_the_step_however_they_are_grouped(after_step, together):
    whole = dict(curves_behind(0).rows())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curves_module, "ROWS_TOGETHER", together)
        rows = dict(curves_behind(after_step).rows())
    assert rows == {step: figures for step, figures in whole.items() if step > after_step}


def test_a_source_with_two_identities_is_one_curve():
    """The dictionary of the table has the source once for each identity, and earlier sources too."""
    metrics, losses = MetricsTable(), SourceLossesTable()
    for step, source, identity in ((1, "old", "o"), (2, "web", "first"), (3, "web", "second")):
        metrics.append(MetricsRow(step, step, 1, 7, 1e-3, 2.0, 0.0, 1.0, 0.1, 10.0, 3.4))
        losses.append([SourceLosses(step, source, identity, 1.0, 1, 7, 7.0 * step, 14.0 * step)])
    curves = with_sources(curves_of(metrics.to_parquet(), after_step=1), losses.to_parquet())
    of_sources = {name: curve.tolist() for name, curve in curves.figures.items() if "_by_source/" in name}
    assert of_sources == {
        "loss_by_source/web": [2.0, 3.0],
        "log_normalizer_by_source/web": [4.0, 6.0],
        "share_by_source/web": [1.0, 1.0],
    }


def test_a_table_without_log_normalizers_has_all_other_curves():
    metrics, source_losses = tables()
    old = to_parquet(from_parquet(source_losses).drop_columns(["log_normalizer_sum"]))
    rows = dict(with_sources(curves_of(metrics, after_step=0), old).rows())
    assert rows == {
        step: {name: value for name, value in row.items() if not name.startswith("log_normalizer_by_source/")}
        for step, row in curves_behind(0).rows()
    }


@pytest.mark.parametrize("together", [1, 2, 3])
def test_the_number_of_rows_read_together_changes_no_curve(monkeypatch, together):
    whole = dict(curves_behind(0).rows())
    monkeypatch.setattr(curves_module, "READ_TOGETHER", together)
    assert dict(curves_behind(0).rows()) == whole


def test_millions_of_rows_are_read_without_a_string_each(monkeypatch):
    """A string for each row took ten times as long, and twice the memory."""
    num_updates, num_sources = 20_000, 25
    metrics, losses = MetricsTable(), SourceLossesTable()
    for step in range(1, num_updates + 1):
        metrics.append(MetricsRow(step, step, 1, 7, 1e-3, 2.0, 0.0, 1.0, 0.1, 10.0, 3.4))
    losses._sources = [(f"source_{index}", "") for index in range(num_sources)]
    for name, column in losses._columns.items():
        of_row = {"step": lambda row: row // num_sources + 1, "source": lambda row: row % num_sources}.get(name)
        column.extend(np.array([of_row(row) if of_row else 1 for row in range(num_updates * num_sources)]))
    curves = curves_of(metrics.to_parquet(), after_step=0)
    data = losses.to_parquet()
    tracemalloc.start()
    with_sources(curves, data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    kept = 3 * num_sources * num_updates * 8
    assert peak < 2 * kept


IN_ONE_THREAD = """
import os
from runtime.tracking.metrics import MetricsTable
from runtime.tracking.source_losses import SourceLossesTable
from tests.runtime.tracking.test_curves import curves_behind, tables
metrics, losses = tables()
before = len(os.listdir("/proc/self/task"))
curves_behind(0)
MetricsTable.from_parquet(metrics)
SourceLossesTable.from_parquet(losses)
assert len(os.listdir("/proc/self/task")) == before
"""


def test_reading_starts_no_threads():
    """Threads of Arrow aborted four of ten calls of `curves`, a program that ends right after a read."""
    subprocess.run([sys.executable, "-c", IN_ONE_THREAD], check=True, cwd=Path.cwd(), timeout=480)


def events_in(file: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """Read TFRecords: a length, its checksum, the bytes, their checksum."""
    from tensorboardX.proto.event_pb2 import Event

    def masked(data: bytes) -> int:
        crc = google_crc32c.value(data)
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

    data = file.read_bytes()
    while data:
        size = int.from_bytes(data[:8], "little")
        content = data[12 : 12 + size]
        assert int.from_bytes(data[8:12], "little") == masked(data[:8])
        assert int.from_bytes(data[12 + size : 16 + size], "little") == masked(content)
        event = Event.FromString(content)
        data = data[16 + size :]
        if event.HasField("summary"):
            yield event.step, {value.tag: value.simple_value for value in event.summary.value}


def test_an_event_file_has_every_update_and_replaces_the_earlier_one(tmp_path):
    curves = curves_behind(1)
    another = tmp_path / "phase/events.out.tfevents.1.host"
    another.parent.mkdir()
    another.write_bytes(b"of another tool")
    old = another.with_name(f"events.out.tfevents.1.host{SUFFIX}")
    old.write_bytes(b"of an earlier call")
    assert TensorBoard(str(tmp_path)).write(curves, "phase", "", {}) == ["tensorboard", "--logdir", str(tmp_path)]
    (written,) = set((tmp_path / "phase").iterdir()) - {another}
    as_float32 = [(step, {k: float(np.float32(v)) for k, v in figures.items()}) for step, figures in curves.rows()]
    assert list(events_in(written)) == as_float32


WRITE_TWICE = """
import sys
from tests.runtime.tracking.test_curves import curves_behind
from runtime.tracking.exports import WeightsAndBiases
for after_step in (2, 0):
    export = WeightsAndBiases(sys.argv[1], "p")
    print(export.write(curves_behind(after_step), "phase", "0123456789abcdef", {"seed": 0})[-1])
"""


def records_in(file: Path) -> Iterator[bytes]:
    """Read LevelDB's log: blocks of 32 KiB, parts with a checksum, a length and a kind."""
    data, at, record = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 2**15 - at % 2**15 < 7:
            at += 2**15 - at % 2**15
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def test_an_offline_run_has_every_update_and_replaces_the_earlier_one(tmp_path):
    """Runs in a child process, as W&B starts a service."""
    from wandb.proto.wandb_internal_pb2 import Record

    done = subprocess.run(
        [sys.executable, "-c", WRITE_TWICE, str(tmp_path)], check=True, timeout=480, capture_output=True, text=True
    )
    written = Path(done.stdout.splitlines()[-1])
    assert list((tmp_path / "wandb").glob("offline-run-*")) == [written]
    records = [Record.FromString(record) for record in records_in(written / "run-0123456789abcdef.wandb")]
    (run,) = (record.run for record in records if record.HasField("run"))
    assert (run.run_id, run.project, run.display_name) == ("0123456789abcdef", "p", "phase")
    history = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    logged = [{name: value for name, value in row.items() if not name.startswith("_")} for row in history]
    assert logged == [{"step": step, **figures} for step, figures in curves_behind(0).rows()]


@pytest.mark.parametrize("export", [TensorBoard("folder"), WeightsAndBiases("folder", "p")], ids=["board", "wandb"])
def test_a_missing_package_is_an_error(tmp_path, monkeypatch, export):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == export.package] or [export.package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, export.package, None)
    with expect_error(ExportError):
        export.check()
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_wandb_writes_to_another_folder_is_refused_and_deleted(tmp_path, monkeypatch):
    """Without permission W&B uses the temporary folder, and `silent` hides its warning."""
    elsewhere = tmp_path / "tmp/wandb/offline-run-20260101_000000-1"
    elsewhere.mkdir(parents=True)
    calls = []
    run = types.SimpleNamespace(
        settings=types.SimpleNamespace(sync_dir=str(elsewhere)), finish=lambda: calls.append("finish")
    )
    fake = types.SimpleNamespace(init=lambda **_: run, Settings=lambda **_: None)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    with expect_error(ExportError):
        WeightsAndBiases(str(tmp_path / "mine"), "p").write(curves_behind(0), "phase", "1", {})
    assert calls == ["finish"] and not elsewhere.exists()


def test_importing_the_exports_imports_neither_package():
    code = "import sys, runtime.tracking.exports; assert not {'wandb', 'tensorboardX'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path.cwd(), timeout=480)
