"""The scheduled text of programs for TPUs and GPUs: every collective once, its bytes and axes; what work hides it?"""

import pathlib

import pytest

from runtime.cost.collectives import Collective, collectives
from tests.catalogue import expect_error

TEXT = pathlib.Path(__file__).with_name("scheduled.hlo").read_text()
SIZES = {"replica": 1, "data_x": 2, "data_y": 2, "data_z": 2}


@pytest.fixture(scope="module")
def found() -> list[Collective]:
    return collectives(TEXT, SIZES)


def test_a_gather_carried_by_a_product_is_one_hidden_collective_for_each_turn_of_the_loop(found):
    (gather,) = [item for item in found if item.shape == (1, 32, 64)]
    assert gather == Collective(
        kind="all-gather", dtype="bf16", shape=(1, 32, 64), array_bytes=2 * 32 * 64, axes=("data_x",), num_devices=2,
        times=5, window_flops=2 * 8 * 32 * 64,
    )  # fmt: skip
    assert gather.wire_bytes == 5 * 32 * 64  # half of the array comes from elsewhere


def test_a_bare_reduce_scatter_is_exposed_and_counts_the_whole_gradient(found):
    (scatter,) = [item for item in found if item.kind == "reduce-scatter"]
    assert (scatter.axes, scatter.times, scatter.is_hidden) == (("data_x",), 5, False)
    assert scatter.array_bytes == 2 * 4 * 16 * 64
    assert scatter.wire_bytes == 5 * 4 * 16 * 64


def test_a_start_and_its_done_are_hidden_only_if_a_product_lies_between(found):
    gathers = [item for item in found if item.shape == (8, 8)]
    assert [(item.is_hidden, item.axes, item.wire_bytes) for item in gathers] == [
        (False, ("data_z",), 64),
        (True, ("data_z",), 64),
    ]
    assert gathers[1].window_flops == 2 * 8 * 8 * 8


def test_products_that_carry_a_gather_hide_it_and_others_do_not():
    """On a v5e a collective goes on in the fusions that carry it."""
    done = "  %async-collective-done ="
    carrier = next(line for line in TEXT.splitlines() if line.startswith("  %fusion.1 ="))
    product = "  %product = bf16[16,16] dot(%shard, %shard), lhs_contracting_dims={2}"

    def window(line: str) -> int:
        text = TEXT.replace(done, f"{line}\n{done}")
        return next(item.window_flops for item in collectives(text, SIZES) if item.shape == (1, 32, 64))

    assert window(carrier.replace("fusion.1 ", "fusion.9 ")) == 2 * window(product) == 2 * 2 * 8 * 32 * 64


def test_an_all_reduce_of_several_arrays_counts_all_of_them_twice_over_all_axes(found):
    (reduce,) = [item for item in found if item.kind == "all-reduce" and "replica" not in item.axes]
    assert reduce.axes == ("data_x", "data_y", "data_z")
    assert reduce.array_bytes == 16
    assert reduce.wire_bytes == 28


@pytest.mark.parametrize(
    ("what", "kind", "slices", "size", "sent"),
    [
        ("ALL_REDUCE", "all-reduce", "1,2", 64, 64),
        ("ALL_REDUCE", "all-reduce", "1,2,3,4", 64, 96),
        ("REDUCE_SCATTER", "reduce-scatter", "1,2,3,4", 64, 48),
        ("ALL_GATHER", "all-gather", "1,2,3,4", 256, 192),
    ],
)
def test_bytes_between_slices_are_the_sends_over_the_slices_it_names(what, kind, slices, size, sent):
    text = TEXT.replace('"{1,2}x{0:7}"', f'"{{{slices}}}x{{0:7}}"').replace('"ALL_REDUCE"', f'"{what}"')
    (item,) = [item for item in collectives(text, SIZES) if "replica" in item.axes]
    assert (item.kind, item.dtype, item.array_bytes, item.is_hidden) == (kind, "f32", size, False)
    assert item.wire_bytes == sent


@pytest.mark.parametrize("attribute", ['_xla_megascale_target="{1,2}x{0:7}"', "ALL_REDUCE"])
def test_a_send_that_does_not_say_what_it_is_is_refused(attribute):
    with expect_error(ValueError):
        collectives(TEXT.replace(attribute, "LATER"), SIZES)


