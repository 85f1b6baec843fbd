"""The roofline by hand: counts, peaks and wires of a model small enough for a pencil."""

import dataclasses

import pytest

from runtime.cost.collectives import Collective
from runtime.cost.request import OUTCOME, Compiled, CompileRequest, DoesNotFit, to_json
from runtime.cost.request import REQUEST as REQUEST_JSON
from runtime.cost.roofline import flops_of, roofline_of, seconds_of
from runtime.model.llama.config import LlamaConfig

MODEL = LlamaConfig(
    vocab_size=100, hidden_size=8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=4, max_position_embeddings=32,
)  # fmt: skip
REQUEST = CompileRequest("train", "v5litepod-4", 1, MODEL, 32, 64, 0, "bfloat16", "splash", "chunked_wide")
TOKENS = 64 * 32
ATTENTION = 2 * 2 * 2 * 4 * 32  # forward, below the diagonal: layers x heads x head_dim x sequence, a product and a sum
HEAD = 2 * 100 * 8
LAST = 2 * 2 * 8 * 16  # of a layer, not computed again: nothing in its backward pass needs what it gave
LAYERS = 2 * (2 * (8 * 4 * (4 + 2) + 3 * 8 * 16 + 2 * 8) + 8)


def test_flops_are_counted_causally_in_full_and_as_executed():
    found = flops_of(REQUEST)
    assert found.causal == TOKENS * 3 * (LAYERS + HEAD + ATTENTION)
    assert found.full == found.causal + 3 * TOKENS * ATTENTION
    assert found.executed == TOKENS * (4 * LAYERS - LAST + 4.5 * ATTENTION + 3 * HEAD)
    kept = flops_of(dataclasses.replace(REQUEST, remat="none"))
    assert kept.executed == TOKENS * (3 * LAYERS + 3.5 * ATTENTION + 3 * HEAD)
    assert flops_of(dataclasses.replace(REQUEST, loss_kernel="mosaic_gpu")).executed == found.executed
    assert flops_of(dataclasses.replace(REQUEST, step="eval")).executed == TOKENS * (LAYERS + HEAD + ATTENTION)


def test_the_attention_kernel_of_gpus_computes_more_and_the_last_stretch_of_a_row_the_most():
    by_kernel = {
        kernel: flops_of(dataclasses.replace(REQUEST, attention_kernel=kernel)) for kernel in ("chunked", "tokamax")
    }
    assert by_kernel["chunked"].attention == TOKENS * 4.5 * ATTENTION
    assert by_kernel["tokamax"].attention == TOKENS * 5.5 * ATTENTION
    assert by_kernel["tokamax"].executed - by_kernel["chunked"].executed == TOKENS * ATTENTION

    def products(kernel: str) -> float:
        request = dataclasses.replace(REQUEST, slice="v5litepod-16", attention_kernel=kernel, context_parallel=4)
        return roofline_of(request, compiled()).products_seconds * 16 * 197e12

    rest = by_kernel["chunked"].executed - by_kernel["chunked"].attention
    assert products("chunked") == pytest.approx(rest + by_kernel["chunked"].attention * 7 / 4)  # 7 of 16 parts
    # Of eleven products four see 7 of 16 parts; the seven of the backward pass see all keys of the stretch: 8.
    assert products("tokamax") == pytest.approx(rest + by_kernel["tokamax"].attention * (4 * 7 / 4 + 7 * 2) / 11)


def compiled(*items: Collective) -> Compiled:
    return Compiled(0, 0, items, 0, 0.0, 0, {})


def test_a_step_is_products_optimizer_and_what_is_exposed():
    exposed = Collective("all-gather", "bf16", (4, 4), 90_000, ("data_x",), 2, 2)
    hidden = dataclasses.replace(exposed, array_bytes=30, times=1, window_flops=197_000)  # a nanosecond
    found = roofline_of(REQUEST, compiled(exposed, hidden))
    assert found.products_seconds == flops_of(REQUEST).executed / (4 * 197e12)
    assert found.exposed_seconds == 2 * 45_000 / 45e9
    assert found.optimizer_seconds == pytest.approx(4 * MODEL.num_parameters / 4 * 7 / 0.819e12)
    assert found.step_seconds == pytest.approx(
        max(found.products_seconds, found.weights_seconds) + found.optimizer_seconds + found.exposed_seconds
    )
    assert found.exposed_share == found.exposed_seconds / found.step_seconds
    assert found.tokens_per_second == TOKENS / found.step_seconds


