"""Pins down: the recipe of docs/own-recipe.md runs as it stands, and its table names every format."""

import json
import re
import subprocess
import sys
import typing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from runtime.text.extraction.formats import Format

PROJECT = Path(__file__).parents[2]
PAGE = (PROJECT / "docs/own-recipe.md").read_text()


def test_the_recipe_is_planned_run_and_looked_at_as_it_stands(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.py"
    recipe.write_text(PAGE.partition("```python\n")[2].partition("```")[0])
    texts = [
        f"Text number {number} of the folder, about the number {number * number} and no other." for number in range(400)
    ]
    (tmp_path / "my-texts").mkdir()
    (tmp_path / "my-texts/web.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    pq.write_table(pa.table({"text": [text.upper() for text in texts]}), tmp_path / "my-texts/papers.parquet")

    def mine(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, str(recipe), *arguments]
        environment = {"PYTHONPATH": str(PROJECT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
        return done.returncode, done.stdout + done.stderr

    code, said = mine("--dry-run")
    assert code == 2 and "15 steps: 15 missing. 15 would run." in said, said
    code, said = mine("--backend", "local")
    assert code == 0, said
    assert list((tmp_path / "runs/outputs").glob("hf_export-*/*/model/model.safetensors"))
    assert mine("--dry-run")[0] == 0
    for command, expected in (
        ("timeline", "cooldown-zloss"),
        ("mix", "papers"),
        ("waits", "base"),
        ("certified", "nothing of these phases is certified: a checkpoint is once"),
        ("curves", "cooldown-zloss  step          30"),
    ):
        code, said = mine(command)
        assert code == 0 and expected in said, said
    code, said = mine("fork", "cooldown", "--as", "hotter", "--set", "z_loss=1e-3")
    assert code == 0 and "with it    ema_eval/hotter" in said, said
    assert mine("drop", "hotter")[0] == 0
    code, said = mine("--dry-run", "--set", "cooldown-zloss.z_loss=1e-3")
    assert code == 2 and "2 would run" in said, said


def test_the_table_names_every_format_and_no_other() -> None:
    rows = PAGE.partition("## Formats")[2].partition("## ")[0].splitlines()
    named = {name for row in rows if row.startswith("| `") for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == {format_.__name__ for format_ in typing.get_args(Format)}
