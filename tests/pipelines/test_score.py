"""Scores of downloaded models: their steps, requests that are refused before anything runs, and the table."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.graph.resources import Cpu, Gpu, Tpu
from marin_dag.store.prefix import open_store
from pipelines import score
from pipelines.machines import resources_named
from pipelines.score_table import Published, Scored, differences, read_scores, scores_table
from runtime.evaluation.item_scores import ITEM_SCORES, ItemScores, to_json_lines
from runtime.evaluation.task_score import TaskScore
from runtime.interop.huggingface import SpecialTokens, write_model
from runtime.model.config import LLAMA2_ROPE
from steps.lm_eval import LmEvalResult
from tests.catalogue import check_message, expect_error
from tests.pipelines.committed import commit
from tests.runtime.evaluation.own_tasks import write_own_tasks
from tests.runtime.interop.small_llama import CONFIG, model, tokenizer_file

COMMIT = "0123456789abcdef"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "llama"
    write_model(str(path), model(), CONFIG, LLAMA2_ROPE, SpecialTokens(0, None), dtype="float32")
    tokenizer_file(path / "tokenizer.json")
    return path


def planned(capsys: pytest.CaptureFixture[str], tmp_path: Path, *words: str) -> tuple[int, dict[str, str], str]:
    """Return the exit code of a plan, its steps with their verdicts, and the text on standard error."""
    code = score.main([*words, "--prefix", str(tmp_path / "runs"), "--dry-run", "--json"])
    shown = capsys.readouterr()
    steps = json.loads(shown.out)["steps"] if shown.out else []
    return code, {step["name"]: step["verdict"] for step in steps}, shown.err


def test_each_model_is_fetched_and_scored_and_a_plan_writes_nothing(folder, tmp_path, capsys):
    hub = f"hub:owner/small@{COMMIT}"
    code, steps, _ = planned(capsys, tmp_path, str(folder), hub, "--tasks", "piqa,arc_easy:5", "--limit", "9")
    assert code == 2 and not (tmp_path / "runs").exists()
    assert {"download/llama", "lm_eval/llama", "download/small", "lm_eval/small", "evaluation_items"} <= {*steps}
    code, steps, _ = planned(capsys, tmp_path, hub, f"{hub}00", f"{folder}/.", "--tasks", "piqa")
    assert {"lm_eval/small", f"lm_eval/small-{COMMIT[:8]}", "lm_eval/llama"} <= {*steps}
    code, steps, _ = planned(capsys, tmp_path, hub, "--tasks", "piqa", "--apply-chat-template")
    assert code == 2, "the template is read after the download"
    code, steps, _ = planned(capsys, tmp_path, str(folder), "--tasks", "laptop, mmlu")
    assert code == 2 and {"lm_eval/llama/arc_easy_0shot-and-10", "lm_eval/llama/mmlu_0shot"} <= {*steps}
    asked = ["why", "lm_eval/llama", "--model", str(folder), "--tasks", "piqa"]
    assert score.main([*asked, "--prefix", str(tmp_path / "runs")]) == 0, "a command of the engine is still a command"


def test_tasks_are_listed_without_a_model_and_with_the_own_ones_of_a_folder(folder, tmp_path, capsys):
    own = write_own_tasks(tmp_path / "own")
    named = [str(folder), "--include-path", str(own), "--items", str(own / "items"), "--tasks", "animals"]
    for words, names in (([], {"piqa", "mmlu"}), (["--model", *named], {"piqa", "animals"})):
        assert score.main(["tasks", *words, "--prefix", str(tmp_path / "runs")]) == 0
        listed = capsys.readouterr().out
        assert names <= {line.split()[0] for line in listed.splitlines() if line}


def test_names_and_number_of_models_change_no_score(folder, tmp_path):
    def step_of(*models: Path) -> str:
        words = ["--model", *" --model ".join(map(str, models)).split(), "--tasks", "piqa", "--limit", "9"]
        parser = score.argparse.ArgumentParser()
        score.add_arguments(parser)
        graph = Graph(score.build(parser.parse_args(words)))
        return graph.step(f"lm_eval/{models[-1].name}").digest

    other = tmp_path / "other"
    other.symlink_to(folder)
    assert step_of(folder) == step_of(other, folder) == step_of(other)


@pytest.mark.parametrize(
    "words",
    [
        ["MODEL"],
        ["--tasks", "piqa"],
        ["MODEL", "MODEL", "--tasks", "piqa"],
        ["MODEL", "--tasks", "piqa:many"],
        ["MODEL", "--tasks", "piqua"],
        ["MODEL", "--tasks", "piqa", "--apply-chat-template"],
        ["hub:owner/small", "--tasks", "piqa"],
        ["hub:owner/small@main", "--tasks", "piqa"],
        ["nowhere", "--tasks", "piqa"],
        ["MODEL", "--tasks", "piqa", "--on", "cpu"],
        ["MODEL", "--tasks", "piqa", "--on", "tpu:v9-8"],
        ["MODEL", "--tasks", "piqa", "--against", "nothing.json"],
        ["MODEL", "--tasks", "piqa", "--include-path", "nowhere"],
        ["MODEL", "--tasks", "dogs", "--include-path", "own"],
    ],
    ids=lambda words: " ".join(words),
)
def test_impossible_scores_are_refused_before_anything_runs(folder, tmp_path, capsys, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    write_own_tasks(tmp_path / "own")
    code, steps, error = planned(capsys, tmp_path, *(word.replace("MODEL", str(folder)) for word in words))
    assert (code, steps) == (1, {})
    check_message(error)


@pytest.mark.parametrize(
    ("name", "content"), [("chat_template.jinja", b"\xff"), ("tokenizer_config.json", b'{"a": "\xff"}')]
)
def test_a_chat_template_that_is_not_in_utf_8_is_refused_by_its_file(folder, tmp_path, capsys, name, content):
    model = Path(shutil.copytree(folder, tmp_path / "model"))
    (model / name).write_bytes(content)
    code, steps, error = planned(capsys, tmp_path, str(model), "--tasks", "piqa", "--apply-chat-template")
    assert (code, steps) == (1, {})
    check_message(error)


def test_code_of_a_model_runs_only_when_asked_for(folder, tmp_path, capsys):
    (tmp_path / "items").mkdir()
    (tmp_path / "items/humaneval.jsonl").write_text("{}\n")
    words = [str(folder), "--tasks", "humaneval", "--items", str(tmp_path / "items")]
    for option, questions in ([], 1), (["--run-generated-code"], 0):
        assert score.main([*words, *option, "--prefix", str(tmp_path / "runs"), "--dry-run", "--json"]) == 2
        assert len(json.loads(capsys.readouterr().out)["open_questions"]) == questions


def test_tasks_of_an_included_folder_are_scored_beside_those_of_lm_eval(folder, tmp_path, capsys):
    own = write_own_tasks(tmp_path / "own")
    words = ["--include-path", str(own), "--items", str(own / "items"), "--tasks", "animals,foxes:2"]
    code, steps, _ = planned(capsys, tmp_path, str(folder), *words)
    assert code == 2
    assert {"lm_eval/llama/animals_1shot", "lm_eval/llama/foxes_2shot"} <= {*steps}


def test_scores_are_shown_although_another_task_has_none(folder, tmp_path):
    parser = score.argparse.ArgumentParser()
    score.add_arguments(parser)
    graph = Graph(score.build(parser.parse_args(["--model", str(folder), "--tasks", "piqa,sciq"])))
    store, of_piqa = open_store(str(tmp_path)), scored("llama", [1.0, 0.0])
    assert read_scores(graph, store) == []
    record = commit(store, graph.step("lm_eval/llama/piqa_0shot"), of_piqa.result)
    store.write(f"{record.output_path}/{ITEM_SCORES}", to_json_lines(of_piqa.items.values()))
    assert read_scores(graph, store) == [of_piqa]


def test_a_model_that_cannot_be_represented_is_refused_by_name(folder, tmp_path, capsys):
    other = tmp_path / "biased"
    other.mkdir()
    for file in folder.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    document = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(document | {"attention_bias": True}))
    code, _, error = planned(capsys, tmp_path, str(other), "--tasks", "piqa")
    assert code == 1
    check_message(error)


def test_machines_are_named_in_words():
    named = ("cpu:4", "gpu:L40S:2", "tpu:v6e-8", "H100:1", "h200:8", "64xH100:8", "A100-80G:1", "2xv5litepod-256")
    assert [resources_named(text) for text in named] == [
        Cpu(4), Gpu("L40S", 2), Tpu("v6e-8"), Gpu("H100", 1), Gpu("H200", 8), Gpu("H100", 8, num_hosts=64),
        Gpu("A100-80G", 1), Tpu("v5litepod-256", num_slices=2),
    ]  # fmt: skip
    for wrong in ("gpu::1", "gpu:H100", "cpu:-1", "v6e-7", "0xH100:1", "H100", "tpu:H100:1", "H1000:1", "gpu:8:1"):
        with expect_error(UserError):
            resources_named(wrong)


def scored(name: str, values: list[float], num_fewshot: int = 0) -> Scored:
    value = sum(values) / len(values)
    facts = {"fewshot_from": "the scored rows" if num_fewshot else "none", "num_truncated": 0, "num_unparsed": 0}
    one = TaskScore("piqa", num_fewshot, "acc", value, 0.05, len(values), 0.5, warning=None, **facts)
    scores = (one, dataclasses.replace(one, metric="acc_norm", value=value / 2))
    numbers = tuple(range(len(values)))
    items = [
        ItemScores("piqa", num_fewshot, s.metric, tuple(map(str, numbers)), numbers, tuple(values)) for s in scores
    ]
    result = LmEvalResult(scores=scores, samples="", weights="hot", step=0, consumed_tokens=0)
    return Scored(name, result, {each.key: each for each in items})


def test_the_table_says_how_far_a_published_score_is_and_how_it_was_measured_otherwise():
    published = [
        Published(task="piqa", value=0.3, num_fewshot=5, num_items=1838, split="test", form="cloze"),
        Published(task="piqa", value=0.45, metric="acc", num_fewshot=5),
        Published(task="piqa", value=0.9, metric="acc", num_fewshot=0),
        Published(task="boolq", value=0.5),
        Published(task="piqa", value=0.1, metric="acc", num_fewshot=5, model="another"),
    ]
    lines = [*scores_table([scored("llama", [1.0, 0.0] * 50, num_fewshot=5)], published)]
    check_message("\n".join(lines))
    heading = next(scores_table([scored("llama", [1.0, 0.0])]))
    assert heading.split()[-1] == "items", "nothing published, no such column"


def test_two_models_are_compared_on_the_same_items_and_not_on_others():
    worse = [1.0, 0.0] * 100
    better = [1.0] * 40 + worse[40:]
    lines = [*differences(scored("good", better), scored("bad", worse))]
    check_message("\n".join(lines))
    check_message([*differences(scored("good", worse), scored("same", worse))][-1])
    close = [*differences(scored("good", [1.0, *worse[1:]]), scored("bad", [*worse[:-1], 1.0]))]
    check_message(close[-1])
    assert [*differences(scored("good", better), scored("fewer", worse[:50]))] == []
    shots = [[scored(name, values, shots) for shots in (0, 5)] for name, values in (("good", better), ("bad", worse))]
    models = [
        Scored(
            zero.name,
            zero.result.model_copy(update={"scores": (*zero.result.scores, *five.result.scores)}),
            {**zero.items, **five.items},
        )
        for zero, five in shots
    ]
    check_message("\n".join(differences(*models)))
