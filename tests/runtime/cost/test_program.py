"""The text of a compiled program as a value: what XLA prints here, and lines of other compilers' programs."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from runtime.cost.program import Instruction, Program
from tests.catalogue import expect_error

TEXT = """HloModule made_up, is_scheduled=true

%added (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

ENTRY %main.7 (given: (s32[], bf16[4,8])) -> f8e4m3b11fnuz[3] {
  %given = (s32[], bf16[4,8]{1,0:T(8,128)}) parameter(0)
  %taken.1 = bf16[4,8]{1,0} get-tuple-element((s32[], /*index=5*/bf16[4,8]{1,0}) %given), index=1, of={x="%no"}
  %many = s32[]{:T(128)} constant(-12)
  %chosen = pred[5]{0} conditional(s32[] %many, bf16[4,8] %taken.1), branch_computations={%one, %two}
  %total = f32[] reduce(bf16[4,8] %taken.1, s32[] %many), dimensions={0,1}, to_apply=%added
  ROOT %last = f8e4m3b11fnuz[3]{0} fusion(f32[] %total), kind=kLoop, calls=%fused.2
}
"""


@pytest.fixture(scope="module")
def main() -> dict[str, Instruction]:
    program = Program.read(TEXT)
    assert (program.entry, list(program.computations)) == ("main.7", ["added", "main.7"])
    return program.computations["main.7"]


def test_operands_are_those_within_the_parentheses_of_the_operation(main):
    assert [item.operands for item in main.values()] == [
        [],
        ["given"],
        [],
        ["many", "taken.1"],
        ["taken.1", "many"],
        ["total"],
    ]


def test_sizes_are_those_of_all_arrays_of_whatever_type(main):
    sizes = [sum(array.size_in_bytes for array in item.arrays) for item in main.values()]
    assert sizes == [4 + 64, 64, 4, 5, 4, 3]
    assert main["given"].arrays[1] == ("bf16", (4, 8), 64)


def test_computations_inside_an_instruction_are_named(main):
    called = {name: item.called for name, item in main.items() if item.called}
    assert called == {"chosen": ["one", "two"], "total": ["added"], "last": ["fused.2"]}
    assert main["chosen"].branches == ["one", "two"]
    with expect_error(ValueError):
        main["taken.1"].branches  # noqa: B018
    assert main["total"].computation("to_apply") == "added"
    with expect_error(ValueError):
        main["total"].computation("body")


def test_constants_elements_of_tuples_and_the_root_are_known(main):
    assert {name: item.integer for name, item in main.items() if item.integer is not None} == {"many": -12}
    assert {name: item.index for name, item in main.items() if item.index is not None} == {"taken.1": 1}
    assert [name for name, item in main.items() if item.is_root] == ["last"]


def test_operands_without_an_end_are_an_error():
    with expect_error(ValueError):
        Instruction("cut", "f32[]", "add", "%a, (%b", is_root=False).operands  # noqa: B018


def test_every_operand_and_computation_of_a_program_compiled_here_is_found():
    def squares(values: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 5, lambda turn, held: jnp.sin(held @ held) + turn, values).sum()

    text = jax.jit(squares).lower(jnp.ones((8, 8), jnp.bfloat16)).compile().as_text()
    program = Program.read(text)
    instructions = [item for computation in program.computations.values() for item in computation.values()]
    assert len(instructions) == len(re.findall(r"^\s+(?:ROOT )?%[\w.\-]+ = ", text, re.MULTILINE)) > 5
    for computation in program.computations.values():
        for item in computation.values():
            assert set(item.operands) <= set(computation)
            assert bool(item.operands) == (item.operation not in ("parameter", "constant", "iota"))
    assert {name for item in instructions for name in item.called} == set(program.computations) - {program.entry}
    assert all(program.root(name).is_root for name in program.computations)
    assert any(item.operation == "while" for item in program.computations[program.entry].values())


def test_a_text_that_is_cut_is_refused():
    with expect_error(ValueError):
        Program.read(TEXT.partition("ENTRY")[0])
    with expect_error(ValueError):
        Program.read(TEXT.replace("  ROOT %last", "  %last")).root("main.7")
