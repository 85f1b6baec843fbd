"""A recipe with exports of one phase, for tests of `publish`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from marin_dag.graph.step import Step
from marin_dag.ledger.records import attempt_path, make_manifest
from marin_dag.store.prefix import open_store
from pipelines import recipe
from steps.hf_export import HfExportConfig, HfExportResult, hf_export
from tests.pipelines.committed import commit
from tests.steps.test_phase_checks_of_tokenizers import FIRST, OURS

STEPS = (2, 4, 8)
TOKENS_OF_A_STEP = 300_000
NAMES = tuple(f"hf_export/first-{step}" for step in STEPS)
CARD = "---\nlibrary_name: transformers\n---\n# toy\n\nTrained for {step} updates.\n"


def exports() -> dict[str, Step]:
    """Return the exports by name: one of each milestone, and a second one of the first."""
    config = {"tokenizer": OURS, "weights": "hot", "dtype": "float32"}
    names = {f"hf_export/first-{step}": step for step in STEPS} | {"hf_export/again-2": 2}
    return {
        name: hf_export(name, HfExportConfig(phase=FIRST.at(step=step), model_name=name, **config))
        for name, step in names.items()
    }


def build(arguments: argparse.Namespace) -> Sequence[Step]:
    return [*exports().values()]


def write_exports(prefix: Path, names: Sequence[str] = NAMES) -> dict[int, dict[str, bytes]]:
    """Commit exports without running them; return their files by training step."""
    store = open_store(str(prefix))
    found = {}
    for export in (exports()[name] for name in names):
        number = export.config.phase.milestone
        folder = attempt_path(export.name, export.digest, "20260101-000000-00000000")
        files = {
            "model.safetensors": bytes([number]) * 50_000,
            "config.json": b'{"model_type": "llama"}',
            "README.md": CARD.format(step=number).encode(),
        }
        for name, content in files.items():
            store.write(f"{folder}/model/{name}", content)
        result = HfExportResult(
            folder="model", files=tuple(files), weights="hot", dtype="float32", num_parameters=12_500, step=number,
            consumed_tokens=number * TOKENS_OF_A_STEP,
        )  # fmt: skip
        commit(store, export, result, folder, make_manifest(store, folder))
        found[number] = files
    return found


def main(argv: Sequence[str] | None = None) -> int:
    return recipe.main(build, name="toy", argv=argv)
