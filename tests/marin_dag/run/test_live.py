"""Displays: what a driver shows on a terminal and in a log."""

import errno
import io
import time

import pytest
from rich.console import Console

from marin_dag.ledger.progress import Progress
from marin_dag.run import live
from marin_dag.run.live import LineDisplay, Pace, TableDisplay, bar, display_for, duration, figures_of, took
from tests.catalogue import check_message


class Screen:
    """Both streams of a display, as text."""

    def __init__(self, *, is_terminal: bool = False, width: int = 100) -> None:
        self._streams = io.StringIO(), io.StringIO()
        options = {"width": width, "force_terminal": is_terminal, "highlight": False, "color_system": None}
        self.out, self.errors = (Console(file=stream, **options) for stream in self._streams)  # type: ignore[arg-type]

    @property
    def shown(self) -> str:
        return self._streams[0].getvalue()

    @property
    def error_lines(self) -> str:
        return self._streams[1].getvalue()

    def table(self, display: TableDisplay) -> str:
        with self.out.capture() as capture:
            self.out.print(display.table())
        return capture.get()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    return now


def test_a_log_has_one_line_for_a_short_step_and_two_for_a_long_one(clock: list[float]):
    screen = Screen()
    display = LineDisplay(screen.out, screen.errors)
    display.begin(["web", "train", "count"])
    for name, seconds in (("web", 0.3), ("train", 75)):
        display.event(name, "started", "")
        display.show_starts()
        clock[0] += seconds
        display.show_starts()
        display.show_starts()
        display.event(name, "done", "")
    display.event("count", "done", "by another driver")
    assert [line.split("  ", 1)[1] for line in screen.shown.splitlines()] == [
        "web  done (1/3):  0.3 s",
        "train  started",
        "train  done (2/3):  75 s",
        "count  done (3/3):  by another driver",
    ]
    assert screen.error_lines == ""


def test_a_step_whose_start_is_heard_with_its_end_shows_the_time_since_it_was_submitted(clock: list[float]):
    screen = Screen()
    display = LineDisplay(screen.out, screen.errors)
    display.event("web", "started", "")
    display.began("web", clock[0] - 0.8)
    display.event("web", "done", "")
    display.began("web", clock[0])
    assert screen.shown.endswith("web  done (1/0):  0.8 s\n")


def test_a_log_shows_the_start_of_a_long_step_while_the_driver_waits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live, "SHORT_SECONDS", 0.02)
    screen = Screen()
    display = LineDisplay(screen.out, screen.errors)
    with display:
        display.event("train", "started", "attempt 2")
        deadline = time.monotonic() + 60
        while not screen.shown and time.monotonic() < deadline:
            time.sleep(0.01)
    assert screen.shown.split("  ", 1)[1] == "train  started:  attempt 2\n"


