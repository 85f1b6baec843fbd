"""The real pipeline before anything runs, and its errors."""

import gzip
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from pipelines import tootsie
from tests.catalogue import check_message
from tests.end_to_end.driver import ROOT, Driver, Ended, environment, one_message, tree
from tests.end_to_end.tiny_texts import write_corpus

HEAVY = {"jax", "ray", "pyarrow", "tokenizers", "tensorstore", "lm_eval", "torch", "transformers", "safetensors"}
WATCHED = """
import json, runpy, sys
sys.argv = sys.argv[1:]
code = 0
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    code = end.code
json.dump([code, sorted(sys.modules)], sys.stderr)
"""


def watched(folder: Path, script: str, *arguments: str) -> tuple[int, set[str], str]:
    """Exit code, top-level modules imported, and what was printed, of a script run in `folder`."""
    command = [sys.executable, "-B", "-c", WATCHED, str(ROOT / script), *arguments]
    variables = environment(HOME=str(folder), TMPDIR=str(folder))
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=True)
    code, modules = json.loads(done.stderr)
    return code, {name.partition(".")[0] for name in modules}, done.stdout


@pytest.mark.parametrize("scale", ["laptop", "8b"])
def test_a_dry_run_of_the_real_recipe_plans_all_of_it_and_imports_and_writes_nothing_heavy(scale: str, tmp_path: Path):
    code, modules, table = watched(tmp_path, "pipelines/tootsie.py", "--scale", scale, "--dry-run", "--every-step")
    assert code == 2
    assert not HEAVY & modules
    names = {line.split()[0] for line in table.split("\n\n")[0].splitlines() if not line.startswith(" ")}
    assert {"kestrel", "deeper_starling", "cooldown_v2", "raccoon_softer", "spoonbill_deeper", "report"} <= names
    assert {"ema_eval/dessert_bad", "hf_export/jellyfish", "lm_eval/deeper_starling", "tokenizer"} <= names
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_of_what_is_done_imports_and_writes_nothing_heavy_and_ends_with_0(
    finished: Driver, ground: Path, tmp_path: Path
):
    before = tree(finished.prefix)
    prefix = ("--texts", str(ground / "texts"), "--prefix", str(finished.prefix))
    code, modules, table = watched(tmp_path, "tests/end_to_end/tiny_tootsie.py", "--dry-run", *prefix)
    assert code == 0
    assert not HEAVY & modules
    assert "74 steps: 74 done. Nothing would run." in table
    assert tree(finished.prefix) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--set", "phoenix.zloss=1"],
        ["--set", "phoenix.learning_rate.peak=1"],
        ["--set", "phonix.z_loss=1"],
        ["--until", "kestrl"],
        ["why", "hf_export/starlng"],
        ["--set", "phoenix.z_loss=-1"],
        ["--set", "phoenix.z_loss=much"],
        ["--set", "phoenix.until_step=3"],
        ["--set", "phoenix.mixture.segments=[]"],
        ["fork", "phoenix", "--as", "mine", "--set", "start=none"],
        ["fork", "ocelot", "--as", "mine", "--set", "zloss=1"],
    ],
    ids=" ".join,
)
def test_a_mistake_in_the_real_recipe_is_one_message_and_writes_nothing(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    command = [*arguments, "--prefix", str(tmp_path / "runs")]
    code = tootsie.main(command)
    printed = capsys.readouterr()
    assert (code, printed.out) == (1, "")
    one_message(printed.err, "tootsie: ")
    check_message(printed.err)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "setting", ["kestrel.model.vocab_size=300", "tokenizer.vocab_size=8192", "kestrel.sequence_length=512"]
)
def test_settings_that_end_in_nan_are_refused_in_the_plan(
    setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    command = ["--dry-run", "--set", setting, "--prefix", str(tmp_path / "runs")]
    assert tootsie.main(command) == 1
    check_message(capsys.readouterr().err)


def test_an_unacknowledged_jump_is_refused_with_the_line_to_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    command = ["--set", "starling.weight_decay=0.2", "--dry-run", "--prefix", str(tmp_path / "runs")]
    assert tootsie.main(command) == 1
    check_message(capsys.readouterr().err)


@pytest.mark.parametrize("command", [[], ["--dry-run"], ["ls"]])
def test_a_prefix_that_is_a_file_is_one_message_and_the_file_stays(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "runs").write_text("a diary")
    prefix = ["--prefix", str(tmp_path / "runs")]
    assert tootsie.main([*command, *prefix]) == 1
    printed = capsys.readouterr().err
    one_message(printed, f"tootsie: {tmp_path}/runs")
    check_message(printed)
    assert (tmp_path / "runs").read_text() == "a diary"


GOOD = "A document of more than five words, without any fault."
BAD_FILES = {
    "web_empty": (
        gzip.compress(b""),
        r"extract/web_empty: no document is left \(nothing was dropped\)\. The source is",
    ),
    "web_latin": (gzip.compress(b'{"text": "na\xefve"}\n'), r"extract/web_latin: no document is left \(not UTF-8: 1\)"),
    "web_short": (
        gzip.compress(b'{"text": "x"}\n' * 99)[:-20],
        r"web_short\.jsonl\.gz: cannot be unpacked \(Compressed",
    ),
    "web_plain": (b"no archive\n", r"web_plain\.jsonl\.gz: cannot be unpacked \(Not a gzipped file"),
}


def test_bad_files_fail_their_own_sources_and_only_those_run_after_the_fix(tmp_path: Path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    write_corpus(corpus / "code.jsonl.gz", [GOOD])
    for name, (content, _) in BAD_FILES.items():
        (corpus / f"{name}.jsonl.gz").write_bytes(content)
    sources = ["code", *BAD_FILES]
    first = own_corpus(tmp_path, sources)
    assert first.code == 1
    assert "Traceback" not in first.output + first.errors
    for name, (_, message) in BAD_FILES.items():
        assert re.search(rf"^extract/{name} failed: \w+: .*{message}", first.errors, re.MULTILINE), first.errors
    assert "6 of 10 steps are done, 4 failed" in first.errors

    for name in BAD_FILES:
        write_corpus(corpus / f"{name}.jsonl.gz", [f"{GOOD} {name}"])
    second = own_corpus(tmp_path, sources)
    assert second.code == 0, second.output
    assert set(second.ran) == {f"{step}/{name}" for step in ("download", "extract") for name in BAD_FILES}


def test_a_wrong_checksum_shows_both_and_keeps_no_file(tmp_path: Path):
    (tmp_path / "corpus").mkdir()
    write_corpus(tmp_path / "corpus/code.jsonl.gz", [GOOD])
    right = hashlib.sha256((tmp_path / "corpus/code.jsonl.gz").read_bytes()).hexdigest()
    wrong = "0" * 64
    ended = own_corpus(tmp_path, ["code"], "--set", f"download/code.fetch.files.0.sha256={wrong}")
    assert ended.code == 1
    assert "wrong checksum" in ended.errors and wrong in ended.errors and right in ended.errors
    assert "0 of 2 steps are done, 1 failed, 1 blocked" in ended.errors
    assert "Traceback" not in ended.output + ended.errors
    assert not list((tmp_path / "runs/commits").glob("*"))
    assert not list((tmp_path / "runs/outputs").rglob("*.gz"))
    assert own_corpus(tmp_path, ["code"]).code == 0


def own_corpus(folder: Path, sources: Iterable[str], *arguments: str) -> Ended:
    """Return the real pipeline over DIR up to its documents, with nothing to download."""
    command = [sys.executable, "pipelines/tootsie.py", "--corpus", str(folder / "corpus"), "--backend", "local"]
    command += ["--prefix", str(folder / "runs"), *(f"--until=extract/{source}" for source in sources), *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    return Ended(done.returncode, done.stdout, done.stderr)
