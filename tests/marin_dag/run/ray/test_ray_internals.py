"""Ray internals: the changed private parts still exist, and behave as the engine needs."""

import os
import subprocess
import sys

import pytest
import ray._private.worker

from marin_dag.run.ray.ray_internals import capture_ray_messages, processes_in_own_groups


def test_a_message_of_ray_is_handled_by_its_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray._private.worker, "print_to_stdstream", ray._private.worker.print_to_stdstream)
    messages: list[str] = []
    capture_ray_messages(messages.append)
    data = {"lines": ["\nA worker died.\nTraceback"], "pid": "raylet", "ip": None, "is_err": False}
    ray._private.worker.print_to_stdstream(data, ignore_prefix=True)
    assert messages == ["A worker died."]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the children of a killed process")
def test_only_processes_started_inside_the_block_have_groups_of_their_own() -> None:
    command = ["sleep", "0.1"]

    def has_own_group() -> bool:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        group = os.getpgid(process.pid)
        process.communicate()
        return group == process.pid

    with processes_in_own_groups():
        assert has_own_group()
    assert not has_own_group()
