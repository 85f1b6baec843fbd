"""Displays: one line for each event of a driver; on a terminal also a table of the steps that run or are queued."""

import sys
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from marin_dag.ledger.progress import Progress
from marin_dag.run.frontier import ENDED

PROGRESS_LINE_SECONDS = 15.0
SHORT_SECONDS = 2.0
"""Log one line for a step that ends sooner, and a line for the start of every other step."""
BAR_CELLS, NARROW_BAR_CELLS, ROOMY_COLUMNS = 20, 6, 130


def display_for(stream_is_terminal: bool | None = None) -> "LineDisplay":
    is_terminal = sys.stdout.isatty() if stream_is_terminal is None else stream_is_terminal
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    if is_terminal:
        return TableDisplay(Console(), errors)
    return LineDisplay(Console(soft_wrap=True, highlight=False), errors)


class Pace:
    """Estimate of the time that a step still takes, from its speed since its first report."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._unit = ""

    def seconds_left(self, progress: Progress, now: float) -> float | None:
        """Return the seconds left; None before any progress."""
        if self._first is None or progress.done < self._first[1] or progress.unit != self._unit:
            self._first, self._unit = (now, progress.done), progress.unit
        elapsed, done = now - self._first[0], progress.done - self._first[1]
        if done <= 0 or elapsed <= 0:
            return None
        return (progress.total - progress.done) * elapsed / done


class Start(NamedTuple):
    """The start of an attempt at a step."""

    moment: float
    clock: str
    detail: str
    is_shown: bool = False


class LineDisplay:
    """Display for logs and pipes; a context manager, entered while the driver runs."""

    def __init__(self, console: Console, errors: Console) -> None:
        self._console, self._errors = console, errors
        self._total = self._done = 0
        self._shown: set[str] = set()
        """Reasons to wait or to be blocked; each is shown once, since thousands of steps may share it."""
        self._last_line: dict[str, float] = {}
        self._paces: dict[str, Pace] = {}
        self._starts: dict[str, Start] = {}
        """Starts of the running steps."""
        self._lock = threading.Lock()
        """Guards the starts."""
        self._has_ended = threading.Event()
        self._failure: Exception | None = None
        """Error of the thread that prints starts; the next call raises it where the driver hears it."""
        self._watch = threading.Thread(target=self._watch_starts, daemon=True)

    def __enter__(self) -> object:
        self._watch.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop printing; the last table stays on the terminal."""
        self._has_ended.set()
        self._watch.join()
        if exception == (None, None, None):
            self._raise_failure()

    def begin(self, names: Sequence[str]) -> None:
        """Set the steps that will run."""
        self._total = len(names)

    def say(self, text: str) -> None:
        """Print a line about the driver as a whole."""
        self._print(self._console, text)

    def complain(self, text: str) -> None:
        """Print a line to standard error."""
        self._print(self._errors, text)

    def event(self, name: str, what: str, detail: str) -> None:
        """Print a line; delay the line for a start until the step has run for `SHORT_SECONDS`."""
        self._raise_failure()
        with self._lock:
            start = self._starts.pop(name, None)
            if what == "started":
                self._paces[name] = Pace()
                self._starts[name] = Start(time.monotonic(), time.strftime("%H:%M:%S"), detail)
                return
        if what in ("queued", "blocked"):
            if detail in self._shown:
                return
            self._shown.add(detail)
        of_all = ""
        if what == "done":
            self._done += 1
            of_all = f" ({self._done}/{self._total})"
            detail = ", ".join(filter(None, (took(time.monotonic() - start.moment) if start else "", detail)))
        self._line(name, f"{what}{of_all}", detail)

    def show_starts(self) -> None:
        """Print a line for each step that has run for `SHORT_SECONDS` and has no line yet."""
        with self._lock:
            now = time.monotonic()
            for name, start in self._starts.items():
                if not start.is_shown and now - start.moment >= SHORT_SECONDS:
                    self._starts[name] = start._replace(is_shown=True)
                    self._line(name, "started", start.detail, clock=start.clock)

    def _watch_starts(self) -> None:
        try:
            while not self._has_ended.wait(SHORT_SECONDS / 4):
                self.show_starts()
        except Exception as error:
            self._failure = error

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def began(self, name: str, moment: float) -> None:
        """Correct the start time of a running step, on the monotonic clock."""
        with self._lock:
            if name in self._starts:
                self._starts[name] = self._starts[name]._replace(moment=moment)

    def progress(self, name: str, progress: Progress) -> None:
        self._raise_failure()
        now = time.monotonic()
        left = self._paces.setdefault(name, Pace()).seconds_left(progress, now)
        is_due = now - self._last_line.setdefault(name, now) >= PROGRESS_LINE_SECONDS
        if is_due and progress.done < progress.total:  # a line for the end follows
            self._last_line[name] = now
            self._line(name, "running", figures_of(progress, left))

    def _line(self, name: str, what: str, detail: str, *, clock: str = "") -> None:
        text = f"{clock or time.strftime('%H:%M:%S')}  {name}  {what}{':  ' if detail else ''}{detail}"
        self._print(self._errors if what == "failed" else self._console, text)

    def _print(self, console: Console, text: str) -> None:
        # Not `console.print`: it costs a third of a millisecond, much of what the driver adds to a trivial step.
        if not console.quiet:
            print(text, file=console.file, flush=True)