def test_float32_takes_twice_the_bytes_six_passes_of_a_tpu_and_no_tensor_cores_of_a_gpu():
    gpu = {"slice": "4 x H200", "attention_kernel": "chunked"}
    window = Collective("all-gather", "f32", (4, 4), 900_000_000, ("data_x",), 2, 1, round(0.0005 * 989e12))

    def of(compute_dtype: str, **changes) -> tuple[float, float, float]:
        request = dataclasses.replace(REQUEST, compute_dtype=compute_dtype, **changes)
        found = roofline_of(request, compiled(window))
        return found.products_seconds, found.weights_seconds, found.exposed_seconds

    products, weights, _ = of("bfloat16")
    assert of("float32")[:2] == pytest.approx((6 * products, weights * (4 * 5 + 8) / (2 * 5 + 8)))
    products, weights, exposed = of("bfloat16", **gpu)
    bytes_moved = MODEL.num_parameters / 4.8e12
    assert weights == pytest.approx((2 * 5 + 8) * bytes_moved)  # two gathers, three passes; a gradient there and back
    assert exposed == pytest.approx(0.0005)
    assert of("float32", **gpu) == pytest.approx((products * 989 / 67, (4 * 5 + 8) * bytes_moved, 0))
    assert of("float32", step="eval", **gpu)[1] == pytest.approx(4 * 2 * bytes_moved)


def test_a_collective_is_exposed_for_what_it_takes_longer_than_the_work_beside_it_whatever_hides_the_others():
    millisecond = 197e9
    short = Collective("all-gather", "bf16", (4, 4), 90_000_000, ("data_x",), 2, 2, round(0.9 * millisecond))
    long = dataclasses.replace(short, window_flops=round(50 * millisecond))
    assert seconds_of(short, REQUEST) == pytest.approx(2e-3)
    assert roofline_of(REQUEST, compiled(short, long)).exposed_seconds == pytest.approx(2 * 0.1e-3)
    assert roofline_of(REQUEST, compiled(long)).exposed_seconds == 0


