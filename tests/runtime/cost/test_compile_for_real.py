"""The real compilers, a tiny step for machines that are not here: each kernel once, and all axes.

`make compile-matrix` runs the tests marked `matrix`: other machines, kernels and ways of hiding collectives.

libtpu lies in `.venv-libtpu`, beside the environment: where it is installed, every start of JAX looks for a TPU. The
compiler for GPUs lies in `.venv-cuda`.
"""

import dataclasses
import importlib.metadata
import json
import re
import subprocess
import sys

import pytest

from marin_dag.graph.resources import Tpu
from pipelines.compile_programs import scoring_programs
from pipelines.sources import evaluation_items_step
from runtime.cost.chips import slice_of
from runtime.cost.compiler import ROOT, environment, outcome_of
from runtime.cost.faults import HLO_NAMES, faults
from runtime.cost.request import REQUEST as REQUEST_JSON
from runtime.cost.request import Compiled, CompileRequest, to_json
from runtime.cost.roofline import roofline_of
from runtime.evaluation.suites import TaskSpec
from runtime.kernels import attention_tokamax
from runtime.kernels.names import RATIOS
from runtime.model.llama.config import LlamaConfig
from steps.hf_export import HfExportConfig, hf_export
from steps.lm_eval import LmEvalConfig, lm_eval
from steps.train_phase import train_phase
from tests.runtime.evaluation.rows import task_of
from tests.runtime.evaluation.test_device_memory import COMPILED, SEVENTY_B
from tests.steps.phase_runs import a_phase
from tests.steps.test_phase_checks_of_tokenizers import OURS, tokenized

WITH_ITS_JAX = pytest.mark.skipif(
    attention_tokamax.missing() is not None, reason="the kernel refuses to run here, which is tested"
)
# Matrices of 2**21 numbers, so that a whole gradient is not too small to be a fault; larger ones compile for longer.
MODEL = LlamaConfig(
    vocab_size=1024, hidden_size=1024, intermediate_size=2048, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=128, max_position_embeddings=512,
)  # fmt: skip
# Of the tokens nothing that is looked for depends, and the compilers write each tile out: in the batches a row a chip.
LENGTH = 256


@pytest.fixture(autouse=True)
def no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MARIN_DAG_CACHE", str(tmp_path))


