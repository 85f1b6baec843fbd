"""Writes down what pytest makes of the assert statements of test files, where its workers look for it.

Otherwise each worker makes it for itself, in five to ten seconds of processor time: where Python is told to write no
bytecode, pytest writes none, and elsewhere all begin with the same file at the same time. As a script it does so for
all test files: python -m tests.rewritten_asserts.
"""

import concurrent.futures
from pathlib import Path

from _pytest.assertion.rewrite import PYC_TAIL, _read_pyc, _rewrite_test, _write_pyc_fp, get_cache_dir


def write_rewritten(file: Path) -> None:
    """Leaves alone what is of this very source already."""
    compiled = get_cache_dir(file) / f"{file.stem}{PYC_TAIL}"
    if _read_pyc(file, compiled) is None:
        compiled.parent.mkdir(parents=True, exist_ok=True)
        with open(compiled, "wb") as written:
            _write_pyc_fp(written, *_rewrite_test(file, None))


if __name__ == "__main__":
    folder = Path(__file__).parent
    with concurrent.futures.ProcessPoolExecutor() as processes:
        list(processes.map(write_rewritten, [*folder.rglob("test_*.py"), *folder.rglob("conftest.py")], chunksize=8))
