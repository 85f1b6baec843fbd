"""Every command that README prints works as printed."""

import gzip
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from marin_dag.cli.main import COMMANDS
from marin_dag.cli.page_server import PageServer
from pipelines import recipe
from pipelines.tootsie import main

ROOT = Path(__file__).parents[2]
PROGRAM = "python pipelines/tootsie.py"
STARTS_NOTHING = {"--dry-run", *COMMANDS, *(command.name for command in recipe.COMMANDS), "mix"}
"""Words of a line that starts no step; any other line is planned here and not run."""


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the arguments of every line of a page that calls the pipeline, without the words that explain it."""
    for line in page.read_text(encoding="utf-8").splitlines():
        found = re.match(rf"    (?:\$ |\w+ \w+ +)?{re.escape(PROGRAM)}(.*)", line)
        if found:
            yield shlex.split(re.split(r" {3,}", found[1])[0] if found[1].startswith(" ") else "", comments=True)


NEEDS_A_RUN = {"documents", "heat-map", "batch", "sample"}
"""Commands that fail before the steps that they show are done."""
README = list(commands(ROOT / "README.md"))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in ("web_notes", "papers"):
        lines = (json.dumps({"text": f"Page {number} of {name}."}) + "\n" for number in range(2_000))
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode(), mtime=0))
    return folder


def call(arguments: list[str], prefix: Path, corpus: Path) -> int:
    arguments = [str(corpus) if word == "DIR" else word for word in arguments if word]
    if "--prefix" not in arguments:
        arguments += ["--prefix", str(prefix)]
    else:
        arguments[arguments.index("--prefix") + 1] = str(prefix)
    if not any(word in STARTS_NOTHING for word in arguments):
        arguments.append("--dry-run")
    return main(arguments)


def test_readme_prints_the_commands_of_a_day():
    words = {word for arguments in README for word in arguments}
    assert len(README) >= 9
    assert {"--dry-run", "--set", "--until", "--corpus", "--scale", "why", "ls", "fork"} <= words
    assert words & set(COMMANDS)


def test_every_command_of_readme_works_in_the_order_in_which_it_is_printed(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def press_ctrl_c(server: PageServer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PageServer, "serve_forever", press_ctrl_c)
    for arguments in README:
        free_port = ["--port", "0"] if "page" in arguments else []
        code = call([*arguments, *free_port], tmp_path / "runs", corpus)
        output = capsys.readouterr()
        assert code in ((1,) if NEEDS_A_RUN & {*arguments} else (0, 2)), (arguments, output.err)
        assert code == 1 or output.err == "", arguments


def test_the_figures_that_readme_gives_of_the_plans_are_those_of_the_plans(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    for arguments, claim in (
        (["--scale", "8b"], r"the real thing: (\d+) steps, ([\d.]+) trillion tokens"),
        ([], r"(\d+) steps: \d+ done"),
    ):
        assert call([*arguments, "--dry-run"], tmp_path / "runs", corpus) == 2
        output = capsys.readouterr().out
        found = re.search(claim, text)
        assert found is not None, claim
        assert re.search(rf"^{found[1]} steps", output, re.MULTILINE), (found[0], output[-600:])
        tokens = re.search(r"^Estimated: ([\d.]+) T tokens", output, re.MULTILINE)
        assert tokens is None or f"{float(tokens[1]):.1f}" == found[2]


def test_the_picture_of_the_report_is_one_that_a_page_can_show() -> None:
    picture = ROOT / "docs" / "report.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size < 500_000