@pytest.mark.parametrize(
    ("slice_name", "num_slices", "loss_kernel", "reduce_dtype", "model_parallel", "context_parallel", "axes", "hidden"),
    [
        # v5e carries gathers inside products; sparse cores run both kinds; v4 gathers asynchronously and cuts products.
        ("v5litepod-8", 2, "chunked_wide", "bfloat16", 2, 2, {"replica", "data_x", "model", "context"}, {"all-gather"}),
        pytest.param(
            "v5p-8",
            1,
            "chunked_wide",
            "float32",
            1,
            1,
            {"data_x", "data_y"},
            {"all-gather", "reduce-scatter"},
            marks=pytest.mark.matrix,
        ),
        pytest.param(
            "v4-8",
            1,
            "chunked_wide",
            "bfloat16",
            1,
            1,
            {"data_x", "data_y"},
            {"all-gather", "collective-permute"},
            marks=pytest.mark.matrix,
        ),
    ],
)
def test_a_train_step_compiles_and_moves_no_more_than_it_needs_to(
    slice_name, num_slices, loss_kernel, reduce_dtype, model_parallel, context_parallel, axes, hidden
):
    request = CompileRequest(
        "train", slice_name, num_slices, MODEL, LENGTH, 4, 0, "bfloat16", "splash", loss_kernel,
        reduce_dtype=reduce_dtype, model_parallel=model_parallel, context_parallel=context_parallel,
    )  # fmt: skip
    compiled, was_known = outcome_of(request)
    assert isinstance(compiled, Compiled)
    assert not was_known
    assert faults(request, compiled) == []
    state = 3 * 4 * MODEL.num_parameters / slice_of(slice_name).num_chips
    assert state < compiled.argument_size_in_bytes < compiled.peak_memory_in_bytes < 2**30
    assert {axis for item in compiled.collectives for axis in item.axes} == axes
    large = [item for item in compiled.collectives if item.array_bytes > 2**20]
    gathers = [item for item in large if item.kind == "all-gather"]
    assert {item.dtype for item in gathers} == {"bf16"}
    # Layer by layer, in the scan: what is gathered once is the embedding and the head.
    once = [item.array_bytes for item in gathers if item.times % MODEL.num_hidden_layers]
    assert once == 2 * [2 * MODEL.vocab_size * MODEL.hidden_size]
    between_slices = [item for item in compiled.collectives if "replica" in item.axes and item.array_bytes > 2**19]
    # What a chip holds of a gradient, after the axes of the torus have summed it.
    assert {(item.kind, item.dtype) for item in between_slices} == (
        {("all-reduce", HLO_NAMES[reduce_dtype])} if num_slices > 1 else set()
    )
    within = [item for item in large if "replica" not in item.axes]
    assert {item.dtype for item in within if item.kind != "all-gather"} == {HLO_NAMES[reduce_dtype]}
    assert {item.kind for item in within} == hidden | {"all-gather", "reduce-scatter"}
    assert {item.kind for item in large if item.is_hidden} == hidden
    if "collective-permute" in hidden:  # every gradient of a layer goes round the first axis in parts
        over_first = [item for item in compiled.collectives if item.axes == ("data_x",) and item.array_bytes >= 2**18]
        of_layers = [item.kind for item in over_first if item.times % MODEL.num_hidden_layers == 0]
        assert set(of_layers) == {"all-gather", "collective-permute"}
    roofline = roofline_of(request, compiled)
    assert 0 < roofline.exposed_share < 1
    assert roofline.found_share == pytest.approx(1, abs=0.01)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("machines", "attention_kernel", "axes"),
    [
        ("v5litepod-8", "splash", {"replica", "data_x", "data_y"}),
        ("2 x 4 x H200", "chunked", {"replica", "data_x"}),
    ],
)
def test_within_a_slice_or_over_hosts_of_gpus_gradients_are_summed_over_replicas_once_an_update(
    machines, attention_kernel, axes
):
    request = CompileRequest(
        "train", machines, 1, MODEL, LENGTH, 16, 0, "bfloat16", attention_kernel, "chunked_wide",
        reduce_dtype="bfloat16", num_microbatches=2, replica_parallel=2,
    )  # fmt: skip
    compiled, _ = outcome_of(request)
    assert isinstance(compiled, Compiled)
    assert faults(request, compiled) == []
    assert compiled.argument_size_in_bytes > 3 * 4 * MODEL.num_parameters / 4  # a copy is held by four of the eight
    assert {axis for item in compiled.collectives for axis in item.axes} == axes
    over_replicas = [item for item in compiled.collectives if "replica" in item.axes and item.array_bytes > 2**16]
    assert {(item.kind, item.dtype, item.axes, item.times) for item in over_replicas} == {
        ("all-reduce", "bf16", ("replica",), 1)
    }
    assert sum(item.array_bytes for item in over_replicas) == pytest.approx(MODEL.num_parameters / 2, rel=0.01)
    assert roofline_of(request, compiled).exposed_seconds > 0


def with_the_scatter_kernel() -> CompileRequest:
    return CompileRequest(
        "train", "v5litepod-8", 2, MODEL, LENGTH, 16, 0, "bfloat16", "splash", "chunked_wide",
        reduce_dtype="bfloat16", scatter_kernel="pallas_tpu",
    )  # fmt: skip


@pytest.mark.matrix
def test_on_v5e_a_kernel_scatters_gradients_of_layers_beside_the_products_that_form_them():
    request = with_the_scatter_kernel()
    compiled, _ = outcome_of(request)
    assert isinstance(compiled, Compiled)
    assert faults(request, compiled) == []
    scatters = [item for item in compiled.collectives if item.kind == "reduce-scatter" and item.axes == ("data_x",)]
    by_kernels = [item for item in scatters if item.times == MODEL.num_hidden_layers and item.array_bytes > 2**17]
    assert len(by_kernels) == 7 and all(item.is_hidden and item.dtype == "bf16" for item in by_kernels)
    assert roofline_of(request, compiled).found_share == pytest.approx(1, abs=0.01)


@pytest.mark.matrix
def test_on_v5e_what_the_kernel_sends_is_what_the_compiler_would_have_and_less_of_it_is_exposed():
    request = with_the_scatter_kernel()
    compiled, _ = outcome_of(request)
    assert isinstance(compiled, Compiled)
    without = REQUEST_JSON.validate_json(to_json(request).replace("pallas_tpu", "xla"))
    beside, _ = outcome_of(without)
    assert isinstance(beside, Compiled)
    sent = [sum(item.wire_bytes for item in found.collectives) for found in (compiled, beside)]
    assert sent[0] == pytest.approx(sent[1], rel=0.01)
    assert roofline_of(request, compiled).exposed_seconds < roofline_of(without, beside).exposed_seconds


