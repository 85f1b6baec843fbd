"""Compile warnings: a long compile is reported while it runs and when it ends, a short one in the log alone."""

import logging
import time

import pytest

from steps import compile_warnings
from steps.compile_warnings import announced_compile
from tests.catalogue import expect_error


class Recorder:
    """A context that records what it is given."""

    def __init__(self) -> None:
        self.log = logging.getLogger("compile warnings")
        self.warnings: list[tuple[float, str]] = []

    def warn(self, text: str) -> None:
        self.warnings.append((time.monotonic(), text))


@pytest.fixture
def context() -> Recorder:
    return Recorder()


def test_a_long_compile_is_logged_while_it_runs_and_when_it_ends(context, monkeypatch, caplog) -> None:
    monkeypatch.setattr(compile_warnings, "SILENT_SECONDS", 0.05)
    caplog.set_level(logging.INFO)
    returned: list[float] = []

    def compiling(number: int, *, more: int) -> int:
        if not returned:
            time.sleep(0.3)
        returned.append(time.monotonic())
        return number + more

    update = announced_compile(compiling, "its update", context)
    assert [update(number, more=1) for number in range(3)] == [1, 2, 3]
    (during, first), (after, second) = context.warnings
    assert during < returned[0] < after
    assert "still compiling its update" in first and "compiled its update" in second
    assert len(caplog.messages) == 2, "only the first call compiles"


def test_a_short_compile_and_one_that_fails_are_no_warning(context, monkeypatch, caplog) -> None:
    monkeypatch.setattr(compile_warnings, "SILENT_SECONDS", 0.2)
    caplog.set_level(logging.INFO)
    assert announced_compile(abs, "its update", context)(-3) == 3
    assert len(caplog.messages) == 2

    def refused() -> None:
        raise ValueError("out of memory")

    with expect_error(ValueError):
        announced_compile(refused, "its update", context)()
    time.sleep(0.4)
    assert context.warnings == [] and len(caplog.messages) == 3
