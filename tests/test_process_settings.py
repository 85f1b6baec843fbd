"""Settings that a test leaves changed are found; settings of shared fixtures are no change."""

import decimal
import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.process_settings import changes, current_settings, lines, with_changes

Act = Callable[[], object]
HANDLER = logging.NullHandler()
CHANGES: dict[str, tuple[Act, Act]] = {
    "decimal": (lambda: setattr(decimal.getcontext(), "prec", 5), lambda: setattr(decimal.getcontext(), "prec", 28)),
    "folder": (functools.partial(os.chdir, "/"), functools.partial(os.chdir, Path.cwd())),
    "numpy": (lambda: np.seterr(over="ignore"), lambda: np.seterr(over="warn")),
    "printed": (lambda: np.set_printoptions(precision=3), lambda: np.set_printoptions(precision=8)),
}
"""Changes of a setting, each with its restoration."""


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_found_and_its_restoration_is_none(name: str) -> None:
    change, restore = CHANGES[name]
    before = current_settings()
    change()
    changed = changes(before, current_settings())
    restore()
    assert len(list(lines(before, changed))) == 1
    assert changes(before, current_settings()) == {}


def test_settings_of_a_shared_fixture_are_no_change_of_the_test() -> None:
    before = {"printed": {"precision": 8, "width": 75}, "folder": "a"}
    during = {"printed": {"precision": 3, "width": 75}, "folder": "a"}
    fixture = {"printed": {"precision": 3, "width": 80}, "folder": "b"}
    expected = with_changes(before, changes(during, fixture))
    assert expected == {"printed": {"precision": 8, "width": 80}, "folder": "b"}