def test_an_evaluation_compiles_where_the_compiler_writes_down_its_program():
    request = CompileRequest("eval", "v5p-8", 1, MODEL, LENGTH, 4, 0, "bfloat16", "splash", "chunked_wide")
    compiled, _ = outcome_of(request)
    assert isinstance(compiled, Compiled)
    assert {item.kind for item in compiled.collectives if item.array_bytes > 2**20} == {"all-gather"}
    assert roofline_of(request, compiled).found_share == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("attention", "machines", "model_parallel", "context_parallel", "axes"),
    [
        pytest.param("chunked", "1 x H200", 1, 1, set(), marks=pytest.mark.matrix),
        ("chunked", "2 x 4 x H200", 2, 2, {"data_x", "model", "context"}),
        pytest.param(
            "tokamax", "2 x 4 x H200", 2, 2, {"data_x", "model", "context"}, marks=(WITH_ITS_JAX, pytest.mark.matrix)
        ),
    ],
)
def test_a_train_step_compiles_for_gpus_with_nothing_in_it_that_is_slow(
    attention, machines, model_parallel, context_parallel, axes
):
    loss = "chunked_wide" if axes else "mosaic_gpu"  # each of eight devices has fewer tokens than one block of it
    request = CompileRequest(
        "train", machines, 1, MODEL, LENGTH, 2, 1, "bfloat16", attention, loss,
        reduce_dtype="bfloat16", model_parallel=model_parallel, context_parallel=context_parallel,
    )  # fmt: skip
    compiled, _ = outcome_of(request)
    assert isinstance(compiled, Compiled)
    assert faults(request, compiled) == []
    assert roofline_of(request, compiled).found_share == pytest.approx(1, abs=0.01)
    state = 4 * 4 * MODEL.num_parameters / slice_of(machines).num_chips
    assert state < compiled.argument_size_in_bytes < compiled.peak_memory_in_bytes < 2**31
    assert {axis for item in compiled.collectives for axis in item.axes} == axes
    if axes:
        assert {item.kind for item in compiled.collectives if item.is_hidden} == {"all-gather", "reduce-scatter"}


@pytest.mark.matrix
def test_layers_that_are_written_out_for_a_gpu_compute_nothing_twice_and_are_updated_from_whole_gradients():
    model = dataclasses.replace(MODEL, num_hidden_layers=8)  # as many parts as a fault has
    request = CompileRequest(
        "train", "1 x H200", 1, model, LENGTH, 2, 1, "bfloat16", "chunked", "chunked_wide", remat="none"
    )
    compiled, _ = outcome_of(request)
    assert isinstance(compiled, Compiled)
    assert roofline_of(request, compiled).found_share == pytest.approx(1, abs=0.01)
    assert faults(request, compiled) == []


def test_a_tpu_s_kernel_compiles_alone_and_reports_its_schedule():
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks.compile_kernel", "v4", "splash", "64"],
        capture_output=True, text=True, cwd=ROOT, env=environment("tpu"),
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-2000:]
    figures = json.loads(finished.stdout.splitlines()[-1])["figures"]
    if importlib.metadata.version("jax") == "0.10.2":  # a pass alone and in a program differ by a few bundles
        bundles = [float(figure) for figure in re.findall(r"\d+", figures)[:2]]
        assert bundles == pytest.approx([99, 138], abs=1) and "12.9 of 16 MiB" in figures


def test_the_kernel_that_scatters_a_gradient_compiles_alone_for_a_ring_of_chips():
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks.compile_kernel", "v5e", "scattered_product", "1024"],
        capture_output=True, text=True, cwd=ROOT, env=environment("tpu"),
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-2000:]
    taken, given = 2 * 8192 * (4096 + 1024), 2 * (4096 // 16) * 1024  # a chip has whole sides, and its rows of the sum
    found = json.loads(finished.stdout.splitlines()[-1])["peak_memory_in_bytes"]
    assert found == pytest.approx(taken + given, rel=0.01)  # and no copy of the gradient of 4096 rows


@pytest.mark.parametrize("hidden_size", [768, pytest.param(2560, marks=pytest.mark.matrix)])
def test_the_loss_kernel_of_hopper_keeps_everything_in_registers_and_no_logits_of_float32(hidden_size):
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks.compile_kernel", "H200", "mosaic_gpu", str(hidden_size)],
        capture_output=True, text=True, cwd=ROOT, env=environment("gpu"),
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-2000:]
    found = json.loads(finished.stdout.splitlines()[-1])
    # Of all warpgroups alike: what multiplies has 232 while the kernel runs.
    assert found["registers"] == {RATIOS: {"used": 168, "spilled_bytes": 0, "is_serialized": False}}
    # Head, its gradient and that in float32; a block's ratios. Float32 logits would be 4 GiB.
    head, block = hidden_size * 128_256, 8192 * 128_256
    assert found["peak_memory_in_bytes"] < (2 + 2 + 4) * head + 2 * block + 2**28


