"""docs/reference/online-mixing.md lists every policy; docs/explanation/online-mixing.md gives the experiment's size."""

import dataclasses
import json
import re
from pathlib import Path
from typing import get_args

from pydantic import TypeAdapter

from pipelines.online_mixing import BATCH, MODEL, STEPS
from pipelines.scales import LAPTOP
from runtime.data.mixing.loss_drop import LossDrop
from runtime.data.mixing.policies import MixingPolicy

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/online-mixing.md"
RESULTS = ROOT / "docs/explanation/online-mixing.md"


def test_the_table_lists_every_policy_and_no_other():
    table = PAGE.read_text().split("## The policies")[1].split("**odm_paper.**")[0]
    kinds = {
        field.default for kind in get_args(MixingPolicy) for field in dataclasses.fields(kind) if field.name == "kind"
    }
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) - {"kind"} == kinds


def test_the_line_for_the_command_line_is_read_as_the_policy_that_it_says():
    (text,) = re.findall(r"--set 'phoenix\.mixing=(\{.*?\})'", PAGE.read_text())
    assert TypeAdapter(MixingPolicy).validate_python(json.loads(text)) == LossDrop(max_ratio=2)


def test_the_size_of_the_experiment_is_that_of_its_pipeline_and_the_laptop_s():
    text = " ".join(RESULTS.read_text().split())
    batch, length = BATCH.global_batch_size, LAPTOP.sequence_length
    assert f"the laptop's Tootsie, a model of {LAPTOP.model.num_parameters / 1e6:.1f} million parameters" in text
    assert LAPTOP.model == MODEL
    assert f"{STEPS} steps of {batch} sequences of {length} tokens" in text
    assert f"{STEPS * batch * length / 1e6:.2f} million tokens per run" in text
