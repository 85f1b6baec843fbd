"""All devices of a machine share the requests: the answers are those of one, in the order of the requests."""

import pathlib

import numpy as np
import pytest

from tests.simulated_devices import report_of


@pytest.fixture(scope="module")
def report() -> dict:
    return report_of(pathlib.Path(__file__).with_name("eight_devices.py"), num_devices=8)


@pytest.mark.parametrize(("devices", "share"), [("copies", 1), ("shards", 1 / 4)])
def test_eight_devices_give_the_answers_of_one(report, devices, share):
    assert (report["one"]["devices"], report[devices]["devices"], report[devices]["share"]) == (1, 8, share)
    found, expected = (np.array(report[name]["scores"], float) for name in (devices, "one"))
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert report[devices]["texts"] == report["one"]["texts"]
    assert len({tuple(text) for text in report["one"]["texts"]}) > 15