class TableDisplay(LineDisplay):
    """Display for a terminal."""

    def __init__(self, console: Console, errors: Console) -> None:
        super().__init__(console, errors)
        self._figures: dict[str, str] = {}
        """Progress of each running step, as text."""
        self._queued: dict[str, str] = {}
        self._num_ended = 0
        self._live = Live(console=console, get_renderable=self.table, refresh_per_second=4, transient=False)

    def __enter__(self) -> object:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def event(self, name: str, what: str, detail: str) -> None:
        """See LineDisplay. The table shows what has started and what is queued."""
        self._figures.pop(name, None)
        self._queued.pop(name, None)
        self._num_ended += what in ENDED
        if what == "queued":
            self._queued[name] = detail
            return
        super().event(name, what, detail)

    def progress(self, name: str, progress: Progress) -> None:
        now = time.monotonic()
        left = self._paces.setdefault(name, Pace()).seconds_left(progress, now)
        width = BAR_CELLS if self._console.width >= ROOMY_COLUMNS else NARROW_BAR_CELLS
        self._figures[name] = f"  {bar(progress, width)}  {figures_of(progress, left)}"

    def table(self) -> RenderableType:
        """Return the table: all steps that run or are queued, and the count of the rest."""
        table = Table(box=None, pad_edge=False, show_header=False)
        if not self._total:  # Ray is starting
            return table
        running, queued = dict(self._starts), dict(self._queued)  # copies: rich calls this from its own thread
        for name, start in running.items():
            since = duration(time.monotonic() - start.moment)
            table.add_row(name, Text("running", style="cyan"), Text(since + self._figures.get(name, "")))
        for name, detail in queued.items():
            table.add_row(name, Text("queued", style="magenta"), Text(detail))
        waiting = self._total - self._num_ended - len(running) - len(queued)
        of_queued = f"{len(queued)} queued, " if queued else ""
        total = f"{self._done}/{self._total} done, {len(running)} running, {of_queued}{waiting} waiting"
        return Group(table, Text(total, style="dim"))

    def _print(self, console: Console, text: str) -> None:
        # The table's own console prints the line above the table.
        shown = self._console if self._live.is_started else console
        shown.print(text, markup=False, highlight=False, soft_wrap=True)


def bar(progress: Progress, width: int) -> str:
    num_full = round(progress.share * width)
    return "█" * num_full + "░" * (width - num_full)


def figures_of(progress: Progress, seconds_left: float | None) -> str:
    """Return `120/600 steps  12,300 tokens/s  40 s left`."""
    shown = [f"{progress.done:,}/{progress.total:,} {progress.unit}"]
    for name, value in progress.figures.items():
        if name.endswith("_per_second"):
            shown.append(f"{value:,.0f} {name.removesuffix('_per_second').replace('_', ' ')}/s")
        else:
            shown.append(f"{name.replace('_', ' ')} {_figure(value)}")
    if seconds_left is not None and progress.done < progress.total:
        shown.append(f"{duration(seconds_left)} left")
    return "  ".join(shown)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"


def took(seconds: float) -> str:
    """Return a text such as `0.3 s`; from ten seconds on that of `duration`."""
    return f"{seconds:.1f} s" if seconds < 9.95 else duration(seconds)


def duration(seconds: float) -> str:
    """Return `40 s`, `12 min` or `3.5 h`."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