@WITH_ITS_JAX
@pytest.mark.matrix
def test_tokamax_s_kernels_become_machine_code_that_keeps_nearly_everything_in_registers():
    """A little of heads of 128 does not fit, in the sizes that tokamax measured as the quickest."""
    for head_dim, most_bytes in ((64, 0), (128, 72)):
        finished = subprocess.run(
            [sys.executable, "-m", "benchmarks.compile_kernel", "H200", "tokamax", str(head_dim)],
            capture_output=True, text=True, cwd=ROOT, env=environment("gpu"),
        )  # fmt: skip
        assert finished.returncode == 0, finished.stderr[-2000:]
        found = json.loads(finished.stdout.splitlines()[-1])
        spilled = {row["spilled_bytes"] for row in found["registers"].values()} - {0}
        assert max(spilled, default=0) <= most_bytes
        assert not any(row["is_serialized"] for row in found["registers"].values())
        # A mask of tokens x tokens alone would be 16 MiB a sequence, and the scores of one head 64.
        assert found["peak_memory_in_bytes"] < 0.4 * 2**30


KEPT_PROGRAM = """
from runtime.cost.compile_program import arguments_of, mesh_of
from runtime.cost.described_devices import as_default
from runtime.cost.request import CompileRequest
from runtime.model.llama.config import LlamaConfig
from runtime.optim.optimizer import ADAMW
from runtime.same_fields import filled_from
from runtime.training.train_step import ProgramOptions, train_program
model = LlamaConfig(1024, 512, 1024, 2, 8, 2, 64, 256)  # only tokens are 256
request = CompileRequest("train", "1 x H200", 1, model, 256, 2, 0, "bfloat16", "tokamax", "chunked_wide")
mesh = mesh_of(request)
for remat in ("none", "dots", "full"):
    with as_default(mesh):
        options = filled_from(request, ProgramOptions, remat=remat, optimizer=ADAMW)
        program = train_program(model, mesh, options, donate=True)
        lowered = program.lower(*arguments_of(request, mesh))
    text = lowered.as_text()
    assert "256x256x" not in text, "a mask of tokens x tokens"
    print(text.count("@mosaic_gpu"))
"""


@WITH_ITS_JAX
@pytest.mark.matrix
def test_tokamax_kernels_keep_products_without_recomputing_and_make_no_mask():
    finished = subprocess.run(
        [sys.executable, "-c", KEPT_PROGRAM], capture_output=True, text=True, cwd=ROOT, env=environment("gpu")
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert finished.stdout.split() == ["3", "3", "4"]


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("slice_name", "step", "replica"),
    [("v6e-4", "score", 4), ("v6e-4", "prefill", 1), ("v6e-4", "decode", 1), ("1 x H100", "decode", 1)],
)
def test_programs_of_an_evaluation_compile_and_copy_no_cache(slice_name, step, replica):
    num_rows, chips = 64 * slice_of(slice_name).num_chips, slice_of(slice_name).num_chips
    request = CompileRequest(
        step, slice_name, 1, MODEL, MODEL.max_position_embeddings, num_rows, 0, "bfloat16", "chunked", "none",
        remat="none", replica_parallel=replica, stored_dtype="bfloat16",
    )  # fmt: skip
    compiled, _ = outcome_of(request)
    assert isinstance(compiled, Compiled)
    cache = 2 * 2 * MODEL.num_hidden_layers * MODEL.num_key_value_heads * MODEL.head_dim * num_rows // chips * 512
    if step != "score":
        assert (
            compiled.argument_size_in_bytes
            > cache
            > 2 * (compiled.peak_memory_in_bytes - compiled.argument_size_in_bytes)
        )


@pytest.mark.matrix
@pytest.mark.parametrize("step", ["score", "prefill", "decode"])
def test_a_70b_is_scored_and_writes_text_on_eight_chips(step):
    phase = train_phase("phase", a_phase(tokenized(OURS, "web"), model=SEVENTY_B))
    writing = HfExportConfig(phase=phase, tokenizer=OURS, weights="hot", dtype="bfloat16", model_name="large")
    scoring = LmEvalConfig(
        export=hf_export("export", writing), items=evaluation_items_step(), tasks=(task_of(TaskSpec("gsm8k")),),
        limit=None, compute_dtype="bfloat16",
    )  # fmt: skip
    (request,) = (
        each for each in scoring_programs(lm_eval("scores", scoring, resources=Tpu("v6e-8"))) if each.step == step
    )
    compiled, _ = outcome_of(request)
    assert isinstance(compiled, Compiled)
    memory, arguments = slice_of("v6e-8").generation.hbm_in_bytes, compiled.argument_size_in_bytes
    assert 2 * SEVENTY_B.num_parameters / 8 < arguments < compiled.peak_memory_in_bytes < memory
    # The other arguments than parameters and cache are numbers of tokens.
    assert compiled.peak_memory_in_bytes - arguments == pytest.approx(COMPILED[step], rel=0.05)
