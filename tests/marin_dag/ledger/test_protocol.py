"""The commit protocol in every interleaving: one record a key, never torn, never lost, never by a zombie."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from marin_dag.keep.collect import Collector, Garbage
from marin_dag.ledger import lease, records
from marin_dag.ledger.checked_json import checked_body, checked_json
from marin_dag.ledger.epoch import Epoch, LeaseLostError, parts
from marin_dag.ledger.records import LABELS, FileEntry, Record, Records, record_path
from marin_dag.run import attempt
from marin_dag.store.store import Store
from tests.marin_dag import protocol
from tests.marin_dag.interleavings import Content, Promise, Violation, described
from tests.marin_dag.protocol import (
    PLAIN,
    QUIET,
    TWO_LEGS,
    claimed,
    driver_of,
    giver_of,
    holder_of,
    replaced_machine,
    search,
    search_beside_gc,
    worker_of,
)


@pytest.fixture(autouse=True)
def machine() -> Iterator[None]:
    with replaced_machine():
        yield


def test_the_next_driver_completes_a_step_killed_anywhere():
    assert search({"A": driver_of(PLAIN)}, PLAIN).run() > 20
    assert search({"A": driver_of(TWO_LEGS)}, TWO_LEGS).run() > 30


@pytest.mark.parametrize(("item", "num_faults"), [(PLAIN, 2), (TWO_LEGS, 1)], ids=str)
def test_the_next_driver_completes_a_step_after_any_failed_operation(item: Any, num_faults: int):
    assert search({"A": driver_of(item)}, item, num_faults=num_faults).run() > 300


@pytest.mark.parametrize("item", [PLAIN, TWO_LEGS], ids=str)
def test_two_drivers_of_one_step_in_any_order_killed_anywhere_make_one_record(item: Any):
    assert search({"A": driver_of(item), "B": driver_of(item)}, item).run() > 3_000


@pytest.mark.slow
def test_three_drivers_of_one_step_in_any_order_killed_anywhere_make_one_record():
    assert search({name: driver_of(QUIET) for name in "ABC"}, QUIET).run() > 200_000


def test_forgetting_changes_the_number_of_states_and_not_the_reachable_contents(monkeypatch: pytest.MonkeyPatch):
    def searched() -> tuple[int, set[Content]]:
        found = search({name: driver_of(QUIET) for name in "AB"}, QUIET)
        return found.run(), set(found.contents)

    num_states, contents = searched()
    monkeypatch.setattr(protocol.World, "forget", lambda self, *known: None)
    num_states_without, contents_without = searched()
    assert contents == contents_without
    assert num_states < num_states_without / 2


def test_two_holders_of_one_lease_with_a_fault_in_any_place_make_one_record():
    assert search({name: holder_of(QUIET) for name in "AB"}, QUIET, num_faults=1).run() > 5_000


def test_a_worker_presumed_dead_and_two_successors_killed_anywhere_make_one_record():
    actors = {"worker": worker_of(QUIET), "A": holder_of(QUIET), "B": holder_of(QUIET)}
    assert search(actors, QUIET, content=claimed(QUIET)).run() > 15_000


@pytest.mark.parametrize("item", [QUIET, TWO_LEGS], ids=str)
def test_a_worker_that_outlives_its_driver_publishes_before_the_release_or_not_at_all(item: Any):
    actors = {"worker": worker_of(item), "driver": giver_of(item)}
    assert search(actors, item, content=claimed(item), num_faults=1).run() > 1_000


# Each of these plants a bug that the checker must find.


def writes_the_record_before_the_files(patch: pytest.MonkeyPatch) -> None:
    late: list[tuple[str, bytes]] = []
    finish = attempt.AttemptContext.finish

    def put(context: Any, file: str, text: str) -> None:
        late[:] = [(f"{context.output_path}/{file}".removeprefix("memory://runs/"), text.encode())]

    def make_manifest(store: Store, folder: str, *arguments: Any, **options: Any) -> tuple[FileEntry, ...]:
        ((path, data),) = late
        size, checksum = described(data)
        return (FileEntry(path=path.removeprefix(f"{folder}/"), size_in_bytes=size, crc32c=checksum),)

    def finish_then_write(self: attempt.AttemptContext, result: Any) -> Record:
        record = finish(self, result)
        for path, data in late:
            protocol.current.store.write(path, data)
        return record

    patch.setattr(protocol, "put", put)
    patch.setattr(attempt, "make_manifest", make_manifest)
    patch.setattr(attempt.AttemptContext, "finish", finish_then_write)


def puts_the_record_instead_of_creating_it(patch: pytest.MonkeyPatch) -> None:
    def put(store: Store, path: str, proposal: bytes) -> bytes:
        store.write(path, proposal)
        return proposal

    patch.setattr(records, "decide", put)


def asks_for_no_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Epoch, "commit", lambda self, record: Records(self._store).commit(record))


def asks_for_the_epoch_and_then_creates(patch: pytest.MonkeyPatch) -> None:
    def commit(self: Epoch, record: Record) -> Record:
        state = lease.Leases(self._store).state(self.digest)
        if state is not None and (state.number > self.number or state.is_sealed):
            raise LeaseLostError
        return Records(self._store).commit(record)

    patch.setattr(Epoch, "commit", commit)


def seals_without_carrying_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lease, "carry_out", lambda store, digest, number: None)


def keeps_only_the_newest_seal(patch: pytest.MonkeyPatch) -> None:
    release = lease.Leases.release

    def release_and_tidy(self: lease.Leases, digest: str, epoch: int, *, has_committed: bool) -> None:
        release(self, digest, epoch, has_committed=has_committed)
        for entry in self.store.list("leases", f"{digest}/"):
            if parts(entry.path)[1] < epoch:
                self.store.delete(entry.path)

    patch.setattr(lease.Leases, "release", release_and_tidy)


def labels_after_the_record(patch: pytest.MonkeyPatch) -> None:
    def commit(self: Records, record: Record) -> Record:
        data = checked_json(record)
        there = records.decide(self.store, record_path(record.key), data)
        self.store.create(f"{LABELS}/{record.name}/{record.key}", b"")
        return Record.model_validate_json(checked_body(there))

    patch.setattr(Records, "commit", commit)


@pytest.mark.parametrize(
    ("plant", "promise"),
    [
        (writes_the_record_before_the_files, Promise.WHOLE),
        (puts_the_record_instead_of_creating_it, Promise.IMMUTABLE),
        (asks_for_no_epoch, Promise.FENCED),
        (asks_for_the_epoch_and_then_creates, Promise.FENCED),
        (seals_without_carrying_out, Promise.FENCED),
        (keeps_only_the_newest_seal, Promise.FENCED),
        (labels_after_the_record, Promise.LABELLED),
    ],
)
def test_a_planted_bug_is_found_with_an_order_that_shows_it(
    plant: Callable[[pytest.MonkeyPatch], None], promise: Promise, monkeypatch: pytest.MonkeyPatch
):
    plant(monkeypatch)
    with pytest.raises(Violation) as raised:
        actors = {"worker": worker_of(QUIET), "other": holder_of(QUIET)}
        search(actors, QUIET, content=claimed(QUIET), num_faults=1).run()
    assert raised.value.promise is promise
    assert len(raised.value.moves) > 2


def reads_a_slot_that_was_listed_as_the_record_it_held(patch: pytest.MonkeyPatch) -> None:
    def carry_out(store: Store, digest: str, number: int) -> None:
        for entry in store.list("leases", f"{digest}/{number:08d}.0"):
            if entry.size_in_bytes:
                with contextlib.suppress(FileNotFoundError):
                    Records(store).commit(Record.model_validate_json(checked_body(store.read(entry.path))))

    patch.setattr(lease, "carry_out", carry_out)


def test_a_planted_bug_that_takes_three_holders_is_found(monkeypatch: pytest.MonkeyPatch):
    reads_a_slot_that_was_listed_as_the_record_it_held(monkeypatch)
    actors = {name: holder_of(TWO_LEGS) for name in "ABC"}
    with pytest.raises(Violation):
        search(actors, TWO_LEGS, with_kills=False).run()


def test_a_step_that_starts_while_its_input_is_collected_reads_all_of_it_or_none():
    assert search_beside_gc().run() > 500


def test_a_collector_that_asks_before_it_deletes_is_found(monkeypatch: pytest.MonkeyPatch):
    def ask_then_delete(self: Collector, outputs: dict[int, Garbage], held: object) -> dict[int, str]:
        ((number, garbage),) = outputs.items()
        if garbage.digest in self._running().needs:
            return {number: "needed"}
        for path in (record_path(garbage.key), *(entry.path for entry in garbage.files)):
            self._store.delete(path)
        return {number: ""}

    monkeypatch.setattr(Collector, "_delete_outputs", ask_then_delete)
    with pytest.raises(Violation):
        search_beside_gc().run()
