"""Control actor: an attempt either starts or is withdrawn, and asking it costs a step no CPUs."""

import itertools
import time

import pytest

from marin_dag.run.ray.control_actor import ControlActor, ControlChannel, start_control_actor

SECONDS = 3.0


def test_an_attempt_either_starts_or_is_withdrawn():
    actor = ControlActor()
    assert not actor.start("a step", "first")
    assert not actor.withdraw("first") and not actor.is_stopped("first"), "it has started"
    assert actor.withdraw("second") and actor.start("a step", "second"), "it was withdrawn before it started"
    assert actor.take_updates().started == ["a step"]


@pytest.mark.usefixtures("ray_cluster")
def test_a_step_that_asks_whether_to_stop_keeps_its_cpus():
    """A task that waits in `ray.get` lends its CPUs to the next task, which then runs beside it."""
    import ray

    @ray.remote(num_cpus=2)  # all that the cluster has
    def ask(attempt: str, actor: object) -> tuple[float, float]:
        channel = ControlChannel(attempt, actor)
        channel.start("a step")
        began = time.time()
        while time.time() - began < SECONDS:
            assert not channel.stop_requested()
            time.sleep(0.05)
        return began, time.time()

    actor, _ = start_control_actor()
    ran = sorted(ray.get([ask.remote(f"attempt-{number}", actor) for number in range(2)]))
    for (_, ended), (began, _) in itertools.pairwise(ran):
        assert began >= ended
