"""A cache is as large as a device can hold beside the parameters, what it gathers of them, and a row of prompts."""

import math
from typing import Any

import pytest

from pipelines.scales import EIGHT_B
from runtime.cost.chips import GENERATIONS, GIB
from runtime.evaluation.device_memory import (
    CACHED_TOKENS,
    GATHERED_EMBEDDINGS,
    QUERIES_PER_BATCH,
    USABLE_SHARE,
    DeviceRoom,
    cache_capacity,
    device_room,
)
from runtime.evaluation.generation import slots_and_capacity
from runtime.evaluation.packing import prompt_row_length
from runtime.model.config import ModelConfig
from runtime.model.llama.config import LlamaConfig
from tests.catalogue import expect_error

SEVENTY_B = LlamaConfig(128_256, 8_192, 28_672, 80, 64, 8, 128, 8_192)
COMPILED = {"score": 3.55e9, "prefill": 5.07e9, "decode": 3.15e9}
"""Peak beside parameters and cache of its programs for a v6e-8, whatever the slots of 8,192 tokens (jax 0.10.2, in
November 2026; `test_a_70b_is_scored_and_writes_text_on_eight_chips` compares its compiled programs)."""


def room(config: ModelConfig, generation: str, devices: int, item_bytes: int = 2) -> DeviceRoom:
    return device_room(
        config, parameter_bytes=item_bytes * config.num_parameters, devices_of_a_copy=devices,
        memory_in_bytes=GENERATIONS[generation].hbm_in_bytes, compute_dtype="bfloat16",
    )  # fmt: skip


def test_a_70b_writes_text_on_eight_chips() -> None:
    memory, share = GENERATIONS["v6e"].hbm_in_bytes, 2 * SEVENTY_B.num_parameters / 8
    found = room(SEVENTY_B, "v6e", 8).cached_tokens
    slots, capacity = slots_and_capacity(SEVENTY_B.max_position_embeddings, 32, 32, found)
    assert (slots, capacity) == (2, 8_192)
    of_token = 2 * 2 * SEVENTY_B.num_hidden_layers * SEVENTY_B.num_key_value_heads * SEVENTY_B.head_dim
    beside = share + max(COMPILED.values())
    assert beside + slots * capacity * of_token < 0.85 * memory
    assert beside + CACHED_TOKENS * of_token > USABLE_SHARE * memory, "the usual cache leaves nothing"


@pytest.mark.parametrize(("generation", "devices", "item_bytes"), [("v6e", 1, 2), ("v6e", 2, 4), ("v5p", 1, 2)])
def test_an_8b_has_the_usual_cache(generation: str, devices: int, item_bytes: int) -> None:
    assert room(EIGHT_B.model, generation, devices, item_bytes).cached_tokens == CACHED_TOKENS


def test_a_cpu_has_no_limits_and_a_full_device_has_no_room() -> None:
    given: dict[str, Any] = {"parameter_bytes": 31 * GIB, "devices_of_a_copy": 1, "compute_dtype": "bfloat16"}
    assert device_room(SEVENTY_B, memory_in_bytes=None, longest_text=2, **given) == DeviceRoom()
    assert device_room(SEVENTY_B, memory_in_bytes=31 * GIB, **given) == (1, 0, 0), "nothing is asked for"
    assert device_room(SEVENTY_B, memory_in_bytes=34 * GIB, longest_text=1_024, **given).cached_tokens > 1_024
    of_eight = {"parameter_bytes": 248 * GIB, "devices_of_a_copy": 8}
    for memory, asked in (
        (31, {"longest_text": 1}),
        (34, {"longest_text": 8_192}),
        (33, {"longest_text": 1, **of_eight}),
        (32, {"tokens_per_batch": 1}),
        (33, {"tokens_per_batch": 4_096, **of_eight}),
        (34, {"tokens_per_batch": 16_384}),
    ):
        with expect_error(ValueError):
            device_room(SEVENTY_B, memory_in_bytes=memory * GIB, **given | asked)


@pytest.mark.parametrize("devices", [1, 8])
def test_the_hidden_states_of_all_rows_fit_beside_the_head(devices: int) -> None:
    head, found = 4 * QUERIES_PER_BATCH * SEVENTY_B.vocab_size, []
    if devices > 1:
        head += GATHERED_EMBEDDINGS * 2 * SEVENTY_B.vocab_size * SEVENTY_B.hidden_size
    for free in (-1, 0, 1 << 20, 1 << 26, 1 << 28, 1 << 32):
        tokens = device_room(
            SEVENTY_B, parameter_bytes=0, devices_of_a_copy=devices, compute_dtype="bfloat16",
            memory_in_bytes=math.ceil((head + free) / USABLE_SHARE),
        ).row_tokens  # fmt: skip
        assert tokens is not None and tokens * 2 * SEVENTY_B.hidden_size <= max(0, free)
        found.append(tokens)
    assert found[:3] == [0, 0, 64] and found[-1] > 8_192, "and no fewer than fit"


def test_rows_of_a_70b_are_charged_a_tenth_more_than_they_compile_to() -> None:
    share = 2 * SEVENTY_B.num_parameters / 8
    found = device_room(
        SEVENTY_B, parameter_bytes=2 * SEVENTY_B.num_parameters, devices_of_a_copy=8, compute_dtype="bfloat16",
        memory_in_bytes=int((share + 1.1 * COMPILED["score"]) / USABLE_SHARE),
    ).row_tokens  # fmt: skip
    assert found is not None and 0.9 * 8_192 < found <= 8_192, "its rows have 8,192 tokens"
    assert (room(SEVENTY_B, "v6e", 8).row_tokens or 0) > 8_192


def test_the_longest_text_is_the_largest_slot_in_its_room() -> None:
    given: dict[str, Any] = {"parameter_bytes": 0, "devices_of_a_copy": 1, "compute_dtype": "float32"}
    for memory in (2**28, 2**30, 3 * 2**30, 5 * 2**30, 2**34):
        longest = device_room(SEVENTY_B, memory_in_bytes=memory, **given).longest_text
        assert longest is not None
        assert longest == 0 or cache_capacity(longest) == longest
        with pytest.raises(ValueError):
            device_room(SEVENTY_B, memory_in_bytes=memory, longest_text=longest + 1, **given)


def test_a_row_of_prompts_is_at_most_half_of_the_cache_unless_one_text_fills_it() -> None:
    for tokens_in_cache in (512, 1_024, 3_072, 5_000, CACHED_TOKENS):
        for need in range(1, tokens_in_cache + 1):
            slots, capacity = slots_and_capacity(need, 32, 32, tokens_in_cache)
            row = prompt_row_length(need - 1, capacity)
            assert need - 1 <= row <= max(256, capacity)
            assert slots * capacity <= tokens_in_cache or slots == 1
            assert row <= tokens_in_cache // 2 or slots == 1, (tokens_in_cache, need)
