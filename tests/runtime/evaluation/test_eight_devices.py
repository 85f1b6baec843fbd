"""All devices of a machine or of a gang share the requests: the answers are those of one, in the requests' order."""

import pathlib

import numpy as np
import pytest

from runtime.parallel.mesh_shape import Machines, MeshShape
from tests.simulated_devices import report_of


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("answers")
    return report_of(pathlib.Path(__file__).with_name("eight_devices.py"), num_devices=8, ANSWERS=str(folder))


@pytest.mark.parametrize(("devices", "share"), [("copies", 1), ("shards 0", 1 / 4), ("shards 1", 1 / 4)])
def test_eight_devices_give_the_answers_of_one(report, devices, share):
    assert (report["one"]["devices"], report[devices]["devices"], report[devices]["share"]) == (1, 8, share)
    found, expected = (np.array(report[name]["scores"], float) for name in (devices, "one"))
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert report[devices]["texts"] == report["one"]["texts"]
    assert len({tuple(text) for text in report["one"]["texts"]}) > 15


def test_host_0_writes_the_answers_and_all_hosts_know_them(report):
    assert report["files 0"] == ["of two hosts-000000.jsonl"]
    assert report["known 0"] == report["known 1"] == len(report["one"]["scores"])


@pytest.mark.parametrize(
    ("gigabytes", "machines", "memory", "expected"),
    [
        (16, Machines((2, 4)), 32, MeshShape(replica=8)),  # whole copies cut no axis of the torus
        (32, Machines((2, 4)), 32, MeshShape(replica=4, data=2)),
        (140, Machines((2, 4)), 32, MeshShape(data=8)),
        (1_000, Machines((2, 4)), 32, MeshShape(data=8)),
        (32, Machines((4, 4), 2), 32, MeshShape(replica=8, data=4)),  # no axis is cut into eight parts
        (140, Machines((16,), num_hosts=2), 80, MeshShape(replica=4, data=4)),
        (1_000, Machines((8,), num_hosts=2, cores_hold_copies=True), None, MeshShape(replica=8)),
    ],
)
def test_an_evaluation_has_as_many_copies_as_fit(
    gigabytes: int, machines: Machines, memory: int | None, expected: MeshShape
) -> None:
    found = machines.layout_with_copies(gigabytes * 10**9, None if memory is None else memory * 10**9)
    assert found.shape == expected
