"""Mixer: the shares of any step under a policy that learns, with a state that a checkpoint can hold.

The shares of step s are a function of the losses of the updates up to step s - lag_steps, whatever has finished by
then: batches can be read ahead, and a run that was cut anywhere draws what it would have drawn.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from runtime.data.mixing.feedback import BySource
from runtime.data.mixing.policy import Memory, Policy, Sources, Turn


@dataclasses.dataclass(frozen=True)
class MixerState:
    """What the next shares depend on besides the losses that are still to come; JSON data through and through."""

    policy: dict[str, Any]
    """The policy that it belongs to; under another one it begins anew."""
    begin_step: int
    """Finished updates before the policy's first turn."""
    memory: Memory
    awaiting: tuple[tuple[int, dict[str, int]], ...] = ()
    """Steps whose losses the memory has not learned from yet, oldest first, with the shares they were drawn by."""

    def to_json(self) -> dict[str, Any]:
        """As JSON data; `from_json` is its inverse."""
        return {
            "policy": self.policy,
            "begin_step": self.begin_step,
            "memory": self.memory,
            "awaiting": [[step, shares] for step, shares in self.awaiting],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "MixerState":
        """From what `to_json` gave."""
        awaiting = tuple((step, dict(shares)) for step, shares in document["awaiting"])
        return cls(dict(document["policy"]), document["begin_step"], document["memory"], awaiting)


def next_shares(
    policy: Policy,
    state: MixerState | None,
    *,
    step: int,
    sources: Sources,
    feedback: Callable[[int], BySource],
) -> tuple[dict[str, int], MixerState | None]:
    """Shares of the update that follows `step` finished ones, and the state after it was drawn.

    Asks `feedback` for each step once, in order, and for none later than `step` - lag_steps. A policy that learns
    nothing keeps no state.
    """
    if policy.lag_steps == 0:
        return policy.shares({}, turn=step + 1, step=step, sources=sources), None
    if state is None or state.policy != described(policy):
        state = MixerState(described(policy), step, policy.begin())
    memory, awaiting = state.memory, list(state.awaiting)
    while awaiting and awaiting[0][0] <= step - policy.lag_steps:
        earlier, drawn_by = awaiting.pop(0)
        memory = policy.learned(memory, Turn(earlier - state.begin_step + 1, drawn_by, feedback(earlier)))
    shares = policy.shares(memory, turn=step - state.begin_step + 1, step=step, sources=sources)
    awaiting.append((step, shares))
    return shares, dataclasses.replace(state, memory=memory, awaiting=tuple(awaiting))


def standing_shares(policy: Policy, state: MixerState | None, *, step: int, sources: Sources) -> dict[str, int]:
    """Shares that the policy has at `step` by what it had learned before, without a turn being taken or waited for."""
    if policy.lag_steps == 0:
        return policy.shares({}, turn=step + 1, step=step, sources=sources)
    if state is None or state.policy != described(policy):
        state = MixerState(described(policy), step, policy.begin())
    return policy.shares(state.memory, turn=step - state.begin_step + 1, step=step, sources=sources)


def described(policy: Policy) -> dict[str, Any]:
    """A policy as JSON data."""
    return dataclasses.asdict(policy)  # type: ignore[call-overload]
