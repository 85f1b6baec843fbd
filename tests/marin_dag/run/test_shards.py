"""Shards: finished shards are taken over by what they are, wherever they are in the list."""

import functools
import logging
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from marin_dag.graph.step import Step
from marin_dag.identity.canonical import NotCanonicalError
from marin_dag.ledger.progress import Progress
from marin_dag.run.driver import Run
from marin_dag.run.local import backend as local_backend
from marin_dag.run.local.backend import LocalBackend, SequentialFanOut
from marin_dag.run.shards import ShardMap
from marin_dag.run.usage import Usage
from marin_dag.store.local import LocalStore
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Store
from tests.catalogue import check_message, expect_error
from tests.marin_dag.run.test_driver import Recorder, output, record, run
from tests.marin_dag.toy_steps import NamesConfig, ShardsConfig, executions, shout, shouted, square, squares


def step_of(marks: Path, *names: str, **execution: str) -> Step[Any]:
    return shouted("shouted", NamesConfig(names=names, refuses="zebra", marks=str(marks), **execution))


def test_a_changed_list_takes_over_exactly_the_shards_that_are_still_in_it(prefix: str, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    first = step_of(marks, "ape", "bear", "cat", "zebra")
    assert run(prefix, [first])[0] == 1
    (marks / "repaired").touch()
    second = step_of(marks, "cat", "dog", "ape", "zebra")
    assert second.digest == first.digest
    assert run(prefix, [second])[0] == 0
    (marks / "repaired").unlink()
    assert record(prefix, second).result == {"made": ["CAT", "DOG", "APE", "ZEBRA"]}
    assert output(prefix, second, "shards/00000/name.txt") == "CAT"
    assert output(prefix, second, "shards/00002/name.txt") == "APE"
    assert executions(marks) == {"ape": 1, "bear": 1, "cat": 1, "dog": 1, "zebra": 1}


def test_a_stopped_step_shows_how_many_shards_are_finished(tmp_path: Path) -> None:
    class Impatient(Recorder):
        def progress(self, name: str, progress: Progress) -> None:
            if progress.done == 2:
                signal.raise_signal(signal.SIGINT)

    step = step_of(tmp_path / "marks", "ape", "bear", "cat", "dog")
    display = Impatient()
    assert Run([step], open_store(str(tmp_path / "runs")), LocalBackend(), display, command="").run() == 1
    check_message("\n".join(line for line in display.lines if line.startswith("shouted stopped")))


def test_an_argument_bound_to_the_function_is_part_of_the_shard(tmp_path: Path) -> None:
    prefix, marks = str(tmp_path / "runs"), tmp_path / "marks"
    assert run(prefix, [step_of(marks, "ape", "zebra", suffix="!")])[0] == 1
    (marks / "repaired").touch()
    step = step_of(marks, "ape", "zebra", suffix="?")
    assert run(prefix, [step])[0] == 0
    assert record(prefix, step).result == {"made": ["APE?", "ZEBRA?"]}


def test_equal_items_are_shards_of_their_own(tmp_path: Path) -> None:
    prefix, marks = str(tmp_path / "runs"), tmp_path / "marks"
    assert run(prefix, [step_of(marks, "ape", "ape", "zebra")])[0] == 1
    (marks / "repaired").touch()
    step = step_of(marks, "ape", "ape", "ape", "zebra")
    assert run(prefix, [step])[0] == 0
    assert executions(marks)["ape"] == 3
    assert [output(prefix, step, f"shards/0000{index}/name.txt") for index in range(3)] == ["APE"] * 3


def test_a_changed_shard_of_the_same_size_is_noticed_in_every_store(prefix: str, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    step = squares("squares", ShardsConfig(num_shards=3, marks=str(marks), fail_at=2))
    assert run(prefix, [step])[0] == 1
    store = open_store(prefix)
    (kept,) = [entry.path for entry in store.list("outputs") if entry.path.endswith("shards/00001/square.txt")]
    store.write(kept, b"7")
    (marks / "repaired").touch()
    assert run(prefix, [step])[0] == 0
    assert executions(marks)["shard1"] == 2
    assert output(prefix, step, "shards/00001/square.txt") == "1"


def rest() -> tuple[Any, ...]:
    """Return the last arguments of a ShardMap."""
    return logging.getLogger("shards"), (), Usage((), "", 0.0)


def made_in(epoch: int, store: Store, marks: Path) -> ShardMap:
    """Return the map of an attempt that holds the lease in that epoch."""
    items = [(number, 0.0, str(marks), -1) for number in range(2)]
    return ShardMap(store, "work/a/shards/shards", epoch, f"outputs/a/{epoch}", "shards", square, items, *rest())


def test_an_attempt_takes_over_the_newest_shards_of_older_attempts_and_none_of_later_ones(
    tmp_path: Path,
) -> None:
    """A later attempt is running: files that both had by links would be written by both."""
    store = LocalStore(str(tmp_path / "runs"))

    def ignore(*values: object) -> None: ...

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardMap, "_take_over", lambda shards: {})
        for epoch in (2, 3):
            made_in(epoch, store, tmp_path / "marks").run(SequentialFanOut(), 1, lambda: False, ignore, ignore)
    assert made_in(1, store, tmp_path / "marks")._take_over() == {}
    taken = made_in(4, store, tmp_path / "marks")._take_over()
    assert {shard.folder for shard in taken.values()} == {f"outputs/a/3/shards/0000{index}" for index in range(2)}


def test_a_shard_with_an_unreadable_record_runs_again_unless_an_older_record_is_there(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "runs"))
    for epoch in (1, 2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ShardMap, "_take_over", lambda shards: {})
            shards = made_in(epoch, store, tmp_path / "marks")
            shards.run(SequentialFanOut(), 1, lambda: False, lambda *values: None, lambda *values: None)
    store.write(shards._record_path(0), b"{")
    taken = made_in(3, store, tmp_path / "marks")._take_over()
    assert [taken[index].folder for index in (0, 1)] == ["outputs/a/1/shards/00000", "outputs/a/2/shards/00001"]
    store.write(made_in(1, store, tmp_path / "marks")._record_path(0), b"")
    assert made_in(4, store, tmp_path / "marks")._take_over().keys() == {1}


