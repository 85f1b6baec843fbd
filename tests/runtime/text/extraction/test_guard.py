"""Guards: a document that ends its reader's process is left out under its name, and costs no other."""

import contextlib
import os
import signal

import pytest

from marin_dag.store.retry import is_transient
from runtime.text.extraction.extracted import Text, Unreadable
from runtime.text.extraction.guard import (
    DEADLY,
    TOO_MUCH_MEMORY,
    TOO_SLOW,
    Guarded,
    Limited,
    ReaderKilledError,
    guard_after_death,
    unguarded,
)
from runtime.text.extraction.limits import DEFAULTS, Limits
from tests.catalogue import expect_error
from tests.runtime.text.extraction import deadly_readers


def found(guard, *texts):
    return [
        list(guard(deadly_readers.read, text, anchor=f"{number}", name=f"page {number}", data=text.encode() * 100))
        for number, text in enumerate(texts)
    ]


def test_a_document_that_kills_its_parser_is_dropped_and_its_neighbours_are_read():
    with contextlib.closing(Guarded(DEFAULTS)) as guard:
        read = found(guard, "SIGSEGV", "a", "SIGABRT", "SIGBUS", "b")
    signals = ("SIGSEGV", "SIGABRT", "SIGBUS")
    first, second, third = (
        [Unreadable(f"{number}", DEADLY, f"{name}, {len(name) * 100} bytes", (name * 100)[:200])]
        for number, name in zip((0, 2, 3), signals, strict=True)
    )
    assert read == [first, [Text("", "a")], second, third, [Text("", "b")]]


@pytest.mark.parametrize(("text", "reason"), [("endless", TOO_SLOW), ("boundless", TOO_MUCH_MEMORY)])
def test_a_document_above_a_limit_is_dropped_and_its_neighbours_are_read(text, reason):
    limits = Limits(max_document_seconds=0.1, max_document_memory=64 << 20)
    with contextlib.closing(Guarded(limits)) as guard:
        first, (above,), last = found(guard, "a", text, "b")
    assert first == [Text("", "a")]
    assert last == [Text("", "b")]
    assert (above.anchor, above.reason) == ("1", reason)


def test_a_document_without_bounds_is_dropped_before_any_process_dies():
    first, (above,), last = found(Limited(Limits(max_document_memory=64 << 20)), "a", "boundless", "b")
    assert (first, last) == ([Text("", "a")], [Text("", "b")])
    assert above.reason == TOO_MUCH_MEMORY


def test_an_endless_document_ends_its_process_and_is_guarded_by_the_next_attempt(tmp_path):
    mark, limits = str(tmp_path / "unit"), Limits(max_document_seconds=0.1)
    child = os.fork()
    if child == 0:
        with guard_after_death(mark, limits) as guard:
            found(guard, "endless")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGPROF
    with guard_after_death(mark, limits) as guard:
        assert [each.reason for pieces in found(guard, "endless") for each in pieces] == [TOO_SLOW]


def test_a_document_that_dies_of_the_one_before_it_is_not_deadly():
    with contextlib.closing(Guarded(DEFAULTS)) as guard:
        assert found(guard, "a", "second", "second") == [[Text("", text)] for text in ("a", "second", "second")]


def test_the_child_does_not_import_from_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "fsspec.py").write_text("raise ImportError('not this one')")
    monkeypatch.chdir(tmp_path)
    with contextlib.closing(Guarded(DEFAULTS)) as guard:
        assert found(guard, "a") == [[Text("", "a")]]


def test_an_error_of_the_reader_comes_after_the_pieces_before_it():
    for guard in (unguarded, Limited(DEFAULTS), Guarded(DEFAULTS)):
        pieces = guard(deadly_readers.read, "damaged", anchor="", name="", data=b"")
        assert next(pieces) == Text("", "damaged")
        with expect_error(EOFError):
            next(pieces)
        if isinstance(guard, Guarded):
            with contextlib.closing(guard):
                assert found(guard, "a") == [[Text("", "a")]]


@pytest.mark.parametrize("text", ["odd", "unsendable"])
def test_an_error_that_cannot_be_sent_becomes_its_description(text):
    with contextlib.closing(Guarded(DEFAULTS)) as guard, expect_error(RuntimeError) as error:
        found(guard, text)
    assert not is_transient(error.value)


@pytest.mark.parametrize("text", ["SIGKILL", "exit"])
def test_a_process_that_was_ended_from_outside_is_no_fault_of_the_document(text):
    with (
        contextlib.closing(Guarded(DEFAULTS)) as guard,
        expect_error(ReaderKilledError) as error,
    ):
        found(guard, "a", text)
    assert is_transient(error.value)


def test_a_death_leaves_a_mark_and_the_next_attempt_is_guarded(tmp_path):
    mark = tmp_path / "being-read" / "unit"
    with guard_after_death(str(mark), DEFAULTS) as guard:
        assert isinstance(guard, Limited)
        assert mark.exists()
    assert not mark.exists()
    with expect_error(ValueError), guard_after_death(str(mark), DEFAULTS):
        raise ValueError("damaged")
    assert not mark.exists()
    mark.write_bytes(b"")
    with pytest.raises(ReaderKilledError), guard_after_death(str(mark), DEFAULTS) as guard:
        found(guard, "SIGKILL")
    assert mark.exists()  # else the next attempt would die too
    with guard_after_death(str(mark), DEFAULTS) as guard:
        assert isinstance(guard, Guarded)
    assert not mark.exists()
