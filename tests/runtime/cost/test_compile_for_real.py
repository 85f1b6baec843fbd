"""The real TPU compiler, a tiny step for slices that are not here: each way of hiding collectives, and all axes.

libtpu lies in `.venv-libtpu`, beside the environment: where it is installed, every start of JAX looks for a TPU.
"""

import os
import sys
from pathlib import Path

import pytest

from runtime.cost.chips import slice_of
from runtime.cost.compiler import outcome_of
from runtime.cost.faults import HLO_NAMES, faults
from runtime.cost.request import Compiled, Request
from runtime.cost.roofline import roofline_of
from runtime.model.config import LlamaConfig

BESIDE = Path(__file__).resolve().parents[3] / ".venv-libtpu"
# Matrices of 2**22 numbers, so that a whole gradient is not too small to be a fault.
MODEL = LlamaConfig(
    vocab_size=2048, hidden_size=1024, intermediate_size=4096, num_hidden_layers=2, num_attention_heads=8,
    num_key_value_heads=4, head_dim=128, max_position_embeddings=1024,
)  # fmt: skip


@pytest.fixture(autouse=True)
def libtpu_and_no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MARIN_DAG_CACHE", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(BESIDE), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(sys, "path", [*sys.path, str(BESIDE)])  # where the version of libtpu is read


@pytest.mark.parametrize(
    ("slice_name", "reduce_dtype", "model_parallel", "context_parallel", "axes", "hidden"),
    [
        # v5e carries gathers inside products; sparse cores run both kinds; v4 gathers asynchronously and cuts products.
        ("v5litepod-8", "bfloat16", 2, 2, {"data_x", "model", "context"}, {"all-gather"}),
        ("v5p-8", "float32", 1, 1, {"data_x", "data_y"}, {"all-gather", "reduce-scatter"}),
        ("v4-8", "bfloat16", 1, 1, {"data_x", "data_y"}, {"all-gather", "collective-permute"}),
    ],
)
def test_a_train_step_compiles_and_moves_no_more_than_it_needs_to(
    slice_name, reduce_dtype, model_parallel, context_parallel, axes, hidden
):
    request = Request(
        "train", slice_name, 1, MODEL, 1024, 8, 0, "bfloat16", "splash", "chunked_wide",
        reduce_dtype=reduce_dtype, model_parallel=model_parallel, context_parallel=context_parallel,
    )  # fmt: skip
    compiled, was_known = outcome_of(request)
    assert isinstance(compiled, Compiled)
    assert not was_known
    assert faults(request, compiled.collectives) == []
    state = 3 * 4 * MODEL.num_parameters / slice_of(slice_name).num_chips
    assert state < compiled.argument_size_in_bytes < compiled.peak_memory_in_bytes < 2**30
    assert {axis for item in compiled.collectives for axis in item.axes} == axes
    large = [item for item in compiled.collectives if item.array_bytes > 2**20]
    assert {item.dtype for item in large if item.kind == "all-gather"} == {"bf16"}
    assert {item.dtype for item in large if item.kind != "all-gather"} == {HLO_NAMES[reduce_dtype]}
    assert {item.kind for item in large} == hidden | {"all-gather", "reduce-scatter"}
    assert {item.kind for item in large if item.is_hidden} == hidden
    assert 0 < roofline_of(request, compiled).exposed_share < 1


def test_an_evaluation_compiles_where_the_compiler_writes_down_its_program():
    request = Request("eval", "v5p-8", 1, MODEL, 1024, 16, 0, "bfloat16", "splash", "chunked_wide")
    compiled, _ = outcome_of(request)
    assert isinstance(compiled, Compiled)
    assert {item.kind for item in compiled.collectives if item.array_bytes > 2**20} == {"all-gather"}
