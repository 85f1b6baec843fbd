"""The recipe of docs/tutorial.md with the changes of docs/how-to/own-recipe.md, and the page's table of formats."""

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

from pipelines import recipe
from runtime.interop.huggingface import SpecialTokens, write_model
from runtime.text.extraction.formats import Format
from runtime.text.tokenizer_training import train
from tests.catalogue import check_message
from tests.docs.tutorial import BLOCK
from tests.docs.tutorial import PAGE as TUTORIAL
from tests.runtime.interop.small_llama import model

PROJECT = Path(__file__).parents[2]
PAGE = (PROJECT / "docs/how-to/own-recipe.md").read_text()
(RECIPE,) = [text for language, text in BLOCK.findall(TUTORIAL.read_text()) if "def build(" in text]
_, IMPORTS, STEPS = [text for language, text in BLOCK.findall(PAGE) if language == "python"]

Mine = Callable[..., tuple[int, str]]


@pytest.fixture
def mine(tmp_path: Path) -> Mine:
    """A function that runs `mine.py` of `tmp_path`, beside the tutorial's texts."""
    texts = [f"Text number {n} of the folder, about the number {n * n} and no other." for n in range(400)]
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


def test_a_wrong_type_in_a_rule_is_refused_with_its_line(tmp_path: Path, mine: Mine) -> None:
    (tmp_path / "mine.py").write_text(RECIPE.replace("min_words=5", 'min_words="many"'))
    code, shown = mine("--dry-run")
    assert code == 1
    check_message(shown)


def test_the_report_names_the_recipe_s_own_commands(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RECIPE)
    named: dict[str, typing.Any] = {"__name__": "mine"}
    documents = {"web": recipe.documents("web", str(PROJECT / "README.md"), recipe.HtmlPages(members=("*.md",)))}
    exec(compile(RECIPE.partition("def build")[0], "mine", "exec"), named)
    base = recipe.phase(
        "base",
        until_step=2,
        model=named["MODEL"],
        sequence_length=64,
        global_batch_size=4,
        learning_rate=recipe.Constant(1e-3),
        mixture={"web": 1.0},
        caches=recipe.token_caches(documents, recipe.tokenizer(documents, vocab_size=512), validation_share=0.1),
    )
    config = recipe.report("Mine", recipe.evaluate([base])).config
    assert config.command == "python RECIPE.py" and config.main_line == ("base",)
    assert set(config.phases) == set(config.evaluations) == {"base"} and set(config.sources) == {"web"}


def test_the_recipe_starts_from_weights_of_others(tmp_path: Path, mine: Mine) -> None:
    (fields,) = re.findall(r"in the phase, `(.*?)`", PAGE)
    changed = RECIPE.replace("from pipelines import recipe\n", f"from pipelines import recipe\n{IMPORTS}")
    changed = re.sub(r"    tokenizer = recipe\.tokenizer\(.*\n", lambda _: STEPS, changed)
    changed = changed.replace("        until_step=20,\n", f"        until_step=20,\n        {fields}\n")
    changed = changed.replace("[base, *rates, cooldown, ablation]", "[llama, base, cooldown]")
    changed = changed.replace("[*evaluations, export, scores]", "[*evaluations, export]")
    (tmp_path / "mine.py").write_text(changed)
    exec(compile(RECIPE.partition("def build")[0], "mine", "exec"), named := {"__name__": "mine"})
    config, folder = named["MODEL"], tmp_path / "my-llama"
    special = SpecialTokens(eos_token_id=0, bos_token_id=None)
    write_model(str(folder), model(config), config, recipe.LLAMA3_ROPE, special, dtype="bfloat16")
    texts = (tmp_path / "my-texts/web.jsonl").read_text().splitlines()
    train([*texts, *map(str.upper, texts)], vocab_size=config.vocab_size).save(str(folder / "tokenizer.json"))

    assert mine("--dry-run")[0] == 2
    assert not list((tmp_path / "runs").rglob("*.json")), "a plan starts nothing"
    code, shown = mine("--dry-run", "--set", "base.restore=everything")
    assert code == 1
    check_message(shown)

    code, shown = mine("--backend", "local")
    assert code == 0, shown
    assert mine("--dry-run")[0] == 0
    code, shown = mine("timeline", "--json")
    assert code == 0 and json.loads(shown)["phases"][0]["start"] == "llama"
    for command in ("mix", "verify llama"):
        code, shown = mine(*command.split())
        assert code == 0, (command, shown)


def test_the_table_lists_every_format_and_no_other() -> None:
    rows = PAGE.partition("## Formats")[2].partition("## ")[0].splitlines()
    listed = {name for row in rows if row.startswith("| `") for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert listed == {format_.__name__ for format_ in typing.get_args(Format)}
