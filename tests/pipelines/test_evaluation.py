"""Steps after a phase in the recipe: its evaluation, on its machines and in as many copies, and its scores."""

import pytest

from marin_dag.errors import RefusedConfigError
from marin_dag.graph.assignments import build_graph
from marin_dag.graph.graph import Graph
from marin_dag.graph.resources import Gpu
from pipelines import recipe
from pipelines.scoring import generated_code
from runtime.evaluation import registry
from runtime.evaluation.suites import LAPTOP_TASKS, SUITES
from runtime.model.llama.config import LlamaConfig
from steps.ema_eval import check_machines
from steps.gold_answers import check_answers
from steps.joined_scores import joined_scores
from steps.lm_eval import check_generated_code, lm_eval
from steps.phase_checks import check_config
from steps.train_phase import train_phase
from tests.catalogue import expect_error
from tests.runtime.evaluation.own_tasks import write_own_tasks
from tests.steps.phase_runs import a_phase, cache_of

OF_EIGHT = LlamaConfig(4096, 512, 1024, 2, 4, 2, 128, 4096)
"""Twenty-four devices do not share its hidden size, three times eight do."""


def test_an_evaluation_lies_as_its_phase_does_and_so_runs_where_that_ran(tmp_path):
    cache, machines = cache_of(tmp_path, "web", last_id=8), Gpu("H200", 8, num_hosts=3)
    config = a_phase(cache, model=OF_EIGHT, sequence_length=1024, replica_parallel=3)
    phase = train_phase("kestrel", config, resources=machines)
    (found,) = recipe.evaluate([phase], caches={})
    assert (found.config.replica_parallel, found.resources) == (3, machines)
    check_machines(found.config, machines)
    with expect_error(ValueError):
        check_machines(found.config.model_copy(update={"replica_parallel": 1}), machines)


@pytest.fixture
def exported(tmp_path):
    phase = train_phase("kestrel", a_phase(cache_of(tmp_path / "cache", "web", last_id=8)))
    return recipe.export(phase, cache_of(tmp_path / "tokenizer", "web", last_id=8))


def digests(scores: recipe.Step) -> dict[str, str]:
    """Return the digests of the steps that score, by the tasks that they score."""
    steps = [step for step in Graph([scores]).steps if step.kind is lm_eval]
    return {" ".join(task.label for task in step.config.tasks): step.digest for step in steps}


def test_an_added_task_is_scored_beside_the_others_which_keep_their_identity(exported, tmp_path, monkeypatch):
    suite = recipe.score(exported, (LAPTOP_TASKS,), limit=4)
    assert suite.name == "lm_eval/kestrel" and suite.kind is lm_eval
    before = digests(suite)
    own = write_own_tasks(tmp_path / "own")
    tasks = (LAPTOP_TASKS, "sciq", recipe.TaskSpec(f"{own}/animals.yaml", items=f"{own}/items/*.jsonl"))
    joined = recipe.score(exported, tasks, limit=4)
    found = digests(joined)
    assert (joined.name, joined.kind) == ("lm_eval/kestrel", joined_scores)
    assert before.items() < found.items() and len(found) == 3 and "animals_1shot" in found
    monkeypatch.setitem(registry.definitions(), "another", "piqa/piqa.yaml")
    (own / "unused.yaml").write_text("task: changed\n")
    assert digests(recipe.score(exported, tasks, limit=4)) == found
    (own / "rows.py").write_text("def prepare(rows):\n    return rows\n")
    changed = digests(recipe.score(exported, tasks, limit=4))
    assert {label for label in found if changed[label] != found[label]} == {"animals_1shot"}


def test_tasks_that_a_phase_measures_are_steps_of_their_own_and_no_identity_of_it(tmp_path):
    cache, tokenizer = (
        cache_of(tmp_path / "cache", "web", last_id=8),
        cache_of(tmp_path / "tokenizer", "web", last_id=8),
    )
    own = write_own_tasks(tmp_path / "own")
    spec = recipe.TaskSpec(f"{own}/animals.yaml", items=f"{own}/items/*.jsonl")
    plain = train_phase("kestrel", a_phase(cache))
    tasks = recipe.validation_tasks(("piqa", spec), tokenizer)
    measured = train_phase("kestrel", a_phase(cache, validate_every_steps=2, validation_tasks=tasks))
    assert (measured.digest, measured.then("next", until_step=99).digest) == (plain.digest, plain.digest)
    assert {"gold_answers/piqa_0shot", "gold_answers/animals_1shot"} <= {step.name for step in Graph([measured]).steps}
    twice = (*recipe.validation_tasks(("sciq",), tokenizer), *recipe.validation_tasks(("sciq",), tokenizer, name="b"))
    with expect_error(ValueError):
        check_config(a_phase(cache, validate_every_steps=2, validation_tasks=twice))
    with expect_error(ValueError):
        check_answers(recipe.validation_tasks(("gsm8k",), tokenizer, items=tokenizer)[0].config)


