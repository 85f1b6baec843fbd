"""A real driver with a phase in its own process, really signalled: it saves, ends, and the same command goes on."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from marin_dag.run.interrupts import INTERRUPTED
from runtime.tracking.events import read_events
from tests.end_to_end.driver import ROOT, ended, environment, wait_for
from tests.steps.phase_driver import UNTIL_STEP

SCRIPT = "tests/steps/phase_driver.py"


def start(prefix: Path, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, SCRIPT, "--prefix", str(prefix), "--backend", "local"],
        cwd=ROOT,
        env=environment(XLA_FLAGS=os.environ["XLA_FLAGS"], **variables),  # no bit of what it computes is looked at
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def checkpoints(prefix: Path) -> list[int]:
    """Steps at which the phase could be resumed."""
    found = prefix.glob("work/*/temporary/*/checkpoint/manifest.json")
    return sorted(int(re.findall(r"/step-(\d+)-", str(path))[0]) for path in found)


def log_of_phase(prefix: Path) -> str:
    """Return the messages of its attempt."""
    (log,) = prefix.glob("outputs/phase-*/*.log")
    return log.read_text()


def test_a_signal_to_the_driver_of_a_phase_in_its_own_process_is_a_wish_to_stop(tmp_path: Path):
    process = start(tmp_path, SECONDS_PER_UPDATE="0.3")
    wait_for(lambda: any('"begin"' in log.read_text() for log in tmp_path.glob("work/*/events/*")), process)
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    stopped = ended(process)
    assert stopped.code == INTERRUPTED, stopped.output + stopped.errors
    assert "stopping: running steps save their work; interrupt again to cancel them" in stopped.output
    assert "retrying" not in stopped.output
    assert "1 of 2 steps are done, 1 stopped" in stopped.errors
    (saved,) = checkpoints(tmp_path)
    assert 0 < saved < UNTIL_STEP
    reason = r"\((signal SIG\w+|the driver asked to stop)\)"
    assert re.search(rf"stopped:  its work is kept: at step {saved} of {UNTIL_STEP} {reason}\n", stopped.output)
    assert re.search(rf"stopped as asked: at step {saved} of {UNTIL_STEP} {reason}\n", log_of_phase(tmp_path))
    assert re.search(rf"continue:  \S+ {SCRIPT} --prefix {tmp_path} --backend local\n", stopped.errors)
    last = ended(start(tmp_path))
    assert last.code == 0, last.output + last.errors
    log = max(tmp_path.glob("work/*/events/*"))
    resumed = [event for event in read_events(str(log)) if event["event"] == "resume"]
    assert [event["step"] for event in resumed] == [saved]