class ClosedPipe(io.StringIO):
    """A log whose reader has ended."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


@pytest.mark.parametrize("heard_by", ["event", "progress", "end"])
def test_a_start_that_cannot_be_printed_ends_the_driver_as_any_other_line(
    heard_by: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(live, "SHORT_SECONDS", 0.02)
    display = LineDisplay(Console(file=ClosedPipe()), Console(file=io.StringIO()))
    with pytest.raises(BrokenPipeError), display:
        display.event("train", "started", "")
        display._watch.join(60)
        assert not display._watch.is_alive()
        if heard_by == "event":
            display.event("count", "started", "")
        elif heard_by == "progress":
            display.progress("train", Progress(1, 10, "steps", {}))
        if heard_by != "end":
            pytest.fail("the driver went on")
    display.event("count", "started", "")


def test_a_log_names_an_obstacle_and_a_wait_once():
    screen = Screen()
    display = LineDisplay(screen.out, screen.errors)
    with display:
        for name in ("count", "train", "report"):
            display.event(name, "blocked", "by web")
        for name, wait in (("a", "1 cpu"), ("b", "1 cpu"), ("c", "2 cpu")):
            display.event(name, "queued", f"waits for {wait}")
    lines = [line.split("  ", 1)[-1] for line in screen.shown.splitlines()]
    assert lines == ["count  blocked:  by web", "a  queued:  waits for 1 cpu", "c  queued:  waits for 2 cpu"]


def test_failures_go_to_standard_error():
    screen = Screen()
    display = LineDisplay(screen.out, screen.errors)
    display.begin(["web"])
    display.event("web", "started", "")
    display.event("web", "failed", "ValueError: [bold]torn[/bold]")
    display.complain("0 of 1 steps are done, 1 failed")
    assert "failed" not in screen.shown
    assert screen.error_lines.splitlines()[0].endswith("web  failed:  ValueError: [bold]torn[/bold]")
    assert screen.error_lines.splitlines()[1] == "0 of 1 steps are done, 1 failed"


def test_brackets_in_an_error_are_shown_as_they_are():
    screen = Screen(is_terminal=True)
    display = TableDisplay(screen.out, screen.errors)
    with display:
        display.begin(["web"])
        display.event("web", "started", "")
        display.event("web", "failed", "ValueError: no [train] in [/tmp/x]")
    assert "ValueError: no [train] in [/tmp/x]" in screen.shown


def test_a_log_shows_progress_every_fifteen_seconds(clock: list[float]):
    screen = Screen()
    display = LineDisplay(screen.out, screen.errors)
    for second in range(0, 40, 2):
        clock[0] = 1000.0 + second
        display.progress("phoenix", Progress(second, 100, "steps", {"loss": 2.5}))
    assert [line.split("  ", 1)[1] for line in screen.shown.splitlines()] == [
        "phoenix  running:  16/100 steps  loss 2.5  84 s left",
        "phoenix  running:  32/100 steps  loss 2.5  68 s left",
    ]


def test_the_figures_of_a_resumed_phase_fit_on_a_narrow_terminal(clock: list[float]):
    screen = Screen(width=100)
    display = TableDisplay(screen.out, screen.errors)
    display.begin(["phoenix"])
    display.event("phoenix", "started", "")
    display.progress(
        "phoenix", Progress(170, 721, "steps", {"tokens_per_second": 6475, "loss": 4.931, "resumed_at": 90})
    )
    clock[0] += 40
    (row,) = [line for line in screen.table(display).splitlines() if "phoenix" in line]
    assert row.rstrip().endswith("170/721 steps  6,475 tokens/s  loss 4.931  resumed at 90") and "█░" in row


def test_the_table_separates_running_queued_and_waiting(clock: list[float]):
    screen = Screen(width=140)
    display = TableDisplay(screen.out, screen.errors)
    display.begin(["web", "phoenix", "starling", "export"])
    display.event("web", "started", "")
    display.progress("web", Progress(5, 10, "files", {}))
    display.event("phoenix", "queued", "waits for v4-2048")
    clock[0] += 40
    shown = screen.table(display)
    check_message(shown)
    display.event("phoenix", "started", "")
    check_message(screen.table(display))


def test_a_terminal_has_a_line_for_each_step_that_ended_or_is_retried(clock: list[float]):
    screen = Screen()
    display = TableDisplay(screen.out, screen.errors)
    display.begin(["web", "count", "train"])
    for name in ("web", "count", "train"):
        display.event(name, "started", "")
    clock[0] += 2
    display.event("web", "done", "")
    display.event("count", "retrying", "in 2 s after ConnectionResetError: reset")
    display.event("train", "failed", "ValueError: torn")
    assert [line.split("  ", 1)[1] for line in screen.shown.splitlines()] == [
        "web  done (1/3):  2.0 s",
        "count  retrying:  in 2 s after ConnectionResetError: reset",
    ]
    assert screen.error_lines.splitlines()[0].endswith("train  failed:  ValueError: torn")
    assert "1/3 done, 0 running, 1 waiting" in screen.table(display)


def test_the_table_leaves_its_last_state_on_the_screen():
    screen = Screen(is_terminal=True)
    display = TableDisplay(screen.out, screen.errors)
    with display:
        display.begin(["web"])
        display.event("web", "started", "")
        display.event("web", "done", "")
    assert "1/1 done, 0 running, 0 waiting" in screen.shown


def test_the_display_suits_the_stream():
    assert isinstance(display_for(stream_is_terminal=True), TableDisplay)
    assert isinstance(display_for(stream_is_terminal=False), LineDisplay)


def test_time_left_follows_the_pace_since_the_first_report():
    pace = Pace()
    assert pace.seconds_left(Progress(100, 200, "steps", {}), now=10.0) is None
    assert pace.seconds_left(Progress(110, 200, "steps", {}), now=15.0) == 45.0
    # An attempt that resumes from less starts a new pace.
    assert pace.seconds_left(Progress(50, 200, "steps", {}), now=20.0) is None
    assert pace.seconds_left(Progress(60, 200, "steps", {}), now=21.0) == 14.0


def test_figures_carry_their_units():
    progress = Progress(120, 600, "steps", {"tokens_per_second": 12_300.4, "loss": 2.34567, "data_epoch": 1.0})
    assert figures_of(progress, 40.0) == "120/600 steps  12,300 tokens/s  loss 2.346  data epoch 1  40 s left"


def test_another_unit_starts_a_new_pace():
    pace = Pace()
    assert pace.seconds_left(Progress(0, 4, "files", {}), 0.0) is None
    assert pace.seconds_left(Progress(1, 4, "files", {}), 10.0) == 30.0
    assert pace.seconds_left(Progress(600, 1_000, "MB", {}), 20.0) is None
    assert pace.seconds_left(Progress(800, 1_000, "MB", {}), 30.0) == 10.0
    assert figures_of(Progress(600, 600, "steps", {}), 0.0) == "600/600 steps"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (99, "99 s"), (100, "2 min"), (3600, "60 min"), (12_600, "3.5 h")]
)
def test_a_duration_has_a_readable_unit(seconds: float, text: str):
    assert duration(seconds) == text


def test_a_short_step_shows_tenths_of_a_second():
    assert [took(seconds) for seconds in (0.04, 9.94, 9.96, 150)] == ["0.0 s", "9.9 s", "10 s", "2 min"]


def test_a_bar_never_exceeds_its_width():
    assert bar(Progress(0, 10, "", {}), 4) == "░░░░"
    assert bar(Progress(5, 10, "", {}), 4) == "██░░"
    assert bar(Progress(20, 10, "", {}), 4) == "████"
    assert bar(Progress(0, 0, "", {}), 4) == "████"


def test_the_bar_of_a_resumed_step_shows_its_own_work_and_the_numbers_all():
    progress = Progress(660, 840, "steps", {}, begin=600)
    assert bar(progress, 8) == "██░░░░░░"
    assert figures_of(progress, None) == "660/840 steps"
    assert bar(Progress(590, 840, "steps", {}, begin=600), 4) == "░░░░"
    assert bar(Progress(600, 600, "steps", {}, begin=600), 4) == "████"
