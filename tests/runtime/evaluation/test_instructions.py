"""IFEval runs offline, with the sentence model of a package."""

import json
import zipfile
from types import SimpleNamespace

from runtime.evaluation.instructions import MEMBERS, SentenceModelError
from runtime.evaluation.run_tasks import run_tasks
from runtime.evaluation.suites import TaskSpec
from runtime.evaluation.tasks import TaskFiles
from tests.catalogue import expect_error
from tests.runtime.evaluation.rows import task_of

ROW = {
    "key": 1, "prompt": "Write two sentences in English, all lowercase.",
    "instruction_id_list": ["length_constraints:number_sentences", "change_case:english_lowercase"],
    "kwargs": [{"relation": "less than", "num_sentences": 3}, {}],
}  # fmt: skip


def scores(folder, package):
    (folder / "ifeval.jsonl").write_text(f"{json.dumps(ROW)}\n{json.dumps(ROW)}\n")
    texts = ["the fox is in the house. the dog sleeps under the big old table.", "ONE. TWO. THREE. four is the number"]
    harness = SimpleNamespace(
        num_truncated={}, rank=0, world_size=1, check_requests=lambda _: None, generate_until=lambda asked: texts
    )
    files = TaskFiles({"ifeval": str(folder / "ifeval.jsonl")}, sentence_model=package)
    return run_tasks(lambda: harness, [task_of(TaskSpec("ifeval"))], files, limit=None).scores


def write_package(path, folder):
    """Write a package whose model knows no abbreviations."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("abbrev_types.txt", "collocations.tab", "ortho_context.tab", "sent_starters.txt"):
            archive.writestr(f"{folder}{name}", "")
    return str(path)


def test_instructions_are_checked_with_the_model_of_a_package(tmp_path):
    found = scores(tmp_path, write_package(tmp_path / "package.whl", MEMBERS))
    assert {score.metric: score.value for score in found} == dict.fromkeys(
        [f"{level}_level_{how}_acc" for level in ("prompt", "inst") for how in ("strict", "loose")], 0.5
    )


def test_no_model_or_another_package_is_an_error(tmp_path):
    for package in (None, write_package(tmp_path / "package.whl", "another/")):
        with expect_error(SentenceModelError):
            scores(tmp_path, package)
