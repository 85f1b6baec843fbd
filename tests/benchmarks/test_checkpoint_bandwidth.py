"""The verdict on checkpoints: either act below its bar, against plain files or against Orbax, and the claim falls."""

import pytest

from benchmarks.checkpoint_bandwidth import ACTS, judged


def speeds(**to_peer: dict[str, float]) -> dict[str, float]:
    """Return speeds of 1 GB/s for ours and a given share of it for each peer."""
    peers = {f"{act} {name}": 1 / ratios[act] for name, ratios in to_peer.items() for act in ACTS}
    return peers | {f"{act} ours": 1.0 for act in ACTS}


def test_a_claim_holds_above_each_bar_and_prints_every_ratio():
    found = judged(speeds(plain={"save": 1.74, "restore": 0.71}, orbax={"save": 1.4, "restore": 0.75}))
    assert found["holds"] is True
    assert (found["ratio"], found["bar"], found["ratio_to_orbax"], found["bar_to_orbax"]) == (0.71, 0.7, 0.75, 0.7)
    assert (found["save_ratio"], found["restore_ratio"]) == (1.74, 0.71)
    assert (found["save_ratio_to_orbax"], found["restore_ratio_to_orbax"]) == (1.4, 0.75)


@pytest.mark.parametrize("slow", [0.69, float("nan")])
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("peer", ["plain", "orbax"])
def test_one_act_below_the_bar_of_one_peer_is_enough_to_fail(peer: str, act: str, slow: float):
    ratios = {name: dict.fromkeys(ACTS, 1.0) for name in ("plain", "orbax")}
    assert judged(speeds(**ratios))["holds"] is True
    ratios[peer][act] = slow
    assert judged(speeds(**ratios))["holds"] is False
