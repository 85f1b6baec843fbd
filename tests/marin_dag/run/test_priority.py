"""Priority: a step in the background lowers all threads of its process."""

import os
import subprocess
import sys

from marin_dag.run.supply import NICENESS

CODE = """
import os, threading
from marin_dag.run.supply import lower_process_priority
ended = threading.Event()
before = threading.Thread(target=ended.wait)
before.start()
lower_process_priority()
after = threading.Thread(target=ended.wait)
after.start()
print(*(os.getpriority(os.PRIO_PROCESS, thread.native_id) for thread in (threading.main_thread(), before, after)))
ended.set()
"""


def test_threads_from_before_and_after_have_the_lower_priority():
    output = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert output.split() == [str(NICENESS if sys.platform == "linux" else own)] * 3
