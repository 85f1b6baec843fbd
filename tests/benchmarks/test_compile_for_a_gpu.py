"""The bytes that a compiled program's kernels move, on a program whose sum is known by hand."""

import pytest

from benchmarks.compile_for_a_gpu import bytes_through_memory

TEXT = """HloModule kernels, is_scheduled=true

%sliced (whole: f32[100,8], at: s32[]) -> f32[2,8] {
  %whole = f32[100,8]{1,0} parameter(0)
  %at = s32[] parameter(1)
  ROOT %part = f32[2,8]{1,0} dynamic-slice(%whole, %at, %at), dynamic_slice_sizes={2,8}
}

%used (whole: f32[100,8], part: f32[2,8]) -> bf16[8] {
  %whole = f32[100,8]{1,0} parameter(0)
  %part = f32[2,8]{1,0} parameter(1)
  %again = f32[2,8]{1,0} slice(%whole), slice={[0:2], [0:8]}
  ROOT %sum = bf16[8]{0} fused(%whole, %part, %again)
}

ENTRY %main (held: f32[100,8], at: s32[]) -> bf16[8] {
  %held = f32[100,8]{1,0} parameter(0)
  %at = s32[] parameter(1)
  %cut = f32[2,8]{1,0} fusion(%held, %at), kind=kLoop, calls=%sliced
  ROOT %ended = bf16[8]{0} fusion(%held, %cut), kind=kLoop, calls=%used
}
"""


def test_a_kernel_reads_its_operands_of_what_it_only_slices_the_slice_and_writes_its_result():
    of_slice = 2 * 8 * 4
    first, second = of_slice + 4 + of_slice, 100 * 8 * 4 + of_slice + 8 * 2
    assert bytes_through_memory(TEXT) == first + second


def test_a_program_with_a_loop_is_refused():
    with pytest.raises(ValueError, match="a while in the program: how often what is in it runs is not counted"):
        bytes_through_memory(TEXT.replace("fusion(%held, %cut), kind=kLoop, calls=%used", "while(%held), body=%used"))
