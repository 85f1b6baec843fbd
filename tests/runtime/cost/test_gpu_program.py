"""What a GPU's program should not contain is told in words, as often as it stands there."""

from runtime.cost.gpu_program import slow_operations

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
        "a product by Triton in tiles that nobody tuned: cuBLAS would choose by shape (2 times)",
        "a sort of 33,554,432 numbers: of a scatter whose places may coincide",
    )


def test_sorted_tokens_libraries_and_other_fusions_are_not():
    assert slow_operations(GOOD + SORT.format(size=16_384) + END) == ()
