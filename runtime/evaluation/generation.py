"""Generation of text for many requests in a batch of slots; a slot holds the keys and values of one sequence.

A slot whose text has ended takes the next request at once. The longest requests come first, so the cache only narrows.
The cache's capacity takes few values, so few programs are compiled.
"""

import collections
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Int32

from runtime.evaluation.device_memory import CACHED_TOKENS, cache_capacity
from runtime.evaluation.packing import LEAST_ROW, Group, Row, arranged, prompt_row_length, short_row_length
from runtime.evaluation.placed_model import BY_DEVICE, ModelProgram, PlacedModel
from runtime.evaluation.sampling import DRAW_DTYPES, Draws, Sampling, drawn, likeliest
from runtime.model.cache import KeyValueCache, Layers, PackedRows, empty_cache, filled, narrowed
from runtime.model.model import Params
from runtime.parallel.mesh import BATCH_AXES

MOST_SLOTS = 32
"""Maximum number of texts that a device writes at once."""
PROMPTS_PER_ROW = 8

IsFinished = Callable[[int, list[int]], bool]
"""Whether a text ends with its last token, given the number of its prompt and its new tokens."""


class Prompt(NamedTuple):
    """A request for text."""

    tokens: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling | None
    """None takes the likeliest token."""
    request: int
    """Number of the request, below 2**32; equal requests with different numbers get independent draws."""

    @property
    def need(self) -> int:
        """Number of tokens in the cache before the last new token."""
        return len(self.tokens) + self.max_new_tokens - 1