def test_a_task_that_runs_generated_code_is_refused_unless_that_is_allowed_which_is_no_identity(exported, tmp_path):
    own = write_own_tasks(tmp_path / "own")
    (own / "written.yaml").write_text("unsafe_code: true\n" + (own / "written.yaml").read_text())
    spec = recipe.TaskSpec(f"{own}/written.yaml", items=f"{own}/items/written.jsonl")
    refused = recipe.score(exported, (spec,), limit=None)
    with expect_error(RefusedConfigError):
        check_generated_code(refused.config)
    with generated_code(True):
        allowed = recipe.score(exported, (spec,), limit=None)
    check_generated_code(allowed.config)
    assert allowed.digest == refused.digest


def test_ifeval_downloads_the_package_of_its_sentence_model(exported, tmp_path):
    (tmp_path / "ifeval.jsonl").write_text("{}\n")
    spec = recipe.TaskSpec("ifeval", items=str(tmp_path / "ifeval.jsonl"))
    scores = recipe.score(exported, (spec,), limit=None)
    assert scores.config.sentence_model.step.config.fetch.name == "llama-index-core"


def test_a_task_of_two_parts_and_a_part_of_another_export_are_errors(exported):
    twice = recipe.score(exported, ("piqa", LAPTOP_TASKS), limit=4)
    with expect_error(ValueError):
        joined_scores.check(twice.config)
    moved = recipe.score(exported, ("piqa", "sciq"), limit=4).fork("moved", export=exported.fork("b", dtype="float32"))
    with expect_error(ValueError):
        joined_scores.check(moved.config)


def test_scores_of_two_exports_share_the_items_which_an_assignment_changes_for_both(exported):
    other = exported.fork("hf_export/other", dtype="float32")

    def build() -> Graph:
        return Graph([recipe.score(exported, ("piqa",), limit=4), recipe.score(other, ("piqa", "sciq"), limit=4)])

    assert build().step("evaluation_items").config.ngram_words == 13
    changed = build_graph(build, ["evaluation_items.ngram_words=12"])
    assert changed.step("evaluation_items").config.ngram_words == 12


def test_milestones_of_a_phase_without_scores_have_each_task_of_another(exported, tmp_path):
    scores = recipe.score(exported, ("piqa", "sciq"), limit=4)
    other = train_phase("jelly", a_phase(cache_of(tmp_path / "other", "web", last_id=8)))
    graph = Graph(recipe.evaluate_every([scores], 4, phases=[other]))
    names = {step.name for step in graph.steps if step.kind is lm_eval and step.background is not None}
    assert names == {
        "lm_eval/kestrel/piqa_0shot-step-4", "lm_eval/kestrel/sciq_0shot-step-4",
        *(f"lm_eval/jelly/{task}_0shot-step-{at}" for task in ("piqa", "sciq") for at in (4, 8)),
    }  # fmt: skip


def test_the_tasks_command_lists_form_chance_items_and_missing_settings(exported, tmp_path, capsys):
    def build(_: object) -> list[recipe.Step]:
        return [recipe.score(exported, ("piqa",), limit=4)]

    assert recipe.main(build, name="a_recipe", argv=["tasks", "--prefix", str(tmp_path / "store")]) == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line}
    assert lines["piqa"][:4] == ["piqa", "choice", "0", "0.50"] and "items=FILE" not in lines["piqa"]
    assert {"items=FILE,", "--run-generated-code", "code"} <= set(lines["humaneval"])
    assert {spec.task for suite in SUITES.values() for spec in suite} - lines.keys() == {
        "mmlu_astronomy", "mmlu_high_school_biology", "mmlu_world_religions",
    }  # fmt: skip
