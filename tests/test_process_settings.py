"""Settings that a test leaves changed are found; settings of shared fixtures are no change."""

import decimal
import functools
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.process_settings import changes, current_settings, lines, with_changes

Act = Callable[[], object]
HANDLER = logging.NullHandler()
CHANGES: dict[str, tuple[Act, Act]] = {
    "decimal": (lambda: setattr(decimal.getcontext(), "prec", 5), lambda: setattr(decimal.getcontext(), "prec", 28)),
    "variable": (lambda: os.environ.update(JAX_LEFT="1"), lambda: os.environ.pop("JAX_LEFT")),
    "folder": (functools.partial(os.chdir, "/"), functools.partial(os.chdir, Path.cwd())),
    "path": (lambda: sys.path.append("left"), lambda: sys.path.remove("left")),
    "signal": (
        lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
        lambda: signal.signal(signal.SIGUSR1, signal.SIG_DFL),
    ),
    "handler": (
        lambda: logging.getLogger().addHandler(HANDLER),
        lambda: logging.getLogger().removeHandler(HANDLER),
    ),
    "numpy": (lambda: np.seterr(over="ignore"), lambda: np.seterr(over="warn")),
    "printed": (lambda: np.set_printoptions(precision=3), lambda: np.set_printoptions(precision=8)),
    "jax": (
        lambda: jax.config.update("jax_enable_x64", True),
        lambda: jax.config.update("jax_enable_x64", False),
    ),
    "collection": (gc.disable, gc.enable),
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
    before = {"os.environ": {"A": "1", "GONE": "1"}, "sys.path": ("a",)}
    during = {"os.environ": {"A": "patched", "GONE": "1"}, "sys.path": ("a",)}
    fixture = {"os.environ": {"A": "patched", "JAX_SHARED": "1"}, "sys.path": ("a", "b")}
    expected = with_changes(before, changes(during, fixture))
    assert expected == {"os.environ": {"A": "1", "JAX_SHARED": "1"}, "sys.path": ("a", "b")}
