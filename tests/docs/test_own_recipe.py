"""Pins down: the recipe of docs/own-recipe.md runs as it stands, and its table names every format."""

import json
import os
import re
import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marin_dag.run.early_interrupt import INTERRUPTED
from runtime.interop.huggingface import SpecialTokens, write_model
from runtime.model.config import LLAMA3_ROPE
from runtime.text.extraction.formats import Format
from runtime.text.tokenizer_training import train
from tests.runtime.interop.small_llama import model

PROJECT = Path(__file__).parents[2]
PAGE = (PROJECT / "docs/own-recipe.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
"""The recipe; and what changes of it to start from weights: the imports, the tokenizer."""


Mine = Callable[..., tuple[int, str]]


@pytest.fixture
def mine(tmp_path: Path) -> Mine:
    """Runs `mine.py` of `tmp_path` beside the texts that the page speaks of."""
    texts = [
        f"Text number {number} of the folder, about the number {number * number} and no other." for number in range(400)
    ]
    (tmp_path / "my-texts").mkdir()
    (tmp_path / "my-texts/web.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    pq.write_table(pa.table({"text": [text.upper() for text in texts]}), tmp_path / "my-texts/papers.parquet")

    def run(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, str(tmp_path / "mine.py"), *arguments]
        compiled = {name: value for name, value in os.environ.items() if name.startswith(("JAX_", "XLA_"))}
        environment = {"PYTHONPATH": str(PROJECT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **compiled}
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


def test_the_recipe_is_planned_run_and_looked_at_as_it_stands(tmp_path: Path, mine: Mine) -> None:
    (tmp_path / "mine.py").write_text(BLOCKS[0])
    code, said = mine("--dry-run")
    assert code == 2 and "15 steps: 15 missing. 15 would run." in said, said
    code, said = mine("--backend", "local")
    assert code == 0, said
    assert list((tmp_path / "runs/outputs").glob("hf_export-*/*/model/model.safetensors"))
    assert mine("--dry-run")[0] == 0
    for command, expected in (
        ("timeline", "cooldown-zloss"),
        ("mix", "papers"),
        ("stalls", "base"),
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


def test_ctrl_c_while_the_recipe_s_modules_are_imported_is_one_line(tmp_path: Path, mine: Mine) -> None:
    (tmp_path / "mine.py").write_text(BLOCKS[0])
    (tmp_path / "argparse.py").write_text("raise KeyboardInterrupt\n")  # the first that it imports
    assert mine("--dry-run") == (INTERRUPTED, "interrupted\n")


def test_a_wrong_type_in_a_rule_is_told_by_the_plan_as_the_table_says(tmp_path: Path, mine: Mine) -> None:
    (tmp_path / "mine.py").write_text(BLOCKS[0].replace("min_words=5", 'min_words="many"'))
    (row,) = re.findall(r"^\| `mine\.py:\d+: (filter/.*?)` \|", PAGE, re.MULTILINE)
    code, said = mine("--dry-run")
    assert code == 1 and re.fullmatch(rf"mine: mine\.py:\d+: {re.escape(row)}\.\n", said), said


def test_the_recipe_starts_from_weights_that_somebody_else_made(tmp_path: Path, mine: Mine) -> None:
    recipe, imports, tokenizer = BLOCKS
    start, scratch = re.findall(r"of the phase, `(.*?)` in place of `(.*?)`", PAGE)[0]
    changed = recipe.replace("from steps.fetch import files_in\n", imports)
    changed = re.sub(r"    tokenizer = train_tokenizer\(.*\n", lambda _: tokenizer, changed)
    changed = changed.replace(scratch, start)
    changed = changed.replace("phases = [cooldown, ablation]", "phases = [llama, cooldown, ablation]")
    (tmp_path / "mine.py").write_text(changed)
    exec(compile(recipe.partition("def build")[0], "mine", "exec"), named := {"__name__": "mine"})
    config, folder = named["MODEL"], tmp_path / "my-llama"
    special = SpecialTokens(eos_token_id=0, bos_token_id=None)
    write_model(str(folder), model(config), config, LLAMA3_ROPE, special, dtype="bfloat16")
    texts = (tmp_path / "my-texts/web.jsonl").read_text().splitlines()
    tokenizer_of_texts = train([*texts, *map(str.upper, texts)], vocab_size=config.vocab_size)
    tokenizer_of_texts.save(str(folder / "tokenizer.json"))

    code, said = mine("--dry-run")
    assert code == 2 and "18 steps: 18 missing. 18 would run." in said, said
    assert not list((tmp_path / "runs").rglob("*.json")), "a plan starts nothing"
    code, said = mine("--dry-run", "--set", "base.restore=everything")
    assert code == 1 and "restore is 'everything', and start 'llama' is an import" in said, said
    assert "--set base.restore=weights" in said, said
    code, said = mine("timeline", "base", "--set", "base.rope.rope_theta=1e4")
    assert code == 1 and "REFUSED by a plan: rope is" in said and "base  from llama (weights), on" in said, said

    code, said = mine("--backend", "local")
    assert code == 0, said
    assert mine("--dry-run")[0] == 0
    for command, expected in (
        ("timeline", "base  from llama (weights), on"),
        ("timeline --json", '"start": "llama"'),
        ("mix", "papers"),
        ("stalls", "base"),
        ("certified", "nothing of these phases is certified: a checkpoint is once"),
        ("curves", "cooldown-zloss  step          30"),
        ("why llama", "llama"),
        ("why base", "base"),
        ("show llama", "hf_import"),
        ("verify llama", "llama"),
    ):
        code, said = mine(*command.split())
        assert code == 0 and expected in said, (command, said)
    code, said = mine("fork", "base", "--as", "hotter", "--set", "z_loss=1e-3")
    assert code == 0 and "hotter is a fork of base" in said, said
    code, said = mine("timeline", "hotter")
    assert code == 0 and "hotter  from llama (weights), on" in said, said
    assert mine("drop", "hotter")[0] == 0
    code, said = mine("--dry-run", "--set", "llama.sequence_length=32")
    assert code == 2 and "llama: sequence_length: 64 -> 32" in said, said


def test_the_table_names_every_format_and_no_other() -> None:
    rows = PAGE.partition("## Formats")[2].partition("## ")[0].splitlines()
    named = {name for row in rows if row.startswith("| `") for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == {format_.__name__ for format_ in typing.get_args(Format)}
