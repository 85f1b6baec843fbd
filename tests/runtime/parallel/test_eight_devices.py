"""A program is the same on any mesh: eight simulated devices give the losses, gradients and states of one."""

import math
import pathlib
import re

import pytest

from tests.simulated_devices import report_of

VARIANTS = ("fsdp_on_a_torus", "hsdp", "context", "all_axes")


@pytest.fixture(scope="module")
def report() -> dict:
    return report_of(pathlib.Path(__file__).with_name("eight_devices.py"), num_devices=8)


@pytest.mark.parametrize("variant", VARIANTS)
def test_initial_parameters_are_bitwise_those_of_one_device(report: dict, variant: str) -> None:
    assert report[variant]["begins_equal"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_and_norms_are_those_of_one_device(report: dict, variant: str) -> None:
    for got, expected in zip(report[variant]["metrics"], report["one"]["metrics"], strict=True):
        assert got == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("variant", ("one", *VARIANTS))
def test_norms_of_each_tensor_and_layer_are_those_of_numpy(report: dict, variant: str) -> None:
    reported, plain = (report[variant]["part_norms"][which] for which in ("reported", "plain"))
    # In NumPy what was added is a difference of float32 parameters: of RMSNorms they are 1, and it is a ten-thousandth.
    for of_reported, of_plain, tolerance in zip(reported, plain, (1e-5, 5e-3, 1e-5), strict=True):
        assert len(of_plain) == 3 * 11 + 3, "QK-norms, which are copied and not split, among them"
        assert of_reported == pytest.approx(of_plain, rel=tolerance)
        assert len(set(of_plain.values())) > 30, "no two parts are alike, so that none can stand for another"
    grad_norm, update_norm, param_norm = report[variant]["metrics"][0][2:5]
    totals = [math.sqrt(sum(norm**2 for norm in norms.values())) for norms in reported]
    assert totals == pytest.approx([grad_norm, update_norm, param_norm], rel=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_parameters_moments_and_average_are_those_of_one_device(report: dict, variant: str) -> None:
    assert report[variant]["state"] < 1e-5
    assert report[variant]["evaluation"] < 1e-5


def test_rows_are_scattered_to_the_same_bits_in_the_form_for_compilers_that_hide_it(report: dict) -> None:
    assert len(report["scatters"]) == 4 and all(found["same_bits"] for found in report["scatters"])
    assert max(found["difference"] for found in report["scatters"][::2]) < 1e-6  # float32
    assert max(found["difference"] for found in report["scatters"][1::2]) < 1e-2  # bfloat16


@pytest.mark.parametrize(("reduce_dtype", "written"), [("float32", "xf32"), ("bfloat16", "xbf16")])
def test_parameters_are_gathered_in_bfloat16_and_gradients_scattered_in_the_dtype_that_was_chosen(
    report: dict, reduce_dtype: str, written: str
) -> None:
    program = report["programs"][reduce_dtype]
    # Losses with log-normalisers, and counts, of the 16 rows are gathered too, as they are, over one axis after the
    # other; on the model axis those of tokens are: 4 rows a device of 24 tokens, one micro-batch.
    rows = {f"all_gather {kind}" for size in (4, 8, 16) for kind in (f"2x{size}xf32", f"{size}xi32")}
    rows.add("all_gather 2x1x96xf32")
    gathers = [found for found in program if found.startswith("all_gather") and found not in rows]
    scatters = [found for found in program if found.startswith("reduce_scatter")]
    reductions = [found for found in program if found.startswith("all_reduce")]
    assert gathers and all(found.endswith("xbf16") for found in gathers)
    assert scatters and all(found.endswith(written) for found in scatters)
    # Reduced in full are counts, the three figures, the QK-norms of 8 values, and the sums of squares of 36 parts: of
    # the gradient, and together of update and parameters. Every matrix gradient is scattered.
    squares = {"all_reduce 36xf32", "all_reduce 72xf32"}
    assert squares <= set(reductions) <= squares | {"all_reduce i32", "all_reduce 3xf32", f"all_reduce 8{written}"}


@pytest.mark.parametrize("program", ["float32", "bfloat16"])
def test_layers_are_gathered_one_at_a_time(report: dict, program: str) -> None:
    gathers = [found for found in report["programs"][program] if found.startswith("all_gather")]
    assert any(found.endswith("32x24xbf16" if program == "bfloat16" else "32x48xbf16") for found in gathers)
    assert not any(found.startswith("all_gather 3x") for found in gathers)  # all three layers


@pytest.mark.parametrize("remat", ["none", "full"])
def test_gathered_matrices_are_not_kept_from_the_forward_to_the_backward_pass(report: dict, remat: str) -> None:
    kept = set(report["programs"]["stacks"][remat])
    # On the model axis a device has half of the heads and of the MLP's columns.
    assert not kept & {"32x16", "32x8", "16x32", "32x24", "24x32"}
    assert ("96x24" in kept) == (remat == "none")  # and activations are: of the MLP, 4 rows a device of 24 tokens


def test_the_compiled_program_reduces_no_matrix_in_full(report: dict) -> None:
    shapes = report["programs"]["compiled"]
    assert shapes and all(re.fullmatch(r"\(?[a-z]+[0-9]+\[[0-9]*\].*", shape) for shape in shapes), shapes
