"""Shares of a step depend on the right losses, and turns of a policy count from its first step."""

import dataclasses
import json
from typing import Any

import pytest

from runtime.data.mixing.mixer import MixerState, next_shares
from runtime.data.mixing.policy import Memory, Seen, Sources, Turn
from runtime.data.mixture import WHOLE

SOURCES = Sources({"a": WHOLE - 1, "b": 1}, {})


@dataclasses.dataclass(frozen=True)
class Noting:
    """A policy that remembers its losses, and whose shares encode their turn."""

    lag_steps: int = 3
    setting: float = 0.5
    sequences_per_draw: int = 0
    kind: str = "noting"

    def begin(self) -> Memory:
        return {"learned": []}

    def shares(self, memory: Memory, *, turn: int, step: int, sources: Sources) -> dict[str, int]:
        return {"a": WHOLE - turn, "b": turn}

    def learned(self, memory: Memory, turn: Turn) -> Memory:
        return {"learned": [*memory["learned"], [turn.number, turn.shares["b"], turn.seen["a"].loss_sum]]}


def run(policy: Noting, steps: range, state: MixerState | None = None) -> tuple[list[int], list[Any], MixerState]:
    """Return the steps whose losses were asked for, the turns encoded in the shares, and the last state."""
    asked: list[int] = []

    def feedback(step: int) -> dict[str, Seen]:
        asked.append(step)
        return {"a": Seen(1, 1, float(step), 0.0)}

    turns = []
    for step in steps:
        shares, state = next_shares(policy, state, step=step, sources=SOURCES, feedback=feedback)
        turns.append(shares["b"])
    assert state is not None
    return asked, turns, state


@pytest.mark.parametrize("lag_steps", [1, 3, 8])
def test_shares_depend_on_losses_up_to_the_lag_and_turns_count_from_the_first_step(lag_steps):
    asked, turns, state = run(Noting(lag_steps), range(1_000, 1_020))
    assert turns == list(range(1, 21))
    assert asked == list(range(1_000, 1_020 - lag_steps)), "each once, in order, and none later"
    assert state.memory["learned"] == [[step - 999, step - 999, float(step)] for step in asked]
    assert [step for step, _ in state.awaiting] == list(range(1_020 - lag_steps, 1_020))


@pytest.mark.parametrize("cut", [1_001, 1_002, 1_010])
def test_a_state_read_back_from_json_continues_with_the_same_turns_and_losses(cut):
    asked, turns, whole = run(Noting(), range(1_000, 1_020))
    first, before, state = run(Noting(), range(1_000, cut))
    state = MixerState.from_json(json.loads(json.dumps(state.to_json())))
    second, after, resumed = run(Noting(), range(cut, 1_020), state)
    assert (first + second, before + after, resumed) == (asked, turns, whole)


def test_a_policy_restarts_when_one_of_its_settings_changes():
    _, _, state = run(Noting(), range(1_000, 1_010))
    asked, turns, changed = run(Noting(setting=0.6), range(1_010, 1_015), state)
    assert (turns, changed.begin_step) == ([1, 2, 3, 4, 5], 1_010)
    assert asked == [1_010, 1_011], "batches drawn under another policy teach this one nothing"