def test_a_worker_that_starts_again_on_a_finished_shard_leaves_it(tmp_path: Path) -> None:
    """The first worker may have died before it reported, and others may link the files by now."""
    store, marks = LocalStore(str(tmp_path / "runs")), tmp_path / "marks"
    call = made_in(1, store, marks)._call(0)
    call()
    before = store.list("outputs")
    call()
    assert executions(marks) == {"shard0": 1} and store.list("outputs") == before


def fail_once(item: str, path: str) -> str:
    """Fail at the first try, and leave a file that the second try does not write."""
    tries = Path(item)
    if not tries.exists():
        tries.touch()
        Path(path, "half").touch()
        raise ConnectionResetError("try again")
    Path(path, "whole").touch()
    return "done"


def test_a_failed_try_leaves_no_file_in_the_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_backend, "SHARD_PAUSES_SECONDS", (0.0,))
    store, items = LocalStore(str(tmp_path / "runs")), [str(tmp_path / "tries")]
    shards = ShardMap(store, "work/a/shards/s", 1, "outputs/a/1", "s", fail_once, items, *rest())
    _, files = shards.run(SequentialFanOut(), 1, lambda: False, lambda *values: None, lambda *values: None)
    assert [file.path for file in files] == ["s/00000/whole"]
    assert [entry.path for entry in store.list("outputs")] == ["outputs/a/1/s/00000/whole"]


def keys(function: Any, items: list[Any], folder: Path, output: str = "output") -> list[str]:
    return ShardMap(open_store(str(folder)), "records", 1, output, "shards", function, items, *rest())._keys


def test_a_path_inside_the_output_is_the_same_in_every_attempt(tmp_path: Path) -> None:
    def handed_over_keys(attempt: str, file: str = "signatures/00000") -> list[str]:
        path = f"{open_store(str(tmp_path)).url(attempt)}/{file}"
        return [*keys(square, [path], tmp_path, attempt), *keys(functools.partial(shout, path), [1], tmp_path, attempt)]

    assert handed_over_keys("outputs/a/20260101-000000-0000") == handed_over_keys("outputs/a/20260101-000001-1111")
    moved = [open_store(str(tmp_path / name)).url("outputs/b/1/text") for name in ("here", "there")]
    assert keys(square, [moved[0]], tmp_path / "here") == keys(square, [moved[1]], tmp_path / "there")
    assert handed_over_keys("outputs/a/20260101-000000-0000") != handed_over_keys(
        "outputs/a/20260101-000000-0000", "other"
    )


def test_a_shard_is_identified_by_its_function_bound_arguments_and_item(tmp_path: Path) -> None:
    item = ("ape", "", "")
    bound = functools.partial(shout, "!")
    assert keys(bound, [item], tmp_path) == keys(functools.partial(shout, "!"), [item], tmp_path)
    different = {
        keys(bound, [item], tmp_path)[0],
        keys(bound, [item, item], tmp_path)[1],
        keys(bound, [("bear", "", "")], tmp_path)[0],
        keys(functools.partial(shout, "?"), [item], tmp_path)[0],
        keys(functools.partial(shout, suffix="!"), [item], tmp_path)[0],
        keys(square, [item], tmp_path)[0],
    }
    assert len(different) == 6
    assert keys(bound, [item, ("bear", "", "")], tmp_path) == keys(bound, [("bear", "", ""), item], tmp_path)[::-1]


def test_an_item_without_a_canonical_form_is_refused(tmp_path: Path) -> None:
    with expect_error(NotCanonicalError):
        keys(square, [1, np.zeros(2)], tmp_path)
    with expect_error(NotCanonicalError):
        keys(functools.partial(shout, np.zeros(2)), [1], tmp_path)


class Made(BaseModel, frozen=True):
    value: int


def untyped(item, path):  # type: ignore[no-untyped-def]
    return Made(value=item)


def typed_by_an_unknown_name(item: int, path: str) -> "Nowhere":  # type: ignore[name-defined]  # noqa: F821
    return Made(value=item)


@pytest.mark.parametrize("function", [untyped, typed_by_an_unknown_name])
def test_a_result_without_a_known_type_is_refused(tmp_path: Path, function: Any) -> None:
    store = open_store(str(tmp_path))
    with expect_error(TypeError):
        ShardMap(store, "records", 1, "output", "shards", function, [1], *rest()).run(
            SequentialFanOut(), 1, lambda: False, lambda *values: None
        )


def test_a_map_without_a_shard_in_flight_is_refused(tmp_path: Path) -> None:
    with expect_error(ValueError):
        ShardMap(open_store(str(tmp_path)), "records", 1, "output", "shards", square, [1], *rest()).run(
            SequentialFanOut(), 0, lambda: False, lambda *values: None
        )