def test_a_program_that_is_not_scheduled_or_cannot_be_counted_is_refused():
    with expect_error(ValueError):
        collectives(TEXT.replace("is_scheduled=true", "is_scheduled=false"), SIZES)
    with expect_error(ValueError):
        collectives(TEXT.replace("direction=LT", "direction=GT"), SIZES)
    with expect_error(ValueError):
        collectives(TEXT.replace("%next = s32[] add(%turn, %one)", "%next = s32[] multiply(%turn, %one)"), SIZES)


MESH = "replica_groups=mesh['replica'=1,'data_x'=2,'data_y'=2,'data_z'=2] "


def test_groups_by_the_names_of_axes_are_those_by_the_numbers_of_devices(found):
    """The form that jaxlib prints from 0.11 on."""
    text = TEXT.replace("replica_groups=[4,2]<=[2,2,2]T(1,2,0)", MESH + "{'data_x'}")
    text = text.replace("replica_groups={{0,4},{1,5},{2,6},{3,7}}", MESH + "{'data_x'}")
    text = text.replace("replica_groups={{0,1},{2,3},{4,5},{6,7}}", MESH + "{'data_z'}")
    text = text.replace("replica_groups={{0,1,2,3,4,5,6,7}}", MESH + "{'data_x','data_y','data_z'}")
    assert text.count("replica_groups") == text.count(MESH)
    assert collectives(text, SIZES) == found
    by_two = {item.axes for item in collectives(text.replace("{'data_z'}", "{'data_x','data_z'}"), SIZES)}
    assert ("data_x", "data_z") in by_two and ("data_z",) not in by_two
    assert collectives(TEXT.replace("{{0,1,2,3,4,5,6,7}}", "{}"), SIZES) == found  # all devices


@pytest.mark.parametrize(
    "groups", ["replica_groups=@later", MESH + "{'data_x':(1)2}", MESH[:-1] + ", device_ids=([8]) {'data_x'}", ""]
)
def test_groups_that_cannot_be_read_are_refused(groups):
    text = TEXT.replace("replica_groups={{0,4},{1,5},{2,6},{3,7}}", groups)
    with expect_error(ValueError):
        collectives(text, SIZES)


@pytest.mark.parametrize(("stride", "times"), [(1, 5), (2, 3), (8, 1)])
def test_a_loop_turns_as_often_as_its_counter_s_stride_lets_it(stride, times):
    text = TEXT.replace("%one = s32[] constant(1)", f"%one = s32[] constant({stride})")
    assert {item.times for item in collectives(text, SIZES) if item.shape == (1, 32, 64)} == {times}


BESIDE = """
%condition (s: (s32[], f32[8,16])) -> pred[] {{
  ROOT %compare.1 = pred[] fusion(%s), kind=kLoop, calls=%fused_compare
}}

%body (s: (s32[], f32[8,16])) -> (s32[], f32[8,16]) {{
  %p = f32[8,8] parameter(0)
  %product = f32[8,8] dot(%p, %p), lhs_contracting_dims={{1}}
  {inside}
  ROOT %next = (s32[], f32[8,8]) tuple(%turn, %product)
}}

ENTRY %main (p: f32[8,8]) -> f32[8,8] {{
  %p = f32[8,8] parameter(0)
  %one = (f32[8,8], f32[16,8]) all-gather-start(%p), replica_groups={first}
  %before = f32[8,8] dot(%p, %p), lhs_contracting_dims={{1}}
  %other = (f32[24,8], f32[48,8]) all-gather-start(%p), replica_groups={second}
  {work}
  %other.1 = f32[48,8] all-gather-done(%other)
  ROOT %one.1 = f32[16,8] all-gather-done(%one)
}}
"""
PAIR = "{{0,1},{2,3}}"
ACROSS = "{{0,2},{1,3}}"
WORK = "%work = f32[8,8] dot(%p, %p), lhs_contracting_dims={1}"
LOOP = (
    'ROOT %loop = (s32[], f32[8]) while(%p), condition=%condition, body=%body, x={"known_trip_count":{"n":"6"},"y":1}'
)
ONE = 2 * 8 * 8 * 8


