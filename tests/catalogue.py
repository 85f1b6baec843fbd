"""The catalogue of user-facing messages: the one place where tests compare text.

`tests/messages/` holds a file for each test module, with a section for each message that the module's tests provoke.
Tests assert types, codes and fields; `expect_error` and `check_message` add the rendered text to the catalogue.
After a change of wording, `pytest --update-messages PATH` rewrites the sections of the tests that ran; read the diff.
"""

import contextlib
import difflib
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests/messages"
HEADING = re.compile(r"^## (\S.*)$", re.MULTILINE)
VARYING = (
    (re.compile(re.escape(str(ROOT))), "<repository>"),
    (re.compile(r"(<repository>/[\w./-]+\.py):\d+"), r"\1:<line>"),
    (re.compile(r"(/dev/shm|/tmp|/var/tmp)/[^\s'\":,;)]*/(?=[\w.-])"), "<tmp>/"),
    (re.compile(r"(/dev/shm|/tmp|/var/tmp)/[\w./-]*"), "<tmp>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00)?"), "<time>"),
    (re.compile(r"\bpid \d+"), "pid <pid>"),
    (re.compile(r"(127\.0\.0\.1|localhost):\d+"), r"\1:<port>"),
    (re.compile(r"( \[http_response_(body|code)='([^'\\]|\\.)*'\])+"), " [<response>]"),
    (re.compile(r"0x[0-9a-f]{6,}"), "<address>"),
    (re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,64}\b"), "<hex>"),
    (re.compile(r"\b\d{12}(?=…)"), "<hex>"),  # as below
    (re.compile(r"\b\d{8}(?=@\d)"), "<hex>"),  # the short key of a milestone whose digits are all decimal
)
"""Text that differs between runs or machines, and what the catalogue shows in its place."""

_count: Counter[str] = Counter()
_updates: dict[Path, dict[str, str]] = {}
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
    test = os.environ["PYTEST_CURRENT_TEST"].removesuffix(" (call)")
    path, _, name = test.partition("::")
    _count[test] += 1
    heading = name if _count[test] == 1 else f"{name} #{_count[test]}"
    heading = heading.encode("unicode_escape").decode()
    text = without_varying(text)
    golden = FOLDER / Path(path).relative_to("tests").with_suffix(".txt")
    if _is_updating:
        _updates.setdefault(golden, {})[heading] = text
        return
    expected = sections(golden).get(heading)
    again = f"run: python -m pytest --update-messages {path}"
    assert expected is not None, f"{golden}: no section {heading!r}; {again}\n{text}"
    difference = "\n".join(
        difflib.unified_diff(expected.split("\n"), text.split("\n"), "catalogue", "now", lineterm="")
    )
    assert expected == text, f"{heading}: the message differs from {golden}; {again}\n{difference}"


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
    for golden, new in _updates.items():
        module = (ROOT / "tests" / golden.relative_to(FOLDER)).with_suffix(".py")
        ran = {_test_of(heading) for heading in new}
        kept = {heading: text for heading, text in sections(golden).items() if _test_of(heading) not in ran}
        merged = {heading: text for heading, text in {**kept, **new}.items() if defines(module, heading)}
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text("\n".join(f"## {heading}\n{_indented(text)}\n" for heading, text in sorted(merged.items())))
    _updates.clear()


def defines(module: Path, heading: str) -> bool:
    """Return whether a test module still defines the test of a section."""
    function = _test_of(heading).rpartition("::")[2].partition("[")[0]
    return module.is_file() and f"def {function}(" in module.read_text()


def _test_of(heading: str) -> str:
    return re.sub(r" #\d+$", "", heading)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.split("\n"))


def _unindented(text: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in text.strip("\n").split("\n"))
