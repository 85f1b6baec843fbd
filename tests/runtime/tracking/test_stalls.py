"""Data stalls of a phase add up over its attempts, however they ended."""

import pytest

from runtime.tracking.stalls import Stall, stalls_rows, sum_stalls


def begin(at):
    return {"event": "begin", "elapsed_seconds": at, "step": 0}


def progress(at, waited, **by_cause):
    causes = {cause.replace("_", " "): seconds for cause, seconds in by_cause.items()}
    return {"event": "progress", "elapsed_seconds": at, "waited_for_data_seconds": waited, "waited_by_cause": causes}


def stall(step, cause, seconds):
    return {"event": "stall", "elapsed_seconds": 0, "step": step, "cause": cause, "waited_for_data_seconds": seconds}


def test_attempts_add_up_to_the_last_progress_of_each():
    first = [begin(5), progress(15, 1, store_read=1), stall(3, "packing", 4), progress(25, 6, store_read=2, packing=4)]
    second = [begin(2), stall(7, "store read", 1.5), progress(12, 2, store_read=2)]
    found = sum_stalls("kestrel", [first, second])
    assert (found.num_attempts, found.seconds, found.waited_seconds) == (2, 30, 8)
    assert found.by_cause == {"packing": 4, "store read": 4}
    assert found.stalls == (Stall(3, "packing", 4), Stall(7, "store read", 1.5))
    assert stalls_rows([found]) == [["kestrel", "packing", "1", "4.0", "4.0", "4"],
                                    ["kestrel", "store read", "1", "1.5", "1.5", "8"]]  # fmt: skip
    assert found.share == pytest.approx(8 / 30)


def test_an_attempt_without_progress_counts_its_stalls_and_one_without_begin_counts_nothing():
    found = sum_stalls("kestrel", [[begin(5), stall(0, "cache not built yet", 40)], [{"event": "phase"}], []])
    assert (found.num_attempts, found.seconds, found.waited_seconds, found.share) == (1, 0, 0, 0)
    assert stalls_rows([found]) == [["kestrel", "cache not built yet", "1", "40.0", "40.0", "1"]]
