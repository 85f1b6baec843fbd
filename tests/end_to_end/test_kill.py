"""kill -9 of a driver in each kind of step, on both backends: the same command completes, with the same bytes."""

import functools
import json
import signal
import uuid
from pathlib import Path

from marin_dag.graph.graph import Graph
from tests.end_to_end.conftest import Reference
from tests.end_to_end.driver import Driver, committed, differing, processes_with, wait_for


def has_checkpoint(prefix: Path, digest: str) -> bool:
    """Return whether a phase can resume in the middle."""
    return any((prefix / "work" / digest).glob("temporary/*/checkpoint/manifest.json"))


def events(prefix: Path, digest: str) -> list[dict[str, object]]:
    """Return the event logs of all attempts, in the order of their starts."""
    logs = sorted((prefix / "work" / digest / "events").iterdir())
    return [json.loads(line) for log in logs for line in log.read_text().splitlines() if line.endswith("}")]


def test_killed_in_each_kind_of_step_the_same_command_completes_with_the_same_bytes(
    empty: Driver, reference: Reference, graph: Graph
):
    first_of_kind = {}
    for name in reference.ended.ran:
        first_of_kind.setdefault(graph.step(name).kind.name, name)
    assert len(first_of_kind) == 14
    for kind, name in first_of_kind.items():
        step = graph.step(name)
        if kind == "train_phase":
            once = functools.partial(has_checkpoint, empty.prefix, step.digest)
            empty.kill_in(step.digest, once=once, SECONDS_PER_UPDATE="0.3")
        else:
            empty.kill_in(step.digest)
        assert step.key not in committed(empty.prefix), f"{name} was done before it could be killed"
    last = empty()
    assert last.code == 0, last.output + last.errors
    assert differing(committed(empty.prefix), reference.committed) == []
    resumed = [event for event in events(empty.prefix, graph.step("kestrel").digest) if event["event"] == "resume"]
    assert [0 < event["step"] < 6 for event in resumed] == [True]


def test_a_driver_on_ray_killed_in_a_training_step_and_started_again_gives_the_bytes_of_the_local_backend(
    ground: Path, empty: Driver, reference: Reference, graph: Graph
):
    on_ray = Driver(ground, empty.prefix, backend="ray")
    until = ("--until", "lm_eval/jellyfish", "--until", "ema_eval/jellyfish")
    mark = f"TINY_TOOTSIE={uuid.uuid4().hex}"
    process = on_ray.start(*until, **dict([mark.split("=")]))
    wait_for(lambda: has_checkpoint(empty.prefix, graph.step("kestrel").digest), process)
    process.kill()  # the driver alone: what it started has to end by itself
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert graph.step("jellyfish").key not in committed(empty.prefix)

    again = on_ray(*until)
    assert again.code == 0, again.output + again.errors
    assert "Ray dashboard http://127.0.0.1:" in again.output
    made = committed(empty.prefix)
    assert {graph.step(name).key for name in until[1::2]} <= made.keys()
    assert differing(made, {key: reference.committed[key] for key in made}) == []
    wait_for(lambda: not list(processes_with(mark)))
