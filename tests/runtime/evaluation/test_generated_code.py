"""Programs that a model writes run confined, and count as passed only if they reach their end."""

import pytest

from runtime.evaluation.generated_code import CodeEval, passes


@pytest.mark.parametrize(
    "program",
    [
        "import socket; socket.socket()",
        "open('written', 'w')",
        "import os; os.remove('victim')",
        "import os; os.kill(os.getppid(), 0)",
        "import os; os.fork()",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.memfd_create('x')",
        "import os; os.setpriority(0, os.getppid(), 5)",
        "import resource; resource.setrlimit(resource.RLIMIT_CPU, (99, 99))",
        "import fcntl; fcntl.fcntl(0, fcntl.F_SETOWN, 1)",
        "import os; os._exit(0)",
        "import sys; sys.exit(0)",
        "bytearray(1 << 31)",
        "assert False",
        "def",
    ],
)
def test_a_program_of_a_model_can_do_nothing_but_compute_and_read(program):
    assert not passes(program)


def test_a_program_may_compute_and_read_and_ends_at_its_limit_of_time():
    assert passes("import datetime, heapq, math, re, random\nprint(open('/dev/null').read(), 'x' * 10**6)")
    assert passes("import numpy, time\ntime.sleep(0.01)\nassert numpy.linalg.inv(numpy.eye(3)).sum() == 3")
    assert not passes("while True: pass", processor_seconds=1)
    assert not passes("import time; time.sleep(30)", seconds=1.0)


def test_pass_at_k_is_the_share_of_draws_with_a_program_that_passes():
    found, _ = CodeEval().compute(references=["assert x"], predictions=[["x = 1", "x = 0", "x = 0"]], k=[1, 2])
    assert found == pytest.approx({"pass@1": 1 / 3, "pass@2": 2 / 3})


def test_one_host_of_a_gang_runs_the_programs(monkeypatch):
    monkeypatch.setattr("jax.process_index", lambda: 1)
    monkeypatch.setattr("runtime.evaluation.generated_code.passes", pytest.fail)
    assert CodeEval().compute(references=["pass"], predictions=[["pass"]], k=[1])[0] == {"pass@1": 0.0}