class Generator:
    """Generator of text with a model; `most_slots` and `cached_tokens` are limits of one device."""

    def __init__(self, model: PlacedModel, *, most_slots: int = MOST_SLOTS, cached_tokens: int = CACHED_TOKENS) -> None:
        self._model, self._most_slots, self._cached_tokens = model, most_slots, cached_tokens

    def generate(self, prompts: Sequence[Prompt], is_finished: IsFinished) -> Iterator[tuple[int, list[int]]]:
        """Yield the number of each prompt with its new tokens, as texts end.

        Raises:
            ValueError: a prompt is empty, has an unknown token, or exceeds the model's context with its text.
        """
        for number, prompt in enumerate(prompts):
            self._check(number, prompt)
        yield from ((number, []) for number, prompt in enumerate(prompts) if prompt.max_new_tokens < 1)
        writing = [number for number, prompt in enumerate(prompts) if prompt.max_new_tokens > 0]
        queue = collections.deque(sorted(writing, key=lambda number: (-prompts[number].need, number)))
        if not queue:
            return
        share = -(-len(queue) // self._model.num_devices)
        shape = slots_and_capacity(prompts[queue[0]].need, share, self._most_slots, self._cached_tokens)
        slots = _Slots(self._model, prompts, *shape)
        while queue or slots.texts:
            slots.start([queue.popleft() for _ in range(min(len(queue), slots.num_free))])
            for number, text in slots.advance():
                if len(text) == prompts[number].max_new_tokens or is_finished(number, text):
                    slots.end(number)
                    yield number, text

    def _check(self, number: int, prompt: Prompt) -> None:
        config = self._model.config
        if not prompt.tokens or len(prompt.tokens) + prompt.max_new_tokens > config.max_position_embeddings:
            raise ValueError(
                f"prompts[{number}]: {len(prompt.tokens)} tokens and up to {prompt.max_new_tokens} new tokens. Use at "
                f"least one token, and at most the model's context of {config.max_position_embeddings} in all."
            )
        self._model.check_tokens(f"prompts[{number}]", prompt.tokens)


def slots_and_capacity(need: int, num_prompts: int, most_slots: int, cached_tokens: int) -> tuple[int, int]:
    """Return the number of slots of a device, a power of two, and the capacity of a slot.

    Args:
        need: tokens of the longest text.
        num_prompts: prompts of the device.
        most_slots: largest number of slots.
        cached_tokens: tokens of all slots, unless one needs more.
    """
    capacity = cache_capacity(need)
    most = max(1, min(most_slots, cached_tokens // capacity))
    return min(1 << (most.bit_length() - 1), 1 << (num_prompts - 1).bit_length()), capacity


class _Slots:
    """The texts that are being written; slot `i` of device `d` is number `d * slots_per_device + i`."""

    def __init__(self, model: PlacedModel, prompts: Sequence[Prompt], slots_per_device: int, capacity: int) -> None:
        self._model, self._prompts, self._capacity = model, prompts, capacity
        self._slots_per_device = slots_per_device
        self._placement = BY_DEVICE if model.is_written_out else PartitionSpec(None, BATCH_AXES)
        self.texts: dict[int, list[int]] = {}
        self._slot_of: dict[int, int] = {}
        num_slots = model.num_devices * slots_per_device
        # Free slots alternate between devices, so that even a few texts use all devices.
        in_turn = np.arange(num_slots).reshape(model.num_devices, slots_per_device).T.reshape(-1)
        self._free = collections.deque(in_turn.tolist())
        self._tokens, self._lengths = np.zeros(num_slots, np.int32), np.zeros(num_slots, np.int32)
        self._draws = Draws(*(np.zeros(num_slots, dtype) for dtype in DRAW_DTYPES))
        make = model.program(
            _empty,
            (),
            self._placement,
            slots=slots_per_device,
            capacity=capacity,
            written_out=model.is_written_out,
        )
        self._cache: KeyValueCache = make()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def start(self, numbers: Sequence[int]) -> None:
        """Begin the texts of these prompts: put each prompt without its last token into the cache."""
        to_fill: list[list[int]] = [[] for _ in range(self._model.num_devices)]
        for number in numbers:
            prompt, slot = self._prompts[number], self._free.popleft()
            self.texts[number], self._slot_of[number] = [], slot
            self._tokens[slot], self._lengths[slot] = prompt.tokens[-1], len(prompt.tokens) - 1
            sampling = prompt.sampling or Sampling()
            drawing = (0.0 if prompt.sampling is None else sampling.temperature, sampling.top_p, sampling.top_k)
            for values, value in zip(self._draws, (*drawing, sampling.seed, prompt.request, 0), strict=True):
                values[slot] = value
            if len(prompt.tokens) > 1:
                to_fill[slot // self._slots_per_device].append(number)
        while any(to_fill):
            length = self._row_length(to_fill)
            self._fill([self._row(share, length) for share in to_fill], length)

    def advance(self) -> list[tuple[int, list[int]]]:
        """Write a token of each text; return the texts so far by the numbers of their prompts."""
        self._narrow()
        program = self._model.program(
            advance,
            (self._placement, *(BY_DEVICE,) * 3),
            (BY_DEVICE, self._placement),
            donated=(0,),
            samples=bool(self._draws.temperature.any()),
        )
        arrays = self._model.by_device((self._tokens, self._lengths, self._draws))
        found, self._cache = program(self._cache, *arrays)
        found = self._model.fetch(found)
        for number, slot in self._slot_of.items():
            self.texts[number].append(int(found[slot]))
            self._tokens[slot] = found[slot]
            self._lengths[slot] += 1
            self._draws.place[slot] += 1
        return list(self.texts.items())

    def end(self, number: int) -> None:
        """Free the slot of a text."""
        slot = self._slot_of.pop(number)
        del self.texts[number]
        self._free.append(slot)
        self._tokens[slot] = self._lengths[slot] = self._draws.temperature[slot] = 0

    def _row_length(self, to_fill: Sequence[Sequence[int]]) -> int:
        """Return the length of each device's next row for its share of these prompts."""
        sizes = [[len(self._prompts[number].tokens) - 1 for number in share] for share in to_fill]
        longest = max(size for share in sizes for size in share)
        if not self._model.is_written_out:
            return prompt_row_length(longest, self._capacity)
        # On a CPU the time of a row grows with its length, and a slot often takes its next prompt alone.
        return short_row_length(min(max(map(sum, sizes)), max(longest, LEAST_ROW)))

    def _row(self, share: list[int], length: int) -> list[int]:
        """Remove the prompts of a device's next row from `share`, and return them."""
        taken: list[int] = []
        while share and len(taken) < PROMPTS_PER_ROW:
            length -= len(self._prompts[share[0]].tokens) - 1
            if length < 0:
                break
            taken.append(share.pop(0))
        return taken

    def _fill(self, rows: Sequence[Sequence[int]], length: int) -> None:
        groups = [[Group(self._prompts[number].tokens[:-1], ((),)) for number in row] for row in rows]
        packed, places = arranged([Row(length, row) for row in groups], len(rows))
        begins = iter(place.context for _, place in places)
        starts, slots, used = (np.zeros((len(rows), PROMPTS_PER_ROW), kind) for kind in (np.int32, np.int32, np.bool_))
        for device, row in enumerate(rows):
            for index, number in enumerate(row):
                starts[device, index], used[device, index] = next(begins), True
                slots[device, index] = self._slot_of[number] % self._slots_per_device
        run_rows = self._model.program(_prefilled, (BY_DEVICE,), self._placement)
        specs = (self._placement, self._placement, *(BY_DEVICE,) * 3)
        place = self._model.program(_placed, specs, self._placement, donated=(0,))
        packed, *where = self._model.by_device((packed, starts.reshape(-1), slots.reshape(-1), used.reshape(-1)))
        self._cache = place(self._cache, run_rows(packed), *where)

    def _narrow(self) -> None:
        capacity = cache_capacity(max(self._prompts[number].need for number in self.texts))
        if capacity <= self._capacity // 2:
            program = self._model.program(_narrow, (self._placement,), self._placement, capacity=capacity)
            self._cache, self._capacity = program(self._cache), capacity


def _empty(
    run: ModelProgram, params: Params, frequencies: Any, *, slots: int, capacity: int, written_out: bool
) -> KeyValueCache:
    dtype = run.computation.compute_dtype
    return empty_cache(run.model.config, slots=slots, capacity=capacity, dtype=dtype, written_out=written_out)


def _prefilled(run: ModelProgram, params: Params, frequencies: Any, rows: PackedRows) -> tuple[Layers, Layers]:
    return run.model.prefill(params, rows, frequencies, computation=run.computation)[1]


def _placed(
    run: ModelProgram,
    params: Params,
    frequencies: Any,
    cache: KeyValueCache,
    kept: tuple[Layers, Layers],
    starts: Int32[Array, "prompts"],
    slots: Int32[Array, "prompts"],
    used: Bool[Array, "prompts"],
) -> KeyValueCache:
    """Copy the keys and values of each prompt of a row to its slot."""

    def place(index: Array, cache: KeyValueCache) -> KeyValueCache:
        return filled(cache, kept, starts[index], slots[index], used[index])

    found: KeyValueCache = lax.fori_loop(0, PROMPTS_PER_ROW, place, cache)
    return found


def advance(
    run: ModelProgram,
    params: Params,
    frequencies: Any,
    cache: KeyValueCache,
    tokens: Int32[Array, "slots"],
    lengths: Int32[Array, "slots"],
    draws: Draws,
    *,
    samples: bool,
) -> tuple[Int32[Array, "slots"], KeyValueCache]:
    """Run the last token of each slot; return the next token of each."""
    states, cache = run.model.decode(params, tokens, lengths, cache, frequencies, computation=run.computation)
    logits = jnp.einsum("sh,hv->sv", states.hidden, states.head, preferred_element_type=jnp.float32)
    return drawn(logits, draws) if samples else likeliest(logits), cache


def _narrow(
    run: ModelProgram, params: Params, frequencies: Any, cache: KeyValueCache, *, capacity: int
) -> KeyValueCache:
    return narrowed(cache, capacity)
