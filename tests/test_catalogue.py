"""The catalogue holds one section for each message that a test provokes, and no others."""

import socket
from pathlib import Path

import pytest

from tests.catalogue import FOLDER, ROOT, defines, sections, without_varying

FILES = sorted(FOLDER.rglob("*.txt"))


@pytest.mark.parametrize("golden", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_each_section_belongs_to_a_test(golden: Path) -> None:
    module = ROOT / "tests" / golden.relative_to(FOLDER).with_suffix(".py")
    assert [heading for heading in sections(golden) if not defines(module, heading)] == []


def test_tests_compare_messages_only_with_the_catalogue() -> None:
    by_text = [path for path in (ROOT / "tests").rglob("test_*.py") if ", match=" in path.read_text()]
    assert [path for path in by_text if path != Path(__file__)] == []


def test_varying_text_is_replaced() -> None:
    host = socket.gethostname()
    text = f"{ROOT}/a.py: {host} pid 17 at 127.0.0.1:8265 since 2026-01-01T00:00:00+00:00, digest deadbeef01  "
    shown = "<repository>/a.py: <host> pid <pid> at 127.0.0.1:<port> since <time>, digest <hex>"
    assert without_varying(text) == shown
