"""kill -9 of a driver in each kind of step, on both backends: the same command completes, with the same bytes."""

import functools
import json
import shutil
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


KINDS = {
    "download": "files of several requests",
    "tokenize": "shards, in blocks that others read before the end",
    "train_phase": "checkpoints",
    "lm_eval": "answers to requests",
    "report": "nothing: it begins again",
}
"""Kinds of steps, each with another form of what it keeps when it is killed.

`tests/steps/test_text_killed.py` kills each map of the other text steps, and those that remain keep nothing, as
`report`.
"""


def test_killed_in_a_step_of_each_form_the_same_command_completes_with_the_same_bytes(
    empty: Driver, reference: Reference, graph: Graph
):
    names = reversed(reference.ended.ran)
    first_of_kind = {graph.step(name).kind.name: name for name in names}
    assert KINDS.keys() < first_of_kind.keys()
    for kind in KINDS:
        step = graph.step(first_of_kind[kind])
        if kind == "train_phase":
            once = functools.partial(has_checkpoint, empty.prefix, step.digest)
            empty.kill_in(step.digest, once=once, SECONDS_PER_UPDATE="0.3")
        else:
            empty.kill_in(step.digest)
        assert step.key not in committed(empty.prefix), f"{step.name} was done before it could be killed"
    last = empty()
    assert last.code == 0, last.output + last.errors
    assert differing(committed(empty.prefix), reference.committed) == []
    resumed = [event for event in events(empty.prefix, graph.step("kestrel").digest) if event["event"] == "resume"]
    assert [0 < event["step"] < 6 for event in resumed] == [True]


def take_over_texts(graph: Graph, reference: Reference, prefix: Path, *, but: str) -> None:
    """Copy the undisturbed run without training, and without the documents and tokens of the source `but`."""
    shutil.copytree(reference.prefix, prefix, ignore=shutil.ignore_patterns("leases", "work"))
    texts = {name for name in graph.names if "kestrel" in graph.descendants(name)} - {"kestrel"}
    kept = {f"{graph.step(name).key}.json" for name in texts if not name.endswith(f"/{but}")}
    for record in (prefix / "commits").iterdir():
        if record.name not in kept:
            record.unlink()


def test_a_driver_on_ray_killed_in_a_training_step_and_started_again_gives_the_bytes_of_the_local_backend(
    ground: Path, empty: Driver, reference: Reference, graph: Graph
):
    take_over_texts(graph, reference, empty.prefix, but="web")
    kept = committed(empty.prefix)
    on_ray = Driver(ground, empty.prefix, backend="ray")
    until = ("--until", "ema_eval/kestrel")
    mark = f"TINY_TOOTSIE={uuid.uuid4().hex}"
    process = on_ray.start(*until, **dict([mark.split("=")]))
    wait_for(lambda: has_checkpoint(empty.prefix, graph.step("kestrel").digest), process)
    process.kill()  # the driver alone: what it started has to end by itself
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert graph.step("ema_eval/kestrel").key not in committed(empty.prefix)

    again = on_ray(*until)
    assert again.code == 0, again.output + again.errors
    assert "Ray dashboard http://127.0.0.1:" in again.output
    made = committed(empty.prefix)
    by_ray = {graph.step(name).key for name in ("tokenize/web", "kestrel", "ema_eval/kestrel")}
    assert by_ray <= made.keys() - kept.keys()
    assert differing(made, {key: reference.committed[key] for key in made}) == []
    wait_for(lambda: not list(processes_with(mark)))
