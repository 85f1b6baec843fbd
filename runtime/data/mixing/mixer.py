"""Mixer: the shares of any step under a mixing policy, with a state that a checkpoint stores.

The shares of step s depend on the losses up to step s - lag_steps, however many more updates have finished. So batches
can be read ahead, and an interrupted run draws the batches that it would have drawn.
"""

import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any

from runtime.data.mixing.policies import MixingPolicy
from runtime.data.mixing.policy import Memory, Seen, Sources, Turn

BySource = Mapping[str, Seen]
"""Sums of one update by the identity of the source."""


@dataclasses.dataclass(frozen=True)
class MixerState:
    """All that the next shares depend on besides losses that are still to come; JSON data."""

    policy: dict[str, Any]
    """The policy that the memory belongs to; another policy starts with an empty memory."""
    begin_step: int
    """Finished updates before the policy's first turn."""
    memory: Memory
    awaiting: tuple[tuple[int, dict[str, int]], ...] = ()
    """Steps that the memory has not learned from yet, oldest first, with the shares they were drawn by."""

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "awaiting": [[step, shares] for step, shares in self.awaiting]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "MixerState":
        awaiting = tuple((step, dict(shares)) for step, shares in document["awaiting"])
        return cls(dict(document["policy"]), document["begin_step"], document["memory"], awaiting)


def next_shares(
    policy: MixingPolicy, state: MixerState | None, *, step: int, sources: Sources, feedback: Callable[[int], BySource]
) -> tuple[dict[str, int], MixerState | None]:
    """Return the shares of the update that follows `step` finished ones, and the state after it.

    Asks `feedback` for each step once, in order, and for none later than `step` - lag_steps. A policy that never learns
    has no state.
    """
    if policy.lag_steps == 0:
        return standing_shares(policy, None, step=step, sources=sources), None
    state = _state_of(policy, state, step)
    memory, awaiting = state.memory, list(state.awaiting)
    while awaiting and awaiting[0][0] <= step - policy.lag_steps:
        earlier, drawn_by = awaiting.pop(0)
        memory = policy.learned(memory, Turn(earlier - state.begin_step + 1, drawn_by, feedback(earlier)))
    shares = policy.shares(memory, turn=step - state.begin_step + 1, step=step, sources=sources)
    awaiting.append((step, shares))
    return shares, dataclasses.replace(state, memory=memory, awaiting=tuple(awaiting))


def standing_shares(policy: MixingPolicy, state: MixerState | None, *, step: int, sources: Sources) -> dict[str, int]:
    """Return the shares at `step` by what the policy has learned so far; take no turn and wait for no losses."""
    if policy.lag_steps == 0:
        return policy.shares({}, turn=step + 1, step=step, sources=sources)
    state = _state_of(policy, state, step)
    return policy.shares(state.memory, turn=step - state.begin_step + 1, step=step, sources=sources)


def _state_of(policy: MixingPolicy, state: MixerState | None, step: int) -> MixerState:
    described = dataclasses.asdict(policy)
    if state is None or state.policy != described:
        return MixerState(described, step, policy.begin())
    return state


class FeedbackClosedError(RuntimeError):
    """The run ended before it published losses that the loader waits for; raised in the waiting thread."""


class Feedback:
    """Losses by source of each update, which the thread that reads ahead takes once each; thread-safe.

    Updates are named, as batches are, by the number of updates finished before them.
    """

    def __init__(self, known: Mapping[int, BySource]) -> None:
        """Start with `known`: earlier updates, as far back as a policy may ask."""
        self._known = dict(known)
        self._is_closed = False
        self._changed = threading.Condition()

    def publish(self, step: int, seen: BySource) -> None:
        """Add the update that followed `step` finished ones."""
        with self._changed:
            self._known[step] = seen
            self._changed.notify_all()

    def __call__(self, step: int) -> BySource:
        """Wait for the update that follows `step` finished ones and return its sums."""
        with self._changed:
            self._changed.wait_for(lambda: step in self._known or self._is_closed)
            if step not in self._known:
                raise FeedbackClosedError(f"the run ended before it published the losses of step {step}.")
            return self._known.pop(step)

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
