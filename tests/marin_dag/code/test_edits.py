"""Edits of the corpus: each gets its verdict and its reason, and no change of a result goes unseen."""

import decimal
import itertools
import os
from pathlib import Path

import numpy as np
import pytest

from tests.marin_dag.edit_corpus import FOLDER, Case, Seen, fingerprint, look, mutants, read_case, reasons

MAX_MUTANTS = 12
CASES = [read_case(path) for path in sorted(FOLDER.glob("*.edit"))]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_edit_gets_its_verdict_and_its_reason(case: Case, tmp_path: Path) -> None:
    before = look(case.before, tmp_path / "before")
    after = look(case.after, tmp_path / "after")
    assert reasons(before.step, after.step) == case.reasons
    assert (before.step.digest != after.step.digest) == case.is_changed
    assert tuple(after.step.identity["code"]["opaque"]) == case.opaque
    # The corpus itself is checked: another result is always another identity, or listed as opaque, and a verdict
    # "changed" without another result has its reason.
    if before.result != after.result:
        assert case.is_changed or case.opaque
    assert bool(case.needless) == (case.is_changed and before.result == after.result)
    if not before.step.identity["code"]["opaque"]:  # else the plan lists it
        check_mutants(case, before, tmp_path)


def check_mutants(case: Case, before: Seen, folder: Path) -> None:
    """Change the constants of a project one by one: a digest may move without need, but must not stay."""
    num_checked, unseen = 0, []
    tried = list(itertools.islice(mutants(case.before), MAX_MUTANTS))
    for number, files in enumerate(tried):
        root = folder / f"mutant{number}"
        if fingerprint(files, root, before.step) != before.step.identity["code"]["fingerprint"]:
            num_checked += 1  # whatever its result
            continue
        try:
            after = look(files, root)
        except Exception:  # many mutants do not run, and then nothing is committed
            continue
        num_checked += 1
        if before.result != after.result and before.step.digest == after.step.digest:
            unseen.append({name: text for name, text in files.items() if case.before.get(name) != text})
    assert not unseen
    assert num_checked > 0 or not tried


def test_a_project_sets_nothing_for_later_tests(tmp_path: Path) -> None:
    def settings() -> object:
        return decimal.getcontext().prec, dict(os.environ), np.get_printoptions()

    work = "decimal.getcontext().prec = 5; os.environ['PROJECT'] = '1'; np.set_printoptions(precision=3)"
    before = settings()
    look({"project/work.py": f"import decimal, os\nimport numpy as np\n{work}\ndef work(): return 1\n"}, tmp_path)
    assert settings() == before


def test_the_corpus_is_there() -> None:
    assert len(CASES) >= 750
    assert len({case.sentence for case in CASES}) == len(CASES)
