"""A digest depends on every bit and its place and not on the mesh; a differing replay is named by tensor."""

from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from runtime.tracking.events import EventLog, log_name
from runtime.training.digests import Digests, begin_digests, finish_digests
from runtime.training.replay import compare, logged_digests, main
from tests.catalogue import check_message

VALUES = np.random.default_rng(0).normal(size=(2, 8, 4)).astype(np.float32)


def digests(values: np.ndarray, *spec: str | None, shape: tuple[int, ...] = (8,)) -> Digests:
    mesh = Mesh(np.array(jax.devices()[: np.prod(shape)]).reshape(shape), ("x", "y")[: len(shape)])
    placed = jax.device_put(values, NamedSharding(mesh, PartitionSpec(*spec)))
    norm = jax.device_put(np.ones(4, np.float32), NamedSharding(mesh, PartitionSpec()))
    return finish_digests(begin_digests({"layers": {"w": placed}, "norm": norm}))


def test_the_digest_is_the_same_on_every_mesh():
    expected = digests(VALUES, shape=(1,))
    assert expected.tensors.keys() == {"layers.w", "norm"}
    assert expected == digests(VALUES, None, "x") == digests(VALUES, "y", "x", shape=(4, 2))


@pytest.mark.parametrize("change", ["one bit", "two swapped", "a row moved", "the sign of a zero"])
def test_any_change_of_a_tensor_changes_its_digest_and_the_whole_one_alone(change):
    before, after = VALUES.copy(), VALUES.copy()
    before[1, 1, 1] = 0.0
    after[1, 1, 1] = 0.0
    match change:
        case "one bit":
            after.view(np.uint32)[0, 0, 0] ^= 1
        case "two swapped":
            after[0, 0, 0], after[1, 2, 3] = after[1, 2, 3], after[0, 0, 0]
        case "a row moved":
            after[:] = np.roll(after, 1, axis=1)
        case "the sign of a zero":
            after[1, 1, 1] = -0.0
    one, two = digests(before, shape=(1,)), digests(after, shape=(1,))
    assert one.tensors["norm"] == two.tensors["norm"]
    assert one.tensors["layers.w"] != two.tensors["layers.w"]
    assert one.whole != two.whole


def log(work: Path, attempt: str, digests_by_step: dict[int, dict[str, str]]) -> str:
    with EventLog(str(work / "events" / f"{attempt}.jsonl")) as events:
        events.write("begin", step=0)
        for step, tensors in digests_by_step.items():
            events.write("digest", step=step, digest="-".join(tensors.values()), tensors=tensors)
    return str(work)


def test_a_replay_that_differs_names_step_and_tensor(tmp_path, capsys):
    first = log(tmp_path / "first", "a", {10: {"w": "1", "v": "2"}, 20: {"w": "3", "v": "4"}})
    log(tmp_path / "first", "b", {20: {"w": "3", "v": "4"}, 30: {"w": "5", "v": "6"}})
    assert main([first]) == 0
    second = log(tmp_path / "second", "c", {20: {"w": "0", "v": "4"}, 30: {"w": "0", "v": "0"}})
    num_compared, differences = compare(logged_digests([first, second]))
    assert (num_compared, [difference.step for difference in differences]) == (3, [20, 30])
    assert [difference.tensors for difference in differences] == [("w",), ("v", "w")]
    capsys.readouterr()
    assert main([first, second]) == 1
    check_message(capsys.readouterr().out)


def test_all_attempts_at_a_phase_below_a_prefix_are_compared(tmp_path, capsys):
    def attempt(folder: str, name: str, phase_digest: str, digest: str) -> None:
        with EventLog(str(tmp_path / folder / "events" / f"{name}.jsonl")) as events:
            events.write("phase", name=f"phase-{phase_digest}", digest=phase_digest)
            events.write("digest", step=10, digest=digest, tensors={"w": digest})

    attempt("work/a", "first", "a", "1")
    attempt("work/b", "first", "b", "2")
    attempt("outputs/phase-a/second.work", "second", "a", "1")
    assert main([str(tmp_path)]) == 0
    check_message(capsys.readouterr().out)
    attempt("outputs/phase-b/second.work", "second", "b", "3")
    assert main([str(tmp_path)]) == 1
    check_message(capsys.readouterr().out)


def test_a_replay_without_repeated_steps_compares_nothing(tmp_path, capsys):
    assert main([log(tmp_path, "a", {10: {"w": "1"}, 20: {"w": "2"}})]) == 2
    check_message(capsys.readouterr().out)


def test_a_missing_folder_is_an_error(tmp_path, capsys):
    work = log(tmp_path / "work", "a", {10: {"w": "1"}})
    assert main([work, f"{tmp_path}/nosuch", f"{work}/events/a.jsonl"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    check_message(printed.err)


def test_logs_of_other_hosts_are_no_second_attempt(tmp_path, capsys):
    for host in range(12):
        with EventLog(str(tmp_path / "work/a/events" / log_name("first", host))) as events:
            events.write("phase", name="phase-a", digest="a")
            events.write("digest", step=10, digest="1", tensors={"w": "1"})
    for folder in (tmp_path, tmp_path / "work/a"):
        assert main([str(folder)]) == 2
        check_message(capsys.readouterr().out)
