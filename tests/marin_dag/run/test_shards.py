"""Shards: what was finished is taken over if it is what is asked for, wherever in the list; else it is done again."""

import functools
import logging
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marin_dag.graph.step import Step
from marin_dag.identity.canonical import NotCanonicalError
from marin_dag.ledger.progress import Progress
from marin_dag.run.driver import Run
from marin_dag.run.local import backend as local_backend
from marin_dag.run.local.backend import LocalBackend, SequentialFanOut
from marin_dag.run.shards import ShardMap
from marin_dag.store.local import LocalStore
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Store
from tests.catalogue import expect_error
from tests.marin_dag.run.test_driver import Recorder, output, record, run
from tests.marin_dag.toy_steps import NamesConfig, ShardsConfig, executions, shout, shouted, square, squares


def step_of(marks: Path, *names: str, **execution: str) -> Step[Any]:
    return shouted("shouted", NamesConfig(names=names, refuses="zebra", marks=str(marks), **execution))


def test_a_list_that_changed_takes_over_what_is_still_in_it_and_gives_nobody_the_shard_of_another(
    prefix: str, tmp_path: Path
) -> None:
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


def test_a_step_that_is_stopped_says_how_many_of_its_shards_are_finished(tmp_path: Path) -> None:
    class Impatient(Recorder):
        def progress(self, name: str, progress: Progress) -> None:
            if progress.done == 2:
                signal.raise_signal(signal.SIGINT)

    step = step_of(tmp_path / "marks", "ape", "bear", "cat", "dog")
    display = Impatient()
    assert Run([step], open_store(str(tmp_path / "runs")), LocalBackend(), display, command="").run() == 1
    assert "shouted stopped its work so far is kept: shards: 2 of 4 finished" in display.text


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


def test_a_same_size_rewrite_of_what_is_kept_in_a_remote_store_is_noticed(prefix: str, tmp_path: Path) -> None:
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


def made_in(epoch: int, store: Store, marks: Path) -> ShardMap:
    """Of an attempt that holds the lease in that epoch."""
    items = [(number, 0.0, str(marks), -1) for number in range(2)]
    log = logging.getLogger("shards")
    return ShardMap(store, "work/a/shards/shards", epoch, f"outputs/a/{epoch}", "shards", square, items, log)


def test_an_attempt_takes_over_the_newest_that_older_ones_left_and_nothing_of_one_that_came_after_it(
    tmp_path: Path,
) -> None:
    """That one is at work; files that both had by links would be two attempts' to write."""
    store = LocalStore(str(tmp_path / "runs"))

    def nobody(*told: object) -> None: ...

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardMap, "_take_over", lambda shards: {})
        for epoch in (2, 3):
            made_in(epoch, store, tmp_path / "marks").run(SequentialFanOut(), 1, lambda: False, nobody, nobody)
    assert made_in(1, store, tmp_path / "marks")._take_over() == {}
    taken = made_in(4, store, tmp_path / "marks")._take_over()
    assert {shard.folder for shard in taken.values()} == {f"outputs/a/3/shards/0000{index}" for index in range(2)}


def test_a_shard_whose_record_cannot_be_read_is_done_again_and_an_older_one_is_taken(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "runs"))
    for epoch in (1, 2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ShardMap, "_take_over", lambda shards: {})
            shards = made_in(epoch, store, tmp_path / "marks")
            shards.run(SequentialFanOut(), 1, lambda: False, lambda *told: None, lambda *told: None)
    store.write(shards._record_path(0), b"{")
    taken = made_in(3, store, tmp_path / "marks")._take_over()
    assert [taken[index].folder for index in (0, 1)] == ["outputs/a/1/shards/00000", "outputs/a/2/shards/00001"]
    store.write(made_in(1, store, tmp_path / "marks")._record_path(0), b"")
    assert made_in(4, store, tmp_path / "marks")._take_over().keys() == {1}


def test_a_worker_that_is_started_again_over_a_finished_shard_leaves_it_as_it_is(tmp_path: Path) -> None:
    """It may have died before it could say so, and the files are others' to link by now."""
    store, marks = LocalStore(str(tmp_path / "runs")), tmp_path / "marks"
    call = made_in(1, store, marks)._call(0)
    call()
    before = store.list("outputs")
    call()
    assert executions(marks) == {"shard0": 1} and store.list("outputs") == before


def stumble(item: str, path: str) -> str:
    """Leaves a file that its second try does not write."""
    tries = Path(item)
    if not tries.exists():
        tries.touch()
        Path(path, "half").touch()
        raise ConnectionResetError("try again")
    Path(path, "whole").touch()
    return "done"


def test_of_a_try_that_failed_no_file_is_left_in_the_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_backend, "SHARD_PAUSES_SECONDS", (0.0,))
    store, items = LocalStore(str(tmp_path / "runs")), [str(tmp_path / "tries")]
    shards = ShardMap(store, "work/a/shards/s", 1, "outputs/a/1", "s", stumble, items, logging.getLogger("shards"))
    _, files = shards.run(SequentialFanOut(), 1, lambda: False, lambda *told: None, lambda *told: None)
    assert [file.path for file in files] == ["s/00000/whole"]
    assert [entry.path for entry in store.list("outputs")] == ["outputs/a/1/s/00000/whole"]


def keys(function: Any, items: list[Any], folder: Path, output: str = "output") -> list[str]:
    return ShardMap(open_store(str(folder)), "records", 1, output, "shards", function, items, None)._keys  # type: ignore[arg-type]


def test_a_path_inside_the_output_is_the_same_in_every_attempt(tmp_path: Path) -> None:
    def handed_on(attempt: str, file: str = "signatures/00000") -> list[str]:
        path = f"{open_store(str(tmp_path)).url(attempt)}/{file}"
        return [*keys(square, [path], tmp_path, attempt), *keys(functools.partial(shout, path), [1], tmp_path, attempt)]

    assert handed_on("outputs/a/20260101-000000-0000") == handed_on("outputs/a/20260101-000001-1111")
    moved = [open_store(str(tmp_path / name)).url("outputs/b/1/text") for name in ("here", "there")]
    assert keys(square, [moved[0]], tmp_path / "here") == keys(square, [moved[1]], tmp_path / "there")
    assert handed_on("outputs/a/20260101-000000-0000") != handed_on("outputs/a/20260101-000000-0000", "other")


def test_a_shard_goes_by_its_function_what_is_bound_to_it_and_its_item(tmp_path: Path) -> None:
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


def test_an_item_without_a_canonical_form_is_refused_with_the_cure(tmp_path: Path) -> None:
    with expect_error(NotCanonicalError):
        keys(square, [1, np.zeros(2)], tmp_path)
    with expect_error(NotCanonicalError):
        keys(functools.partial(shout, np.zeros(2)), [1], tmp_path)
