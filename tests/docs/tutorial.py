"""The tutorial as a program: its blocks and commands run in a folder, and their output replaces that of the page.

`python -m tests.docs.tutorial` rewrites docs/tutorial.md with the output of this machine.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/tutorial.md"
BLOCK = re.compile(r"```(python|console|text)\n(.*?)```", re.DOTALL)
SHOWN_FOLDER = "/home/me/work"
VARYING = (
    (re.compile(r"\b\d+(\.\d+)?e?[+-]?\d* ?([kMGT]?B|s|min|h|seconds)\b"), "<amount>"),
    (re.compile(r"\b(\d{4}-\d\d-\d\dT)?\d\d:\d\d:\d\d\b"), "<time>"),
    (re.compile(r"\b\d{8}-\d{6}-[0-9a-f]{8}\b"), "<attempt>"),
    (re.compile(r"\b\d+\.\d+\b"), "<number>"),
    (re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,64}\b"), "<digest>"),
    (re.compile(r"\b[\d,]+ definitions\b"), "<number> definitions"),
    (re.compile(r" +"), " "),
)
"""Output that differs between machines."""


def without_varying(page: str) -> str:
    """Return a page with times, sizes, losses and digests replaced."""
    for pattern, replacement in VARYING:
        page = pattern.sub(replacement, page)
    return page


def run(folder: Path, page: str) -> str:
    """Return the page with the output that its commands have in `folder`."""
    environment = {
        **{name: value for name, value in os.environ.items() if name.startswith(("JAX_", "XLA_"))},
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(folder),
        "COLUMNS": "100",
        # Programs that other tests compiled are older than a step, which would count as files that it read.
        "JAX_COMPILATION_CACHE_DIR": f"{folder}/.cache/programs",
    }
    shown = ""

    def shell(command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode in (0, 2), f"{command}\n{done.stdout}{done.stderr}"
        return (done.stdout + done.stderr).replace(str(folder), SHOWN_FOLDER)

    def replaced(block: re.Match[str]) -> str:
        nonlocal shown
        language, text = block.groups()
        if language == "console":
            commands = [line for line in text.splitlines() if line.startswith("$ ")]
            return "```console\n" + "".join(f"{command}\n{shell(command[2:])}" for command in commands) + "```"
        if language == "text":
            return f"```text\n{shown}```"
        if "def build(" in text:
            (folder / "mine.py").write_text(text)
        else:
            (folder / "block.py").write_text(text)
            shown = shell("python block.py 2>/dev/null")
        return block[0]

    return BLOCK.sub(replaced, page)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        PAGE.write_text(run(Path(scratch), PAGE.read_text()))