def test_products_in_the_text_are_compared_with_those_of_the_busiest_chip():
    request = dataclasses.replace(REQUEST, slice="v5litepod-8", context_parallel=4)
    flops = flops_of(request)
    whole = dataclasses.replace(compiled(), flops=(flops.executed + flops.attention * 3 // 4) // 8)
    assert roofline_of(request, whole).found_share == pytest.approx(1)


def test_between_slices_the_network_is_what_counts():
    item = Collective("all-reduce", "f32", (4, 4), 31_250_000, ("replica",), 2, 1)
    assert seconds_of(item, dataclasses.replace(REQUEST, num_slices=2)) == pytest.approx(0.01)


def test_gpus_of_a_host_have_a_switch_and_those_of_several_share_the_network_cards_of_a_host():
    def seconds(machines: str, axis: str, model_parallel: int = 1) -> float:
        request = dataclasses.replace(REQUEST, slice=machines, model_parallel=model_parallel)
        return seconds_of(Collective("all-gather", "bf16", (4, 4), 90_000_000, (axis,), 2, 1), request)

    within = 45e6 / 450e9
    assert seconds("8 x H200", "data_x") == seconds("8 x H200", "data_x", 2) == pytest.approx(within)
    assert seconds("4 x 8 x H200", "data_x") == pytest.approx(45e6 / (8 * 50e9))
    assert seconds("4 x 8 x H200", "data_x", 2) == pytest.approx(45e6 / (4 * 50e9))  # as two such rings go on at once
    assert seconds("4 x 8 x H200", "model", 2) == pytest.approx(within)  # neighbours, in one host
    assert seconds("4 x 8 x H200", "model", 16) == pytest.approx(45e6 / (8 * 50e9))


def test_a_permute_uses_one_direction_of_a_ring_and_a_gather_both():
    request = dataclasses.replace(REQUEST, slice="v5litepod-256")
    gather = Collective("all-gather", "bf16", (4, 4), 90_000_000, ("data_x",), 2, 1)
    permute = Collective("collective-permute", "bf16", (4, 4), 45_000_000, ("data_x",), 2, 1)
    assert gather.wire_bytes == permute.wire_bytes
    assert seconds_of(permute, request) == pytest.approx(2 * seconds_of(gather, request)) == pytest.approx(45e6 / 45e9)


def test_a_model_axis_halves_the_weights_of_a_chip_and_shares_the_wires_of_its_torus_axis():
    one = dataclasses.replace(REQUEST, slice="v5litepod-256")
    two = dataclasses.replace(one, model_parallel=2)
    embeddings = 2 * 100 * 8
    share = (embeddings + (MODEL.num_parameters - embeddings) / 2) / MODEL.num_parameters
    weights = [roofline_of(request, compiled()).weights_seconds for request in (one, two)]
    assert weights[1] == pytest.approx(weights[0] * share)

    def seconds(axis: str, request: CompileRequest) -> float:
        return seconds_of(Collective("all-gather", "bf16", (4, 4), 90_000_000, (axis,), 2, 1), request)

    assert seconds("data_x", two) == seconds("data_x", one) == pytest.approx(45e6 / 90e9)
    assert seconds("data_y", two) == pytest.approx(2 * 45e6 / 90e9)  # the axis that model was cut from
    assert seconds("model", two) == pytest.approx(45e6 / 45e9)  # neighbours, one wire
    assert seconds("model", dataclasses.replace(one, model_parallel=16)) == pytest.approx(45e6 / 90e9)  # the whole ring
    both = dataclasses.replace(two, context_parallel=2)
    assert seconds("model", both) == 2 * seconds("context", both)


def test_replicas_within_a_slice_share_wires_hold_more_and_leave_data_a_line():
    one = dataclasses.replace(REQUEST, slice="v5litepod-256")
    four = dataclasses.replace(one, replica_parallel=4)

    def seconds(axis: str, request: CompileRequest) -> float:
        return seconds_of(Collective("all-gather", "bf16", (4, 4), 90_000_000, (axis,), 2, 1, False), request)

    assert seconds("data_x", four) == seconds("data_x", one) == pytest.approx(45e6 / 90e9)
    assert seconds("data_y", four) == 2 * seconds("data_y", one) == pytest.approx(45e6 / 45e9)  # its ring is cut open
    assert seconds("replica", four) == pytest.approx(45e6 / (90e9 / 4))  # four chips of a copy in between
    assert seconds("replica", dataclasses.replace(one, replica_parallel=16)) == pytest.approx(45e6 / 90e9)
    assert seconds("replica", dataclasses.replace(four, num_slices=2)) == pytest.approx(45e6 / 3.125e9)
    optimizer = [roofline_of(request, compiled()).optimizer_seconds for request in (one, four)]
    assert optimizer[1] == pytest.approx(4 * optimizer[0])


def test_a_copy_a_host_sends_through_the_network_only_what_is_summed_over_the_copies():
    def seconds(axis: str, replica_parallel: int, model_parallel: int = 1) -> float:
        request = dataclasses.replace(
            REQUEST, slice="4 x 8 x H200", replica_parallel=replica_parallel, model_parallel=model_parallel
        )
        return seconds_of(Collective("all-gather", "bf16", (4, 4), 90_000_000, (axis,), 2, 1, False), request)

    assert seconds("data_x", 4) == seconds("data_x", 8) == seconds("model", 4, 8) == pytest.approx(45e6 / 450e9)
    assert seconds("data_x", 2) == seconds("data_x", 1) == pytest.approx(45e6 / (8 * 50e9))
    assert seconds("replica", 2) == seconds("replica", 4) == pytest.approx(45e6 / 50e9)  # one GPU of a host is in it
    assert seconds("replica", 8) == pytest.approx(45e6 / (2 * 50e9))


def test_requests_and_outcomes_survive_the_way_through_json():
    assert REQUEST_JSON.validate_json(to_json(REQUEST)) == REQUEST
    item = Collective("all-gather", "bf16", (4, 4), 32, ("data_x", "data_y"), 2, 2)
    assert OUTCOME.validate_json(to_json(compiled(item))) == compiled(item)
    assert DoesNotFit("too large").message == "too large"
