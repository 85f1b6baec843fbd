"""A step's end of the switchboard, on a real Ray cluster: it asks whether to stop, and keeps what it was given."""

import itertools
import time

import pytest
from marin_dag.run.ray.switchboard import Switchboard, SwitchboardChannel, start_switchboard

SECONDS = 3.0


def test_an_attempt_either_begins_or_is_withdrawn():
    switchboard = Switchboard()
    assert not switchboard.begin("a step", "first")
    assert not switchboard.withdraw("first") and not switchboard.is_stopped("first"), "it hears what it is told"
    assert switchboard.withdraw("second") and switchboard.begin("a step", "second"), "it came too late to begin"
    assert switchboard.take_news().started == ["a step"]


@pytest.mark.usefixtures("ray_cluster")
def test_a_step_that_asks_whether_to_stop_keeps_its_cores():
    """A task that waits in `ray.get` lends its cores to the next one, which then trains beside it."""
    import ray

    @ray.remote(num_cpus=2)  # all that the cluster has
    def ask(attempt: str, switchboard: object) -> tuple[float, float]:
        channel = SwitchboardChannel(attempt, switchboard)
        channel.begin("a step")
        began = time.time()
        while time.time() - began < SECONDS:
            assert not channel.stop_requested()
            time.sleep(0.05)
        return began, time.time()

    switchboard = start_switchboard()
    ran = sorted(ray.get([ask.remote(f"attempt-{number}", switchboard) for number in range(2)]))
    for (_, ended), (began, _) in itertools.pairwise(ran):
        assert began >= ended
