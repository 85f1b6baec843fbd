"""Pins down: who steps back does so alone."""

import os
import sys
import threading

from runtime.training.background import NICENESS, step_back


def test_a_thread_steps_back_and_the_others_stay_where_they_are() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    seen: list[int] = []

    def run() -> None:
        step_back()
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
    assert seen == [max(before, NICENESS) if sys.platform == "linux" else before]
