"""`mix` shows the tokens and epochs that each phase takes from each source."""

import functools
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from marin_dag.graph.assignments import build_graph
from marin_dag.graph.graph import Graph
from pipelines import tootsie
from pipelines.corpus import laptop_corpus
from pipelines.mix_command import mix_to, rendered
from pipelines.scales import LAPTOP
from tests.catalogue import check_message

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path, capsys) -> Run:
    def call(*words: str) -> tuple[int, str, str]:
        code = tootsie.main([*words, "--prefix", str(tmp_path / "runs")])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


class Tokenized:
    """Records in which each cache has `num_tokens` tokens."""

    def __init__(self, num_tokens: int) -> None:
        self.found = SimpleNamespace(result={"num_train_tokens": num_tokens})

    def find(self, key: str) -> SimpleNamespace:
        return self.found


def phase(name: str, **overrides: str):
    settings = [f"{name}.{field}={value}" for field, value in overrides.items()]
    build = functools.partial(tootsie.tootsie, LAPTOP, laptop_corpus(LAPTOP))
    return build_graph(lambda: Graph([build()[0]]), settings).step(name)


def test_every_source_is_shown_by_phase_and_nothing_is_written(run, tmp_path):
    code, out, _ = run("mix")
    head, *rows = out.split("\n\n")[0].splitlines()
    assert code == 0
    assert " ".join(head.split()) == "source size kestrel ocelot jellyfish phoenix starling deeper_starling in all"
    assert [row.split()[0] for row in rows[:2]] == ["web", "code"]
    assert rows[-1].split()[-2:] == ["1.516", "M"]
    assert "?" not in out
    check_message(out.split("\n\n")[1])
    assert not list((tmp_path / "runs").rglob("*"))


def test_a_branch_is_shown_with_the_phases_before_it(run):
    _, out, _ = run("mix", "dessert")
    assert " ".join(out.splitlines()[0].split()) == "source size kestrel ocelot jellyfish dessert in all"


def test_tokens_at_full_size_are_those_of_the_recipe(run):
    _, out, _ = run("mix", "--scale", "8b")
    rows = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert rows["dclm_baseline"].rstrip().endswith("3.507 T")
    assert "?x" in rows["nemotron_medium"] and "inf" not in out


def test_a_misspelt_phase_is_refused(run):
    code, out, error = run("mix", "desert")
    assert (code, out) == (1, "")
    check_message(error)


def test_a_tokenized_source_counts_its_tokens_and_one_read_too_often_is_named():
    mix = mix_to(phase("ocelot"), Tokenized(100_000).find, {})
    assert not mix.estimated and set(mix.num_tokens.values()) == {100_000}
    assert ("over_epochs", "web") in {(finding.kind, mix.labels[finding.source]) for finding in mix.found.findings}
    check_message("\n".join(rendered(mix).split("\n\n")[1].splitlines()[1:]))
    assert "~" not in rendered(mix)


def test_data_that_restart_are_counted_from_their_restart():
    whole = mix_to(phase("ocelot"), Tokenized(10**6).find, {})
    restarted = mix_to(phase("ocelot", restore="weights"), Tokenized(10**6).find, {})
    assert [span.name for span in whole.spans] == ["kestrel", "ocelot"]
    assert [(span.name, span.start_step) for span in restarted.spans] == [("ocelot", 721)]


def test_data_that_continue_without_the_optimizer_are_counted_from_their_start():
    whole = mix_to(phase("ocelot", restore="everything_but_optimizer"), Tokenized(10**6).find, {})
    assert [span.name for span in whole.spans] == ["kestrel", "ocelot"]


def test_a_phase_with_a_learning_policy_is_marked():
    text = rendered(mix_to(phase("ocelot", mixing='{"kind": "loss_drop"}'), Tokenized(10**6).find, {}))
    assert "ocelot*" in text.splitlines()[0] and "kestrel*" not in text
    check_message(text.splitlines()[-1])
