"""`batch` and `sample` refuse impossible requests with a fix; tests/end_to_end runs both on a real run."""

import sys

import pytest

from pipelines import tootsie
from tests.catalogue import check_message


@pytest.mark.parametrize(
    "words",
    [
        ["batch", "kestrel"],
        ["batch", "kestrel@0"],
        ["batch", "tokenizer@3"],
        ["batch", "kestrell@3"],
        ["batch", "ocelot@3"],
        ["batch", "kestrel@3"],
        ["batch", "kestrel@3", "--rows", "0"],
        ["sample", "kestrel"],
        ["sample", "kestrel", "--prompt", "a", "--top-p", "0.9"],
        ["sample", "kestrel", "--prompt", "a", "--temperature", "1", "--top-p", "2"],
        ["sample", "kestrel", "--prompt", "a", "--temperature", "-1"],
        ["sample", "kestrel", "--prompts", "missing.txt"],
        ["sample", "kestrel", "--prompt", "a", "--chat"],
        ["sample", "kestrel", "--prompt", "a", "--chat-template", "missing.jinja"],
        ["sample", "tokenizer", "--prompt", "a"],
        ["sample", "kestrel@7", "--prompt", "a"],
        ["sample", "hf_export/deeper_starling", "--prompt", "a"],
        ["sample", "hf_export/deeper_starling@3", "--prompt", "a"],
    ],
    ids=lambda words: "-".join(words).replace("/", "-"),
)
def test_an_impossible_request_is_refused_with_the_reason(words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["tootsie.py"])  # the usage names it
    assert tootsie.main([*words, "--prefix", str(tmp_path / "runs")]) == 1
    printed = capsys.readouterr()
    check_message(printed.out + printed.err)
    assert not list(tmp_path.iterdir())


def test_sample_leaves_an_error_of_the_recipe_as_it_is(tmp_path, capsys):
    (tmp_path / "notes.jsonl").write_bytes(b"")
    found = []
    for words in (["--dry-run"], ["sample", "kestrel", "--prompt", "a"]):
        assert tootsie.main([*words, "--corpus", str(tmp_path), "--prefix", str(tmp_path / "runs")]) == 1
        found.append(capsys.readouterr().err)
    assert found[0] == found[1] and "notes.jsonl" in found[0]
