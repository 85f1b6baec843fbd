"""Needless reruns: which step functions an edit of this project makes stale, by the history of the project itself.

The benchmark compares the fingerprints of each step function before and after each of the last commits. A pair of
commit and step function is stale if they differ. It is `import_only` if no definition that the step reaches by
name differs, but only what imports of modules execute: most such reruns are needless.

With `--against REVISION` the analysis of that revision reads the same commits. The claim is that the analysis of the
working tree makes no more pairs stale. The last line is JSON: claim, ours, reference, ratio, bar, holds.
"""

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
READ = ("steps", "runtime", "pipelines")
"""Folders whose modules count for a step; those of the engine do not."""
Definitions = dict[str, dict[str, str]]
"""Step function -> hash of each definition that it reaches."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=100)
    parser.add_argument("--until", default="HEAD", help="the last commit that is read")
    parser.add_argument("--against", default="HEAD", help="the revision whose analysis is the reference")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(_count(options.commits, options.until)))
        return
    with tempfile.TemporaryDirectory() as folder:
        _export(options.against, Path(folder, "tree"), ("marin_dag", "pyproject.toml"))
        analyses = {"ours": ROOT, "reference": Path(folder, "tree")}
        found = {name: _count_by(root, options.commits, options.until) for name, root in analyses.items()}
    for name, counts in found.items():
        by_import, each = counts["import_only"], ", ".join(f"{step} {n}" for step, n in counts["steps"].items())
        print(f"{name}: {counts['stale']} of {counts['pairs']} pairs stale, {by_import} by imports alone; {each}")
    ours, reference = found["ours"]["stale"], found["reference"]["stale"]
    # The benchmark imports the verdict only here: a worker must not put this checkout on its path.
    sys.path.insert(0, str(ROOT))
    from benchmarks.verdict import conclude

    conclude({
        "claim": f"stale pairs of commit and step function over {options.commits} commits until {options.until}",
        "ours": ours,
        "reference": reference,
        "ratio": round(reference / max(ours, 1), 2),
        "bar": "no more than by the analysis of the reference",
        "holds": ours <= reference,
    })  # fmt: skip


def _count_by(root: Path, commits: int, until: str) -> dict[str, Any]:
    """Return the counts by the analysis below `root`."""
    command = [sys.executable, __file__, "--worker", f"--commits={commits}", f"--until={until}"]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPATH": str(root), "MARIN_DAG_CACHE": cache}
        printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    counts: dict[str, Any] = json.loads(printed)
    return counts


def _count(commits: int, until: str) -> dict[str, Any]:
    sys.path.pop(0)  # the folder of this file
    listed = _git("log", f"-{commits + 1}", "--first-parent", "--format=%H", until).split()
    pairs = by_import = 0
    stale: Counter[str] = Counter()
    before: Definitions = {}
    with tempfile.TemporaryDirectory() as folder:
        for revision in reversed(listed):
            after = _definitions(revision, Path(folder, "tree"), before)
            for name in sorted(before.keys() & after.keys()):
                pairs += 1
                changed = {each for each, _ in before[name].items() ^ after[name].items()}
                stale[name] += bool(changed)
                by_import += bool(changed) and all(each.endswith(("<module>", "<imports>")) for each in changed)
            before = after
    return {"pairs": pairs, "stale": stale.total(), "import_only": by_import, "steps": +stale}


def _definitions(revision: str, tree: Path, before: Definitions) -> Definitions:
    """Return the hashes of the closure of each step function at a commit; `before` if the commit edits no module."""
    from marin_dag.code.closure import Closures
    from marin_dag.code.references import Aspect
    from marin_dag.code.sources import Place, Sources

    if before and not _git("diff", "--name-only", f"{revision}^", revision, "--", *READ):
        return before
    _export(revision, tree, READ)
    closures = Closures(Sources([tree], frozenset(READ)))
    return {
        name: closures.closure([Place(f"steps.{file.stem}", name, Aspect.VALUE)]).definitions
        for file in sorted(tree.glob("steps/*.py"))
        for name in _step_functions(file)
    }


def _step_functions(file: Path) -> Iterator[str]:
    for statement in ast.parse(file.read_bytes()).body:
        if isinstance(statement, ast.FunctionDef):
            called = [each.func if isinstance(each, ast.Call) else each for each in statement.decorator_list]
            if any(isinstance(each, ast.Name) and each.id == "step" for each in called):
                yield statement.name


def _export(revision: str, folder: Path, names: tuple[str, ...]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    present = [name for name in names if _git("ls-tree", "--name-only", revision, name)]
    archive = subprocess.run(["git", "archive", revision, *present], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
