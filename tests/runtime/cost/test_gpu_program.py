"""Slow operations of a GPU's program are reported in words, with their number."""

from runtime.cost.faults import slow_operations

PRODUCT = (
    "  %gemm_fusion_dot.{} = bf16[2048,8192]{{1,0}} fusion(%a, %b), kind=kCustom, calls=%c, "
    'backend_config={{"fusion_backend_config":{{"kind":"__triton_nested_gemm_fusion"}}}}'
)
SORT = "  ROOT %sort.1 = (s32[{size}]{{0}}, bf16[{size}]{{0}}, s32[{size}]{{0}}) sort(%p, %q, %r), dimensions={{0}}"
GOOD = """HloModule jit_step
ENTRY %main (a: bf16[16384]) -> bf16[16384] {
  %norm = bf16[16384]{0} fusion(%a), kind=kCustom, calls=%n, backend_config={"fusion":{"kind":"__triton"}}
  %product = (bf16[2048,8192]{1,0}, s8[64]{0}) custom-call(%a, %b), custom_call_target="__cublas$lt$matmul"
  %fusion.3 = f32[33554432]{0} fusion(%sort.9), kind=kLoop, calls=%sorted
"""
END = "\n}\n"


def test_products_left_to_a_guess_and_sorts_of_every_number_are_told():
    text = "\n".join([PRODUCT.format(1), PRODUCT.format(2), SORT.format(size=33_554_432)])
    assert slow_operations(GOOD + text + END) == (
        "a product by Triton in untuned tiles: cuBLAS would choose by shape (2 times)",
        "a sort of 33,554,432 numbers: of a scatter whose places may coincide",
    )


def test_sorted_tokens_libraries_and_other_fusions_are_not():
    assert slow_operations(GOOD + SORT.format(size=16_384) + END) == ()


def test_a_sum_over_many_arrays_that_it_puts_together_itself_is_told_and_a_kernel_that_only_does_so_is_not():
    def kernel(num_parts: int, then: str) -> str:
        parts = ", ".join(["%p"] * num_parts)
        joined = f"  %all = bf16[{num_parts},2048,512]{{2,1,0}} concatenate({parts}), dimensions={{0}}"
        return f"%fused (p: bf16[1,2048,512]) -> f32[] {{\n{joined}\n{then}\n}}\n\n"

    total = "  ROOT %sum = f32[] reduce(%all, %zero), dimensions={0,1,2}, to_apply=%add"
    header, entry = GOOD.split("\n", 1)
    run = "  ROOT %summed = f32[] fusion(%a), kind=kInput, calls=%fused"
    sentence = "a sum over arrays that it puts together number by number: `materialized` would, once"
    assert slow_operations(f"{header}\n{kernel(20, total)}{entry}{run}{END}") == (sentence,)
    assert slow_operations(f"{header}\n{kernel(3, total)}{entry}{run}{END}") == ()
    assert slow_operations(f"{header}\n{kernel(20, '')}{entry}{run}{END}") == ()
    in_a_loop = "  ROOT %steps = f32[] while(%a), condition=%more, body=%fused"  # two kernels, one after the other
    assert slow_operations(f"{header}\n{kernel(20, total)}{entry}{in_a_loop}{END}") == ()
