"""The reader of `program_order` on programs written by hand: what it finds, and what it must not take for an order."""

import pytest

from tests.runtime.parallel.program_order import unordered

LOOP = """
%inner (given: (s32[], f32[4], f32[4])) -> (s32[], f32[4], f32[4]) {
  %given = (s32[], f32[4], f32[4]) parameter(0)
  %count = s32[] get-tuple-element(%given), index=0
  %summed = f32[4] get-tuple-element(%given), index=1
  %kept = f32[4] get-tuple-element(%given), index=2
  %psum.inside = f32[4] all-reduce(%summed), channel_id=1, to_apply=%add
  ROOT %next = (s32[], f32[4], f32[4]) tuple(%count, %psum.inside, %kept)
}

%goes_on (given: (s32[], f32[4], f32[4])) -> pred[] {
  %given = (s32[], f32[4], f32[4]) parameter(0)
  ROOT %true = pred[] constant(true)
}
"""
OUTER = (
    LOOP
    + """
%outer (given: (s32[], f32[4], f32[4])) -> (s32[], f32[4], f32[4]) {
  %given = (s32[], f32[4], f32[4]) parameter(0)
  %while.inside = (s32[], f32[4], f32[4]) while(%given), condition=%goes_on, body=%inner
  %count = s32[] get-tuple-element(%while.inside), index=0
  %summed = f32[4] get-tuple-element(%while.inside), index=1
  %state = (s32[], f32[4], f32[4]) tuple(%count, %summed, %summed)
  ROOT %next = (s32[], f32[4], f32[4]) tuple(%count, %summed, %summed)
}
"""
)


def program(loop: str, body: str, after: str) -> str:
    return f"""HloModule jit_program, is_scheduled=true
{loop}
ENTRY %main (number: s32[], values: f32[4], others: f32[4]) -> f32[4] {{
  %number = s32[] parameter(0)
  %values = f32[4] parameter(1)
  %others = f32[4] parameter(2)
  %given = (s32[], f32[4], f32[4]) tuple(%number, %values, %others)
  %while.1 = (s32[], f32[4], f32[4]) while(%given), condition=%goes_on, body=%{body}
{after}
}}
"""


@pytest.mark.parametrize(
    ("after", "found"),
    [
        ("  ROOT %psum.1 = f32[4] all-reduce(%others), channel_id=1, to_apply=%add", [("while.1", "psum.1")]),
        (
            "  %result = f32[4] get-tuple-element(%while.1), index=1\n"
            "  %sum = f32[4] add(%result, %others)\n"
            "  ROOT %psum.1 = f32[4] all-reduce(%sum), channel_id=1, to_apply=%add",
            [],
        ),
        (  # handed through, so that it is there before the loop has ended
            "  %kept = f32[4] get-tuple-element(%while.1), index=2\n"
            "  ROOT %psum.1 = f32[4] all-reduce(%kept), channel_id=1, to_apply=%add",
            [("while.1", "psum.1")],
        ),
        (  # two collectives, neither of which is a loop, run one after the other anyway
            "  %result = f32[4] get-tuple-element(%while.1), index=1\n"
            "  %psum.1 = f32[4] all-reduce(%result), channel_id=1, to_apply=%add\n"
            "  ROOT %psum.2 = f32[4] all-reduce(%result), channel_id=1, to_apply=%add",
            [],
        ),
    ],
)
def test_a_collective_beside_a_loop_is_found(after: str, found: list[tuple[str, str]]) -> None:
    assert unordered(program(LOOP, "inner", after)) == found


@pytest.mark.parametrize(("element", "found"), [("%summed", []), ("%kept", [("while.1", "psum.1")])])
def test_values_passed_through_an_inner_loop_are_no_dependency(element: str, found: list[tuple[str, str]]) -> None:
    outer = OUTER.replace(
        "ROOT %next = (s32[], f32[4], f32[4]) tuple(%count, %summed, %summed)",
        "%kept = f32[4] get-tuple-element(%while.inside), index=2\n"
        f"  ROOT %next = (s32[], f32[4], f32[4]) tuple(%count, %summed, {element})",
    )
    # The state of the loop inside is that of the outer one, element by element.
    outer = outer.replace(
        "%while.inside = (s32[], f32[4], f32[4]) while(%given)",
        "%a = s32[] get-tuple-element(%given), index=0\n"
        "  %b = f32[4] get-tuple-element(%given), index=1\n"
        "  %c = f32[4] get-tuple-element(%given), index=2\n"
        "  %state.inside = (s32[], f32[4], f32[4]) tuple(%a, %b, %c)\n"
        "  %while.inside = (s32[], f32[4], f32[4]) while(%state.inside)",
    )
    after = (
        "  %kept = f32[4] get-tuple-element(%while.1), index=2\n"
        "  ROOT %psum.1 = f32[4] all-reduce(%kept), channel_id=1, to_apply=%add"
    )
    assert unordered(program(outer, "outer", after)) == found


def test_a_collective_in_a_branch_counts() -> None:
    text = """HloModule jit_program, is_scheduled=true

%one (given: f32[4]) -> f32[4] {
  %given = f32[4] parameter(0)
  ROOT %psum.inside = f32[4] all-reduce(%given), channel_id=1, to_apply=%add
}

%other (given: f32[4]) -> f32[4] {
  ROOT %given = f32[4] parameter(0)
}

ENTRY %main (number: s32[], values: f32[4], others: f32[4]) -> f32[4] {
  %number = s32[] parameter(0)
  %values = f32[4] parameter(1)
  %others = f32[4] parameter(2)
  %branch.1 = f32[4] conditional(%number, %values, %values), branch_computations={%one, %other}
  ROOT %psum.1 = f32[4] all-reduce(%others), channel_id=1, to_apply=%add
}
"""
    assert unordered(text) == [("branch.1", "psum.1")]
