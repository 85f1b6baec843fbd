"""Expected memory and time: against figures of the compilers, and which choices they rank higher."""

import dataclasses

import pytest

from pipelines.scales import EIGHT_B
from pipelines.sizes import SCALES
from runtime.cost.expected import expected_memory, expected_seconds
from runtime.cost.request import CompileRequest

GIB = 2**30
# Size, slices, batch, averages, dtype, attention, remat, micro-batches; GiB at the peak by the compiler: libtpu 0.0.40
# (docs/explanation/tpu.md), and XLA for an H100 (docs/explanation/gpu.md).
COMPILED = [
    ("8b", ("v5litepod-256", 2), 1024, 0, "bfloat16", "splash", "full", 1, 6.57),
    ("8b", ("v4-2048", 1), 3072, 1, "bfloat16", "splash", "full", 1, 7.42),
    ("8b", ("v4-2048", 1), 4096, 1, "bfloat16", "splash", "full", 1, 9.09),
    ("8b", ("v4-128", 4), 3072, 1, "bfloat16", "splash", "full", 1, 26.46),
    ("8b", ("v4-128", 4), 3072, 1, "float32", "splash", "full", 2, 28.21),
    ("125m", ("1 x H100", 1), 8, 1, "bfloat16", "tokamax", "none", 1, 11.06),
    ("125m", ("1 x H100", 1), 8, 1, "bfloat16", "tokamax", "full", 1, 4.81),
    ("125m", ("1 x H100", 1), 32, 1, "bfloat16", "tokamax", "none", 1, 30.76),
    ("125m", ("1 x H100", 1), 32, 1, "bfloat16", "tokamax", "full", 1, 7.68),
    ("125m", ("1 x H100", 1), 32, 1, "bfloat16", "tokamax", "none", 4, 11.78),
    ("125m", ("1 x H100", 1), 24, 1, "float32", "chunked", "none", 1, 85.33),
    ("1b", ("1 x H100", 1), 16, 1, "bfloat16", "tokamax", "full", 1, 33.20),
    ("1b", ("1 x H100", 1), 16, 1, "bfloat16", "tokamax", "none", 4, 45.43),
    # With a vocabulary of 50,432, and the loss that takes it.
    ("125m", ("1 x H100", 1), 64, 1, "bfloat16", "", "none", 2, 31.76),
    ("400m", ("1 x H100", 1), 96, 1, "bfloat16", "", "none", 4, 48.74),
    ("1b", ("8 x H100", 1), 96, 1, "bfloat16", "", "none", 2, 67.31),
    ("400m", ("v6e-8", 1), 96, 1, "bfloat16", "", "none", 2, 23.55),
    ("3b", ("1 x H200", 1), 256, 1, "bfloat16", "", "none", 128, 88.34),
    ("32b", ("64 x 8 x H100", 1), 2048, 1, "bfloat16", "", "full", 1, 22.74),
    ("32b", ("v5p-512", 1), 2048, 1, "bfloat16", "splash", "full", 1, 37.0),
]


def request(size, slices, batch, averages, dtype, attention, remat, number):
    model = SCALES[size].model
    return CompileRequest(
        step="train",
        slice=slices[0],
        num_slices=slices[1],
        # Compiles with `chunked_wide` had a vocabulary of 50,304, which `mosaic_gpu` does not take.
        model=dataclasses.replace(model, vocab_size=50_304) if attention and size not in ("8b", "32b") else model,
        sequence_length=SCALES[size].sequence_length,
        global_batch_size=batch,
        num_averages=averages,
        compute_dtype=dtype,
        attention_kernel=attention,
        loss_kernel="chunked_wide" if attention else "",
        remat=remat,
        num_microbatches=number,
    )


@pytest.mark.parametrize("row", COMPILED)
def test_the_expected_memory_is_a_little_above_the_compilers(row):
    *of, peak = row
    assert 1.02 * peak < expected_memory(request(*of)) / GIB < 1.3 * peak


def test_unnamed_attention_is_that_which_the_machines_have():
    named = request(*COMPILED[5][:-1])
    for dtype, attention in (("bfloat16", "tokamax"), ("float32", "chunked")):
        wanted = expected_memory(dataclasses.replace(named, compute_dtype=dtype, attention_kernel=attention))
        assert expected_memory(dataclasses.replace(named, compute_dtype=dtype, attention_kernel="")) == wanted
    on_a100 = dataclasses.replace(named, slice="1 x A100-80G", attention_kernel="")
    assert expected_memory(on_a100) > expected_memory(dataclasses.replace(named, attention_kernel=""))


def test_recomputation_costs_products_and_micro_batches_cost_wires():
    full = request("8b", ("v4-2048", 1), 3072, 1, "bfloat16", "splash", "full", 1)
    none = dataclasses.replace(full, remat="none")
    assert expected_seconds(none) < expected_seconds(full)
    model, seconds = EIGHT_B.model, 275e12
    least = 3072 * 4096 * model.flops_per_token(4096) / (1024 * seconds)
    assert least <= expected_seconds(none) < 1.05 * least
    short = dataclasses.replace(none, sequence_length=1024)
    assert expected_seconds(dataclasses.replace(short, num_microbatches=3)) > expected_seconds(short)
