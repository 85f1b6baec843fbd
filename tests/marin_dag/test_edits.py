"""Every edit of the corpus gets its verdict and its reason; what changes a result is never called the same."""

from pathlib import Path

import pytest

from tests.marin_dag.edit_corpus import FOLDER, Case, look, read_case, reasons

CASES = [read_case(path) for path in sorted(FOLDER.glob("*.edit"))]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_edit_gets_its_verdict_and_its_reason(case: Case, tmp_path: Path) -> None:
    before = look(case.before, tmp_path / "before")
    after = look(case.after, tmp_path / "after")
    assert reasons(before.step, after.step) == case.reasons
    assert (before.step.digest != after.step.digest) == case.is_changed
    assert tuple(after.step.identity["code"]["opaque"]) == case.opaque
    # The corpus itself is held to the truth: another result is always another identity, and a verdict "changed"
    # without another result says why it is given.
    if before.result != after.result:
        assert case.is_changed
    assert bool(case.needless) == (case.is_changed and before.result == after.result)


def test_the_corpus_is_there() -> None:
    assert len(CASES) >= 50
    assert len({case.sentence for case in CASES}) == len(CASES)
