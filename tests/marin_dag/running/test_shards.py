"""Shards: what was finished is taken over if it is what is asked for, wherever in the list; else it is done again."""

import functools
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marin_dag.identity import NotCanonicalError
from marin_dag.local_backend import LocalBackend
from marin_dag.run import Run
from marin_dag.running.shards import ShardMap
from marin_dag.step import Step
from marin_dag.storage.prefix import open_store
from marin_dag.storage.progress import Progress
from tests.marin_dag.test_run import Recorder, output, record, run
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
    with pytest.raises(NotCanonicalError, match=r"shards\[1\]: ndarray .* has no canonical form; use a number"):
        keys(square, [1, np.zeros(2)], tmp_path)
    with pytest.raises(NotCanonicalError, match=r"shards: bound by tests\.marin_dag\.toy_steps\.shout\[0\]: ndarray"):
        keys(functools.partial(shout, np.zeros(2)), [1], tmp_path)