@pytest.mark.parametrize(
    ("second", "work", "inside", "windows"),
    [
        (ACROSS, WORK, "", [2 * ONE, ONE]),  # each has its wires
        (PAIR, WORK, "", [ONE + ONE // 4, 3 * ONE // 4]),  # one wire, three quarters of the bytes are of the other
        (ACROSS, LOOP, "", [7 * ONE, 6 * ONE]),
        # A loop that sends along an axis itself needs its wires.
        (ACROSS, LOOP, f"%sum = f32[8,8] all-reduce(%product), replica_groups={PAIR}, to_apply=%add", [ONE, 6 * ONE]),
    ],
)
def test_collectives_of_one_axis_share_the_work_beside_them_and_those_of_two_have_all_of_it(
    second, work, inside, windows
):
    text = BESIDE.format(first=PAIR, second=second, work=work, inside=inside)
    found = collectives("HloModule step, is_scheduled=true\n" + text, {"data_x": 2, "data_y": 2})
    assert [item.window_flops for item in found if item.kind == "all-gather"] == windows


def test_a_model_axis_shares_the_wires_of_the_data_axis_that_it_was_cut_from():
    text = "HloModule step, is_scheduled=true\n" + BESIDE.format(first=PAIR, second=ACROSS, work=WORK, inside="")
    one, other = collectives(text, {"data_x": 2, "model": 2})
    assert (one.window_flops, other.window_flops) == (ONE + ONE // 4, 3 * ONE // 4)


KERNEL = """
ENTRY %main (p: f32[8,8]) -> f32[4,8] {{
  %p = f32[8,8] parameter(0)
  %me = s32[1] parameter(1)
  {start}
  %scattered_product_data_x.7 = f32[4,8] custom-call(%me, %p, %p), custom_call_target="tpu_custom_call"
  {done}
}}
"""


@pytest.mark.parametrize(
    ("groups", "windows"),
    [
        (None, {"reduce-scatter": ONE}),
        (ACROSS, {"reduce-scatter": ONE * 4 / 7, "all-gather": ONE * 3 / 7}),  # 128 and 96 bytes on one axis
        (PAIR, {"reduce-scatter": ONE, "all-gather": ONE}),
    ],
)
def test_a_kernels_scatter_is_hidden_by_its_product_which_it_shares_with_a_gather(groups, windows):
    start = f"%one = (f32[3,8], f32[6,8]) all-gather-start(%p), replica_groups={groups}" if groups else ""
    done = "%one.1 = f32[6,8] all-gather-done(%one)" if groups else ""
    text = "HloModule step, is_scheduled=true\n" + KERNEL.format(start=start, done=done)
    found = collectives(text, {"data_x": 2, "data_y": 2})
    assert {item.kind: item.window_flops for item in found} == {kind: round(work) for kind, work in windows.items()}
    kernel = next(item for item in found if item.kind == "reduce-scatter")
    assert (kernel.shape, kernel.axes, kernel.num_devices, kernel.wire_bytes) == ((8, 8), ("data_x",), 2, 4 * 8 * 4)


ON_A_GPU = """
%condition (s: (s32[], f32[8,16])) -> pred[] {{
  ROOT %compare.1 = pred[] fusion(%s), kind=kLoop, calls=%fused_compare
}}

%body (s: (s32[], f32[8,16])) -> (s32[], f32[8,16]) {{
  %p = bf16[8,4] parameter(0)
  %q = bf16[4,16] parameter(1)
  %gather = ((bf16[2], bf16[2,16]), (bf16[8], bf16[8,16])) all-gather-start(%p), replica_groups={{{{0,1,2,3}}}}
  %product = (bf16[8,16]{{1,0}}, s8[4194304]{{0}}) custom-call(%p, %q), custom_call_target="{target}", {config}
  %gathered = (bf16[8], bf16[8,16]) all-gather-done(%gather)
  %scatter = ((f32[8,16]), (f32[2,16])) reduce-scatter-start(%product), replica_groups={{{{0,1,2,3}}}}
  %scattered = (f32[2,16]) reduce-scatter-done(%scatter)
  ROOT %next = (s32[], f32[8,16]) tuple(%turn, %sum)
}}

ENTRY %main (p: f32[8,16]) -> f32[8,16] {{
  ROOT %loop = (s32[], f32[8]) while(%p), condition=%condition, body=%body, x={{"known_trip_count":{{"n":"6"}},"y":1}}
}}
"""


@pytest.mark.parametrize(("target", "window"), [("__cublas$lt$matmul", 2 * 8 * 4 * 16), ("__cub$DeviceRadixSort", 0)])
def test_on_a_gpu_several_arrays_go_together_and_the_compiler_says_how_often_a_loop_turns(target, window):
    config = 'backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}'
    text = "HloModule step, is_scheduled=true\n" + ON_A_GPU.format(target=target, config=config)
    gather, scatter = collectives(text, {"data_x": 4})
    assert gather == Collective("all-gather", "bf16", (8, 16), 2 * (8 + 8 * 16), ("data_x",), 4, 6, window)
    assert scatter == Collective("reduce-scatter", "f32", (8, 16), 4 * 8 * 16, ("data_x",), 4, 6)


def test_a_started_permute_is_counted_once_without_what_it_waits_with():
    permute = "(f32[8,16]{1,0}, f32[8,16]{1,0}, u32[], u32[]) collective-permute-start(%p), source_target_pairs={{0,1}}"
    done = "ROOT %done = f32[8,16]{1,0} collective-permute-done(%s)"
    main = f"ENTRY %main (p: f32[8,16]) -> f32[8,16] {{\n  %s = {permute}\n  {done}\n}}\n"
    text = f"HloModule step, is_scheduled=true\n{main}"
    (found,) = collectives(text, {"data_x": 2})
    assert (found.shape, found.array_bytes, found.wire_bytes) == ((8, 16), 512, 512)


BRANCHES = """
%one (p: f32[8]) -> f32[8] {{
  %q = bf16[2,4,8,16] parameter(0)
  %k = bf16[2,1,8,16] parameter(1)
  ROOT %splash_mha_fwd.1 = f32[8]{{0}} custom-call(%q, %k, %k), custom_call_target="tpu_custom_call"
}}

%two (p: f32[8]) -> f32[8] {{
  %p = f32[8] parameter(0)
  %q = bf16[2,4,8,16] parameter(1)
  %k = bf16[2,1,16,16] parameter(2)
  ROOT %other.1 = f32[8]{{0}} {operation}
}}

ENTRY %main (p: f32[8]) -> f32[8] {{
  %start = (bf16[8,8]{{1,0}}, bf16[8,8]{{1,0}}) all-gather-start(%p), channel_id=1, replica_groups={{{{0,1}}}}
  %chosen = f32[8]{{0}} conditional(%index, %p, %p), branch_computations={{%one, %two}}
  ROOT %done = bf16[8,8]{{1,0}} all-gather-done(%start)
}}
"""


def test_two_branches_with_kernels_hide_by_the_smaller_and_a_collective_in_one_is_refused():
    def found(operation: str, word: str = "branch_computations") -> list[Collective]:
        text = "HloModule step, is_scheduled=true\n" + BRANCHES.format(operation=operation)
        return collectives(text.replace("branch_computations", word), {"data_x": 1, "context": 2})

    (gather,) = found(
        'custom-call(%q, %k, %k), custom_call_target="tpu_custom_call", metadata={op_name="splash_mha_fwd"}'
    )
    assert (gather.axes, gather.window_flops) == (("context",), 2 * 2 * (2 * 4 * 16) * (8 * 8 // 2))
    assert not found("negate(%p)")[0].is_hidden  # a device that runs this branch waits
    with expect_error(ValueError):
        found("negate(%p)", "branches_of")
    with expect_error(ValueError):
        found("all-reduce(%p), channel_id=2, replica_groups={{0,1}}, to_apply=%add")


ON_A_SPARSE_CORE = """
%called (p: bf16[2,8]) -> bf16[8,8] {{
  ROOT %gather.1 = bf16[8,8]{{1,0}} all-gather(%p), channel_id=1, replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}
}}, execution_thread="sparsecore"

%async (p: bf16[2,8]) -> bf16[8,8] {{
  ROOT %call.1 = bf16[8,8]{{1,0}} custom-call(%p), custom_call_target="later", called_computations={{%called}}
}}, execution_thread="sparsecore"

%lookup (p: f32[8]) -> f32[8] {{
  ROOT %call.2 = f32[8]{{0}} custom-call(%p), custom_call_target="gather_rows"
}}, execution_thread="sparsecore"

ENTRY %main (p: bf16[2,8]) -> bf16[8,8] {{
  %p = bf16[8,8] parameter(0)
  %rows = ((f32[8]), f32[8]) async-start(%p), calls=%lookup
  %start = ((), (), (s32[43]{{0}})) async-start(%table), calls=%async
  {before}
  %update = ((bf16[2,8]), bf16[8,8]) async-update(%start, %p)
  {between}
  ROOT %done = bf16[8,8]{{1,0}} async-done(%{ended})
}}
"""
PRODUCT = "%product = f32[8,8]{1,0} dot(%p, %p), lhs_contracting_dims={1}"


@pytest.mark.parametrize(
    ("before", "between", "window"),
    [("", PRODUCT, 2 * 8**3), (PRODUCT, "%sum = f32[8]{0} add(%p, %p)", 0), ("", "", 0)],
)
def test_a_sparse_cores_gather_is_hidden_by_work_after_its_operand(before, between, window):
    text = ON_A_SPARSE_CORE.format(before=before, between=between, ended="update")
    (gather,) = collectives("HloModule step, is_scheduled=true\n" + text, {"data_x": 4})
    assert gather == Collective("all-gather", "bf16", (8, 8), 128, ("data_x",), 4, 1, window)
    (told_shortly,) = collectives("HloModule step, is_scheduled=true\n" + shortly(text), {"data_x": 4})
    assert told_shortly == gather


def shortly(text: str) -> str:
    """The form that jaxlib prints from 0.11 on."""
    text = text.replace("async-start(%p), calls=%lookup", "call-start(%p), to_apply=%lookup")
    text = text.replace("async-start(%table), calls=%async", "custom-call-start(), called_computations={%called}")
    text = text.replace("async-update", "custom-call-update").replace("async-done", "custom-call-done")
    assert "async-" not in text
    return text


def test_a_collective_that_nothing_known_calls_is_refused():
    text = shortly(ON_A_SPARSE_CORE.format(before="", between="", ended="update"))
    with expect_error(ValueError):
        collectives("HloModule step, is_scheduled=true\n" + text.replace("custom-call-start", "sent"), {"data_x": 4})


def test_a_collective_that_is_started_and_ended_on_a_sparse_core_counts_like_a_whole_one():
    text = ON_A_SPARSE_CORE.format(before="", between=PRODUCT, ended="update")
    started = text.replace(
        "ROOT %gather.1 = bf16[8,8]{1,0} all-gather(%p)", "%gather.1 = (bf16[2,8], bf16[8,8]) all-gather-start(%p)"
    ).replace("dimensions={0}\n", "dimensions={0}\n  ROOT %gather.2 = bf16[8,8]{1,0} all-gather-done(%gather.1)\n")
    assert started.count("all-gather-") == 2
    first, again = (
        collectives("HloModule step, is_scheduled=true\n" + each, {"data_x": 4}) for each in (text, started)
    )
    assert first == again != []


def test_two_collectives_in_one_call_of_a_sparse_core_are_refused():
    text = ON_A_SPARSE_CORE.format(before="", between="", ended="update")
    twice = text.replace("called_computations={%called}", "called_computations={%called, %called}")
    assert twice != text
    with expect_error(ValueError):
        collectives("HloModule step, is_scheduled=true\n" + twice, {"data_x": 4})


@pytest.mark.parametrize("holder", ["while", "conditional"])
def test_a_collective_in_a_loop_or_a_branch_on_a_sparse_core_is_refused(holder):
    text = ON_A_SPARSE_CORE.format(before="", between="", ended="update")
    called = 'custom-call(%p), custom_call_target="later", called_computations={%called}'
    inside = {
        "while": "while(%p), condition=%lookup, body=%called",
        "conditional": "conditional(%p), branch_computations={%called}",
    }
    with expect_error(ValueError):
        collectives("HloModule step, is_scheduled=true\n" + text.replace(called, inside[holder]), {"data_x": 4})


def test_work_that_a_sparse_core_never_returns_is_refused():
    text = ON_A_SPARSE_CORE.format(before="", between="", ended="other")
    with expect_error(ValueError):
        collectives("HloModule step, is_scheduled=true\n" + text, {"data_x": 4})
