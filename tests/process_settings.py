"""Settings of this process that a test can change, and that it must restore for the tests after it.

A plugin of pytest, which `tests/conftest.py` registers.
"""

import decimal
import locale
import os
import sys
from collections.abc import Generator, Iterator
from typing import Any

import pytest

Settings = dict[str, Any]
"""Each setting by name; those with many keys are dictionaries."""


def current_settings() -> Settings:
    """Return the settings of this process and of imported libraries, in some 40 microseconds."""
    context = decimal.getcontext()
    found: Settings = {
        "the working directory": os.getcwd(),  # noqa: PTH109 -- `Path.cwd` takes several times as long
        "the locale": locale.setlocale(locale.LC_ALL),
        "the decimal context": (context.prec, context.rounding, context.Emin, context.Emax, dict(context.traps)),
    }
    if (numpy := sys.modules.get("numpy")) is not None and hasattr(numpy, "get_printoptions"):
        found["NumPy's settings"] = numpy.geterr() | numpy.get_printoptions()
    return found


def changes(before: Settings, after: Settings) -> Settings:
    """Return the settings of `before` with another value in `after`: of dictionaries changed keys, None if missing.

    Settings and variables that a library adds at its import are no change.
    """
    found: Settings = {}
    for name in before.keys() & after.keys():
        old, new = before[name], after[name]
        if old == new:
            continue
        if not isinstance(old, dict):
            found[name] = new
        elif keys := [key for key in old.keys() | new.keys() if old.get(key) != new.get(key) and key in old]:
            found[name] = {key: new.get(key) for key in keys}
    return found


def with_changes(settings: Settings, changed: Settings) -> Settings:
    """Return `settings` with the values of `changed`."""
    merged = settings | changed
    for name, new in changed.items():
        if isinstance(new, dict) and name in settings:
            values = settings[name] | new
            merged[name] = {key: value for key, value in values.items() if value is not None or key not in new}
    return merged


def lines(before: Settings, changed: Settings) -> Iterator[str]:
    """Yield a line for each changed setting."""
    for name, new in sorted(changed.items()):
        for key in sorted(new, key=str) if isinstance(new, dict) else [None]:
            was = before[name] if key is None else before[name].get(key)
            now = new if key is None else new[key]
            yield f"{name}{'' if key is None else f'[{key!r}]'}: {was!r}, now {now!r}"


EXPECTED = pytest.StashKey[Settings]()
"""The settings that a test has to restore: those at its start, and those of shared fixtures that it starts."""


@pytest.fixture(autouse=True)
def restores_settings(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves settings of this process changed for the tests after it."""
    request.session.stash[EXPECTED] = current_settings()
    yield
    expected = request.session.stash[EXPECTED]
    changed = changes(expected, current_settings())
    assert not changed, "the test leaves settings changed:\n" + "\n".join(lines(expected, changed))


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Let a fixture that several tests share change settings; it restores them after the last of these tests."""
    if fixturedef.scope == "function":
        return (yield)
    before = current_settings()
    result = yield
    expected = request.session.stash.get(EXPECTED, before)
    request.session.stash[EXPECTED] = with_changes(expected, changes(before, current_settings()))
    return result
