"""Guards: a document that ends its reader's process is left out under its name, and costs no other."""

import contextlib

import pytest

from marin_dag.store.retry import is_transient
from runtime.text.extraction.extracted import Text, Unreadable
from runtime.text.extraction.guard import DEADLY, Guarded, ReaderKilledError, guard_after_death, unguarded
from tests.catalogue import expect_error
from tests.runtime.text.extraction import deadly_readers


def found(guard, *texts):
    return [
        list(guard(deadly_readers.read, text, anchor=f"{number}", name=f"page {number}", data=text.encode() * 100))
        for number, text in enumerate(texts)
    ]


def test_a_deadly_document_is_left_out_and_those_around_it_are_read():
    with contextlib.closing(Guarded()) as guard:
        read = found(guard, "SIGSEGV", "a", "SIGABRT", "SIGBUS", "b")
    signals = ("SIGSEGV", "SIGABRT", "SIGBUS")
    first, second, third = (
        [Unreadable(f"{number}", DEADLY, f"{name}, {len(name) * 100} bytes", (name * 100)[:200])]
        for number, name in zip((0, 2, 3), signals, strict=True)
    )
    assert read == [first, [Text("", "a")], second, third, [Text("", "b")]]


def test_a_document_that_dies_of_the_one_before_it_is_not_deadly():
    with contextlib.closing(Guarded()) as guard:
        assert found(guard, "a", "second", "second") == [[Text("", text)] for text in ("a", "second", "second")]


def test_the_child_does_not_import_from_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "fsspec.py").write_text("raise ImportError('not this one')")
    monkeypatch.chdir(tmp_path)
    with contextlib.closing(Guarded()) as guard:
        assert found(guard, "a") == [[Text("", "a")]]


def test_an_error_of_the_reader_comes_after_the_pieces_before_it():
    for guard in (unguarded, Guarded()):
        pieces = guard(deadly_readers.read, "damaged", anchor="", name="", data=b"")
        assert next(pieces) == Text("", "damaged")
        with expect_error(EOFError):
            next(pieces)
        if isinstance(guard, Guarded):
            with contextlib.closing(guard):
                assert found(guard, "a") == [[Text("", "a")]]


@pytest.mark.parametrize("text", ["odd", "unsendable"])
def test_an_error_that_cannot_be_sent_becomes_its_description(text):
    with contextlib.closing(Guarded()) as guard, expect_error(RuntimeError) as error:
        found(guard, text)
    assert not is_transient(error.value)


@pytest.mark.parametrize("text", ["SIGKILL", "exit"])
def test_a_process_that_was_ended_from_outside_is_no_fault_of_the_document(text):
    with (
        contextlib.closing(Guarded()) as guard,
        expect_error(ReaderKilledError) as error,
    ):
        found(guard, "a", text)
    assert is_transient(error.value)


def test_a_death_leaves_a_mark_and_the_next_attempt_is_guarded(tmp_path):
    mark = tmp_path / "being-read" / "unit"
    with guard_after_death(str(mark)) as guard:
        assert guard is unguarded
        assert mark.exists()
    assert not mark.exists()
    with expect_error(ValueError), guard_after_death(str(mark)):
        raise ValueError("damaged")
    assert not mark.exists()
    mark.write_bytes(b"")
    with pytest.raises(ReaderKilledError), guard_after_death(str(mark)) as guard:
        found(guard, "SIGKILL")
    assert mark.exists()  # else the next attempt would die too
    with guard_after_death(str(mark)) as guard:
        assert isinstance(guard, Guarded)
    assert not mark.exists()
