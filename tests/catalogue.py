"""The catalogue of user-facing messages: the one place where tests compare text.

`tests/messages/` holds a file for each test module, with a section for each message that the module's tests provoke.
Tests assert types, codes and fields; `expect_error` and `check_message` add the rendered text to the catalogue.
After a change of wording, `pytest --update-messages PATH` rewrites the sections of the tests that ran; read the diff.
"""

import contextlib
import difflib
import functools
import os
import re
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests/messages"
HEADING = re.compile(r"^## (\S.*)$", re.MULTILINE)
HOST = re.escape(socket.gethostname())
VARYING = (
    (re.compile(re.escape(str(ROOT))), "<repository>"),
    (re.compile(r"(<repository>/[\w./-]+\.py):\d+"), r"\1:<line>"),
    (re.compile(r"(/dev/shm|/tmp|/var/tmp)/[^\s'\":,;)]*/(?=[\w.-])"), "<tmp>/"),
    (re.compile(r"(/dev/shm|/tmp|/var/tmp)/[\w./-]*"), "<tmp>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00)?"), "<time>"),
    (re.compile(rf"(?<=\bon ){HOST}\b|\b{HOST}(?= \(?pid )"), "<host>"),
    (re.compile(r"\bpid \d+"), "pid <pid>"),
    (re.compile(r"(127\.0\.0\.1|localhost):\d+"), r"\1:<port>"),
    (re.compile(r"( \[http_response_(body|code)='([^'\\]|\\.)*'\])+"), " [<response>]"),
    (re.compile(r"0x[0-9a-f]{6,}"), "<address>"),
    (re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,64}\b"), "<hex>"),
    (re.compile(r"\b\d{12}(?=…)"), "<hex>"),  # as below
    (re.compile(r"\b\d{8}(?=@\d)"), "<hex>"),  # the short key of a milestone whose digits are all decimal
)
"""Text that differs between runs or machines, and what the catalogue shows in its place."""

_count: Counter[tuple[Path, str]] = Counter()
_updates: dict[Path, dict[str, str]] = {}
_finished: dict[Path, set[str]] = {}
_is_updating = False


def start(*, is_updating: bool) -> None:
    """Choose between comparing with the catalogue and rewriting it. Called once by `tests/conftest.py`."""
    global _is_updating
    _is_updating = is_updating


@contextlib.contextmanager
def expect_error(*types: type[BaseException]) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """Expect an exception of one of `types`, as `pytest.raises` does, and compare its message with the catalogue."""
    with pytest.raises(types) as caught:
        yield caught
    check_message(str(caught.value))


def check_message(text: str) -> None:
    """Compare a message or the output of a command with this test's next section of the catalogue.

    Raises:
        AssertionError: the text differs from the section, or there is no section.
    """
    golden, name = _current_test()
    _count[golden, name] += 1
    heading = name if _count[golden, name] == 1 else f"{name} #{_count[golden, name]}"
    text = without_varying(text)
    if _is_updating:
        _updates.setdefault(golden, {})[heading] = text
        return
    expected = sections(golden).get(heading)
    again = f"run: python -m pytest --update-messages {_module_of(golden)}"
    assert expected is not None, f"{golden}: no section {heading!r}; {again}\n{text}"
    difference = "\n".join(
        difflib.unified_diff(expected.split("\n"), text.split("\n"), "catalogue", "now", lineterm="")
    )
    assert expected == text, f"{heading}: the message differs from {golden}; {again}\n{difference}"


def finish_test() -> None:
    """Check at the end of a test that it has provoked all of its sections; called by `tests/conftest.py`.

    Raises:
        AssertionError: the catalogue has sections of this test that the test no longer provokes.
    """
    golden, name = _current_test()
    _finished.setdefault(golden, set()).add(name)
    left = 0 if _is_updating else _num_sections(golden)[name] - _count[golden, name]
    assert left <= 0, (
        f"{golden}: {left} sections of {name!r} are provoked no longer; run: python -m pytest --update-messages "
        f"{_module_of(golden)}"
    )


def without_varying(text: str) -> str:
    """Return `text` with paths, times, ports, process ids and digests replaced, and without trailing blanks."""
    for pattern, replacement in VARYING:
        text = pattern.sub(replacement, text)
    return "\n".join(line.rstrip() for line in text.strip("\n").split("\n"))


def sections(golden: Path) -> dict[str, str]:
    """Return heading and text of each section of a catalogue file, in order."""
    if not golden.is_file():
        return {}
    parts = HEADING.split(golden.read_text())[1:]
    return {heading: _unindented(text) for heading, text in zip(parts[::2], parts[1::2], strict=True)}


def write_updates() -> None:
    """Write the sections of the tests that ran; drop those of tests that their module no longer defines."""
    for golden in _finished if _is_updating else ():
        new, module = _updates.get(golden, {}), ROOT / _module_of(golden)
        ran = _finished[golden] | {_test_of(heading) for heading in new}
        kept = {heading: text for heading, text in sections(golden).items() if _test_of(heading) not in ran}
        merged = {heading: text for heading, text in {**kept, **new}.items() if defines(module, heading)}
        if merged:
            golden.parent.mkdir(parents=True, exist_ok=True)
            parts = (f"## {heading}\n{_indented(text)}\n" for heading, text in sorted(merged.items()))
            golden.write_text("\n".join(parts))
        else:
            golden.unlink(missing_ok=True)
    _updates.clear()


def defines(module: Path, heading: str) -> bool:
    """Return whether a test module still defines the test of a section."""
    function = _test_of(heading).rpartition("::")[2].partition("[")[0]
    return module.is_file() and f"def {function}(" in module.read_text()


def _current_test() -> tuple[Path, str]:
    """Return the catalogue file of the current test's module, and the test's name as headings have it."""
    path, _, name = os.environ["PYTEST_CURRENT_TEST"].removesuffix(" (call)").partition("::")
    return FOLDER / Path(path).relative_to("tests").with_suffix(".txt"), name.encode("unicode_escape").decode()


@functools.cache
def _num_sections(golden: Path) -> Counter[str]:
    return Counter(map(_test_of, sections(golden)))


def _module_of(golden: Path) -> Path:
    return Path("tests") / golden.relative_to(FOLDER).with_suffix(".py")


def _test_of(heading: str) -> str:
    return re.sub(r" #\d+$", "", heading)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.split("\n"))


def _unindented(text: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in text.strip("\n").split("\n"))
