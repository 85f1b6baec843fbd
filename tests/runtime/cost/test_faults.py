"""Collectives that a compiled step should not have: whole gradients on every device, wide gathers, other dtypes."""

import dataclasses

import pytest

from runtime.cost import faults
from runtime.cost.collectives import Collective
from runtime.cost.request import Compiled, CompileRequest
from runtime.model.llama.config import LlamaConfig
from tests.catalogue import check_message

MODEL = LlamaConfig(128_256, 4096, 14_336, 32, 32, 8, 128, 4096)
REQUEST = CompileRequest("train", "v4-2048", 1, MODEL, 4096, 3072, 1, "bfloat16", "splash", "chunked_wide")
GRADIENT = Collective("all-reduce", "f32", (4096, 129_024), 4 * 4096 * 129_024, ("data_x",), 8, 1)


def faults_in(request: CompileRequest, items: tuple[Collective, ...]) -> list[str]:
    return faults.faults(request, Compiled(0, 0, items, 0, 0.0, 0, {}))


def test_a_whole_gradient_reduced_on_every_device_and_a_float32_gather_are_faults():
    gather = Collective("all-gather", "f32", (1, 4096, 14_336), 4 * 4096 * 14_336, ("data_x",), 8, 32)
    reduced, gathered = faults_in(REQUEST, (GRADIENT, gather))
    check_message(reduced)
    check_message(gathered)


def test_a_gradient_scattered_over_one_axis_is_not_reduced_in_full_over_the_next():
    request = dataclasses.replace(REQUEST, reduce_dtype="bfloat16")
    part = dataclasses.replace(GRADIENT, dtype="bf16", shape=(4096 // 8, 4096), axes=("data_y",))
    (fault,) = faults_in(request, (part,))
    check_message(fault)
    of_activations = dataclasses.replace(part, axes=("model",))
    of_four_rows_a_chip = dataclasses.replace(part, shape=(16, 4, 129_024), axes=("data_z",), num_devices=16)
    assert faults_in(request, (of_activations, of_four_rows_a_chip)) == []


def test_shared_heads_have_the_whole_gradient_of_a_chips_own_columns():
    own = dataclasses.replace(GRADIENT, shape=(4096, 7168), axes=("context",))
    assert faults_in(REQUEST, (own,)) == []
    (fault,) = faults_in(dataclasses.replace(REQUEST, model_parallel=2), (own,))
    check_message(fault)


@pytest.mark.parametrize("kind", ["reduce-scatter", "collective-permute"])
@pytest.mark.parametrize(("asked", "got"), [("float32", "bf16"), ("bfloat16", "f32")])
def test_a_gradient_summed_in_another_dtype_than_was_asked_for_is_a_fault(asked, got, kind):
    request = dataclasses.replace(REQUEST, reduce_dtype=asked)
    scatter = dataclasses.replace(GRADIENT, kind=kind, dtype=got)
    (fault,) = faults_in(request, (scatter,))
    check_message(fault)
    right = dataclasses.replace(scatter, dtype={"bf16": "f32", "f32": "bf16"}[got])
    of_activations = dataclasses.replace(scatter, axes=("model",))
    assert faults_in(request, (right, of_activations)) == []
    assert faults_in(dataclasses.replace(request, step="eval"), (scatter,)) == []


def test_scatters_small_sums_and_sums_between_slices_are_no_faults():
    good = (
        dataclasses.replace(GRADIENT, kind="reduce-scatter"),
        dataclasses.replace(GRADIENT, axes=("replica",)),
        dataclasses.replace(GRADIENT, shape=(64, 14_336)),
        dataclasses.replace(GRADIENT, kind="all-gather", dtype="bf16"),
    )
    assert faults_in(REQUEST, good) == []
