"""Input files: whatever reads a damaged input, no output of it is committed, and the message has the fix."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_dag.graph.step import Step
from marin_dag.ledger.records import Records, record_path
from marin_dag.run import input_files
from marin_dag.run.task import Backend
from marin_dag.store.local import LocalStore
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Store
from tests.catalogue import check_message
from tests.marin_dag.reading_steps import (
    ANYWHERE,
    FILE,
    LOCAL,
    BytesConfig,
    ReadConfig,
    make_bytes,
    read_bytes,
    read_in_shards,
)
from tests.marin_dag.run.test_driver import record, run


def flip(store: Store, path: str, bit: int) -> None:
    """Flip one bit of a file of an output."""
    data = bytearray(store.read(path))
    bit %= 8 * len(data)
    data[bit // 8] ^= 1 << bit % 8
    store.delete(path)
    store.write(path, bytes(data))


def flip_in_output(store: Store, step: Step[Any], bit: int) -> None:
    flip(store, f"{record(store.prefix, step).output_path}/{FILE}", bit)


def check_damage_is_found(store: Store, kind: Any, how: str, backend: Backend | None = None) -> str:
    source = make_bytes("source", BytesConfig(content="a"))
    reader = kind("reader", ReadConfig(source=source, how=how))
    assert run(store.prefix, [source])[0] == 0
    flip_in_output(store, source, 203)
    assert run(store.prefix, [source, reader], backend)[0] == 1
    assert Records(store).find(reader.key) is None
    (failure,) = Records(store).failures(reader.key)
    assert failure.error_type == "DamagedInputError"
    # The repair that the message names makes the input again, and then the reader works.
    assert run(store.prefix, [source], force=frozenset({source.key}))[0] == 0
    assert run(store.prefix, [source, reader], backend)[0] == 0
    return failure.error


@pytest.mark.parametrize(
    ("kind", "how"),
    [*((read_bytes, how) for how in (*LOCAL, *ANYWHERE)), (read_in_shards, "path"), (read_in_shards, "thread")],
)
def test_no_output_is_made_of_a_damaged_local_file(tmp_path: Path, kind: Any, how: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    check_damage_is_found(open_store(str(tmp_path / "link")), kind, how)


@pytest.mark.parametrize("store", ["gcs", "s3"], indirect=True)
@pytest.mark.parametrize("how", ANYWHERE)
def test_no_output_is_made_of_a_damaged_object(store: Store, how: str) -> None:
    check_damage_is_found(store, read_bytes, how)


def test_the_message_names_the_file_the_step_and_the_command(tmp_path: Path) -> None:
    error = check_damage_is_found(open_store(str(tmp_path)), read_bytes, "path")
    check_message(re.sub(r"source-\w{8}/[\w-]+", "OUTPUT", error.replace(str(tmp_path), "PREFIX")))


@pytest.mark.parametrize("kind", [read_bytes, read_in_shards])
def test_each_backend_checks_inputs(tmp_path: Path, backend: Backend, kind: Any) -> None:
    check_damage_is_found(open_store(str(tmp_path)), kind, "fsspec", backend)


@settings(max_examples=20)
@given(bit=st.integers(0, 8 * 64 - 1), how=st.sampled_from(sorted({*LOCAL, *ANYWHERE})))
def test_no_flipped_bit_reaches_an_output(tmp_path_factory: pytest.TempPathFactory, bit: int, how: str) -> None:
    store = open_store(str(tmp_path_factory.mktemp("runs")))
    source = make_bytes("source", BytesConfig(content="a"))
    reader = read_bytes("reader", ReadConfig(source=source, how=how))
    assert run(store.prefix, [source])[0] == 0
    flip_in_output(store, source, bit)
    assert run(store.prefix, [source, reader])[0] == 1
    assert Records(store).find(reader.key) is None


def test_a_file_is_read_for_its_checksum_once_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    checksum = LocalStore.checksum

    def counted(store: LocalStore, path: str) -> tuple[int, str]:
        checked.append(path)
        return checksum(store, path)

    monkeypatch.setattr(LocalStore, "checksum", counted)
    source = make_bytes("source", BytesConfig(content="b"))
    readers = [read_bytes(f"reader/{how}", ReadConfig(source=source, how=how)) for how in ("path", "map", "fsspec")]
    assert run(str(tmp_path), [source, *readers])[0] == 0
    assert [path.endswith(FILE) for path in checked] == [True]


def test_a_reader_with_checksums_of_its_own_costs_no_second_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStore, "checksum", lambda store, path: pytest.fail(path))
    source = make_bytes("source", BytesConfig(content="a"))
    reader = read_bytes("reader", ReadConfig(source=source, how="own checksum"))
    assert run(str(tmp_path), [source, reader])[0] == 0


def test_nothing_is_watched_after_the_steps(tmp_path: Path) -> None:
    source = make_bytes("source", BytesConfig(content="c"))
    assert run(str(tmp_path), [source, read_bytes("reader", ReadConfig(source=source, how="path"))])[0] == 0
    flip_in_output(open_store(str(tmp_path)), source, 1)
    output = record(str(tmp_path), source).output_path
    assert (tmp_path / output / FILE).read_bytes(), "a later reader outside a step is no business of the engine"
    assert not input_files._active


def test_a_damaged_record_of_an_input_is_an_error_too(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    source = make_bytes("source", BytesConfig(content="d"))
    reader = read_bytes("reader", ReadConfig(source=source, how="path"))
    assert run(store.prefix, [source])[0] == 0
    flip(store, record_path(source.key), 8_000)
    assert run(store.prefix, [source, reader])[0] == 1
    (failure,) = Records(store).failures(reader.key)
    assert failure.error_type == "UnreadableRecordError"
    assert not Records(store).committed_keys() - {source.key}
