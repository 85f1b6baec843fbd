"""Registers by the real assembler: a kernel of too many registers is seen to spill."""

import sys
from pathlib import Path

import pytest

from benchmarks.kernel_registers import registers_of
from tests.catalogue import expect_error

BESIDE = Path(__file__).resolve().parents[2] / ".venv-cuda"


def kernel(name: str, num_values: int) -> str:
    """Loads so many values, all of which it needs until the end."""
    registers = range(num_values)
    lines = [f"ld.volatile.global.u32 %r{index}, [%rd1+{4 * index}];" for index in registers]
    lines += [f"st.volatile.global.u32 [%rd1+{4 * index}], %r{num_values - 1 - index};" for index in registers]
    body = "\n".join(lines)
    return (
        f".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry {name}(.param .u64 place)\n{{\n"
        f".reg .b32 %r<{num_values}>;\n.reg .b64 %rd<2>;\nld.param.u64 %rd1, [place];\n{body}\nret;\n}}\n"
    )


@pytest.fixture(autouse=True)
def assembler_beside(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(BESIDE)])


def test_a_kernel_of_more_values_than_registers_spills_and_a_small_one_does_not(tmp_path):
    large, small = kernel("large", 400), kernel("small", 8)
    (tmp_path / "both.ptx").write_text(large + small.partition(".address_size 64\n")[2])
    found = registers_of(tmp_path, ("small", "large"))
    assert found["small"].used < 40 and found["small"].spilled_bytes == 0
    assert found["large"].used == 255 and found["large"].spilled_bytes >= 4 * (400 - 255)


def test_a_kernel_that_is_not_there_and_assembly_that_is_none_are_errors(tmp_path):
    (tmp_path / "one.ptx").write_text(kernel("small", 8))
    with expect_error(LookupError):
        registers_of(tmp_path, ("small", "other"))
    (tmp_path / "one.ptx").write_text(kernel("small", 8).replace("ret;", "no such instruction;"))
    with expect_error(RuntimeError):
        registers_of(tmp_path, ("small",))
