"""Pins down: what a process says before it joins the others; of several slices each says which it is, for libtpu. Hosts
agree on the largest word of each round, whatever their devices are still busy with.
"""

import json
import os
import socket
import subprocess
import sys
from subprocess import PIPE
from typing import Any

import jax
import pytest

from runtime.parallel import hosts
from runtime.parallel.hosts import join_hosts

NAMES = ("MEGASCALE_COORDINATOR_ADDRESS", "MEGASCALE_PORT", "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID")


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """Return how JAX was started, and the slice variables of the environment at that time."""
    found: list[tuple[dict[str, Any], dict[str, str]]] = []

    def initialize(**options: Any) -> None:
        found.append((options, {name: os.environ[name] for name in NAMES if name in os.environ}))

    for name in NAMES:  # both lines: what the test sets is taken back
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    return found


def test_a_single_host_joins_no_gang(joined):
    join_hosts(coordinator="", num_hosts=1, index=0)
    assert not joined and not set(NAMES) & set(os.environ)


def test_hosts_of_one_slice_meet_at_the_coordinator_and_say_nothing_of_slices(joined):
    join_hosts(coordinator="10.0.0.7:8476", num_hosts=4, index=3)
    ((options, slices),) = joined
    assert slices == {}
    assert options == {
        "coordinator_address": "10.0.0.7:8476",
        "num_processes": 4,
        "process_id": 3,
        "initialization_timeout": hosts.INITIALIZATION_TIMEOUT_SECONDS,
        "cluster_detection_method": "deactivate",
    }


def test_hosts_of_several_slices_say_which_is_theirs_before_they_join(joined):
    join_hosts(coordinator="[fd00::7]:8476", num_hosts=128, index=65, num_slices=2, slice_index=1)
    ((options, slices),) = joined
    assert (options["num_processes"], options["process_id"]) == (128, 65)
    assert slices == dict(zip(NAMES, ("[fd00::7]", hosts.MEGASCALE_PORT, "2", "1"), strict=True))


COUNTS = """
import jax
from runtime.parallel.hosts import open_cores
from runtime.parallel.mesh import mesh_of_cores
{before}
open_cores({number})
print(jax.local_device_count(), mesh_of_cores({number}).size)
print(float(jax.jit(lambda values: values.sum())(jax.numpy.ones(3))))
"""


@pytest.mark.parametrize(
    ("before", "number"), [("", 1), ("jax.devices()", 64), ("open_cores(1); jax.numpy.ones(2)", 64)]
)
def test_a_process_gets_the_devices_that_a_step_asks_for_whatever_it_did_before(before: str, number: int):
    code = COUNTS.format(before=before, number=number)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(number), str(number), "3.0"]


def test_simulated_devices_that_a_process_set_stay():
    code = COUNTS.format(before="jax.config.update('jax_num_cpu_devices', 64)", number=1)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "64"


@pytest.mark.skipif(sys.platform != "linux", reason="reads the names of threads")
def test_a_process_computes_with_as_many_threads_as_its_latest_step_has_cores():
    code = """
import os, jax
from runtime.parallel.hosts import limit_threads
for number in (3, 5):
    limit_threads(number)
    jax.numpy.ones(2)
    names = [open(f"/proc/self/task/{thread}/comm").read() for thread in os.listdir("/proc/self/task")]
    print(names.count("tf_XLAEigen\\n"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3", "8"], "threads of the earlier devices idle on"


@pytest.mark.parametrize(
    ("status", "expected"), [("DEADLINE_EXCEEDED", TimeoutError), ("UNAVAILABLE", jax.errors.JaxRuntimeError)]
)
def test_only_a_barrier_past_its_deadline_is_a_timeout(
    status: str, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
):
    class Service:
        def wait_at_barrier(self, name: str, milliseconds: int) -> None:
            raise jax.errors.JaxRuntimeError(f"{status}: Barrier failed. id: {name}")

    monkeypatch.setattr(hosts, "_service", Service)
    with pytest.raises(expected):
        hosts.meet_hosts("parts", seconds=1)


WORDS = [[0, 0], [0, 2], [1, 0], [1, 1], [0, 0], [2, 1], [0, 0]]
AGREES = f"""
import json, sys
import jax
from runtime.parallel.hosts import Agreement, join_hosts
index = int(sys.argv[2])
join_hosts(coordinator=sys.argv[1], num_hosts=2, index=index)
first, second = Agreement("first"), Agreement("second")
agreed = [(first(words[index]), second(words[1 - index])) for words in {WORDS}]
busy = jax.jit(lambda: jax.lax.fori_loop(0, 1_000_000, lambda _, x: x @ x * 1e-3, jax.numpy.ones((512, 512))))()
agreed.append((first(index), second(0)))
print(json.dumps([agreed, busy.is_ready()]), flush=True)
sys.stdin.read()  # until it is killed: the other one may not have agreed yet
"""


def test_hosts_agree_on_the_largest_word_of_each_round_while_their_devices_are_busy():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    hosts = [
        subprocess.Popen([sys.executable, "-c", AGREES, coordinator, str(index)], stdin=PIPE, stdout=PIPE, text=True)
        for index in range(2)
    ]
    try:
        words = [json.loads(host.stdout.readline()) for host in hosts if host.stdout]
    finally:
        for host in hosts:
            host.kill()
            host.communicate()
    expected = [[max(words)] * 2 for words in WORDS]
    assert words == [[[*expected, [1, 0]], False]] * 2
