"""Text from a key-value cache: that of transformers' own generate, whatever shares the batch."""

import contextlib
import dataclasses
import functools
import random
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from runtime.evaluation import generation
from runtime.evaluation.device_memory import cache_capacity
from runtime.evaluation.generation import Generator, Prompt, _Slots, advance
from runtime.evaluation.packing import arranged
from runtime.evaluation.placed_model import BY_DEVICE, PlacedModel
from runtime.evaluation.sampling import Draws, Sampling, drawn, kept, likeliest
from runtime.interop.huggingface import SpecialTokens, write_model
from runtime.kernels.attention_paged import attend_to_cache, attend_to_pages
from runtime.model.cache import KeyValueCache, appended, empty_cache
from runtime.model.computation import whole
from runtime.model.config import LLAMA3_ROPE
from runtime.model.llama.config import LlamaConfig
from runtime.model.model import logits
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from tests.catalogue import expect_error
from tests.deferred_import import torch, transformers
from tests.runtime.interop.small_llama import CONFIG, model

NEW_TOKENS = 12
ONE_DEVICE = make_mesh(MeshShape(), jax.devices()[:1])
WIDE_NORMS = dataclasses.replace(CONFIG, use_qk_norm=True, tie_word_embeddings=True, num_key_value_heads=1)


def prompts(number: int, *, longest: int = 120, seed: int = 0) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(2, 320, length).tolist()) for length in (1, *rng.integers(1, longest, number - 1))]


def written(
    placed: PlacedModel,
    texts: Sequence[tuple[int, ...]],
    sampling: Sampling | None = None,
    *,
    most_slots: int = 32,
    new_tokens: Sequence[int] | int = NEW_TOKENS,
    end: int = -1,
) -> list[list[int]]:
    lengths = [new_tokens] * len(texts) if isinstance(new_tokens, int) else new_tokens
    asked = [Prompt(text, length, sampling, sum(text)) for text, length in zip(texts, lengths, strict=True)]
    found = dict(Generator(placed, most_slots=most_slots).generate(asked, lambda _, tokens: tokens[-1] == end))
    return [found[number] for number in range(len(texts))]


@pytest.fixture(scope="module")
def placed() -> PlacedModel:
    return PlacedModel(model(), CONFIG, LLAMA3_ROPE, compute_dtype=jnp.float32, mesh=ONE_DEVICE)


@pytest.mark.parametrize("config", [CONFIG, WIDE_NORMS], ids=["grouped", "qk-norm, tied, one kv head"])
def test_greedy_texts_equal_those_of_transformers_with_its_cache(tmp_path, config):
    params = model(config)
    write_model(str(tmp_path), params, config, LLAMA3_ROPE, SpecialTokens(0, None), dtype="float32")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    asked = prompts(10)
    expected = []
    for prompt in asked:
        ids = torch.tensor([prompt])
        found = theirs.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False, use_cache=True,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        expected.append(found[0, len(prompt) :].tolist())
    ours = PlacedModel(params, config, LLAMA3_ROPE, compute_dtype=jnp.float32, mesh=ONE_DEVICE)
    assert written(ours, asked, most_slots=4) == expected
    assert len({tuple(text) for text in expected}) == len(expected)


@jax.jit
def plain_logits(tokens: jax.Array) -> jax.Array:
    config, rows = CONFIG.build(), jnp.zeros_like(tokens)
    return logits(config, model(), tokens, rows, config.frequencies(LLAMA3_ROPE), computation=whole(jnp.float32))


def test_texts_are_those_of_running_the_whole_context_for_each_token(placed):
    texts = [list(prompt) for prompt in prompts(6, longest=200, seed=1)]
    for text in texts:
        for _ in range(NEW_TOKENS):
            row = np.zeros((1, 256), np.int32)
            row[0, : len(text)] = text
            text.append(int(plain_logits(row)[0, len(text) - 1].argmax()))
    found = written(placed, [tuple(text[:-NEW_TOKENS]) for text in texts])
    assert found == [text[-NEW_TOKENS:] for text in texts]


def test_stacked_layers_give_the_texts_of_layers_that_are_written_out(placed, monkeypatch):
    monkeypatch.setattr("runtime.evaluation.placed_model.platform", lambda mesh: "gpu")
    stacked = PlacedModel(model(), CONFIG, LLAMA3_ROPE, compute_dtype=jnp.float32, mesh=ONE_DEVICE)
    assert placed.is_written_out and not stacked.is_written_out
    assert written(stacked, prompts(6)) == written(placed, prompts(6))


def test_slots_order_and_neighbours_change_no_text(placed):
    asked, sampling = prompts(9, longest=60), Sampling(0.8, top_p=0.9, top_k=50, seed=3)
    new_tokens = [1 + 5 * index % 17 for index in range(9)]
    expected = [written(placed, [text], sampling, new_tokens=[n])[0] for text, n in zip(asked, new_tokens, strict=True)]
    assert [len(text) for text in expected] == new_tokens
    for most_slots in (2, 32):
        assert written(placed, asked, sampling, most_slots=most_slots, new_tokens=new_tokens) == expected
    order = random.Random(0).sample(range(9), 9)
    shuffled = written(
        placed, [asked[n] for n in order], sampling, most_slots=4, new_tokens=[new_tokens[n] for n in order]
    )
    assert shuffled == [expected[n] for n in order]


def test_a_prompt_that_takes_a_slot_alone_runs_in_a_short_row(placed, monkeypatch):
    lengths = []
    monkeypatch.setattr(
        generation, "arranged", lambda rows, number: lengths.append(rows[0].length) or arranged(rows, number)
    )
    asked = [(1,) * 150, (2,) * 140, (3,) * 60]
    written(placed, asked, most_slots=2, new_tokens=[2, 1, 1])
    assert lengths == [256, 192, 64], "two prompts do not fit in a row of 256, and the third comes when a slot is free"


def test_another_seed_and_another_request_draw_another_text(placed):
    (prompt,) = prompts(1)
    first, again, other = (written(placed, [prompt], Sampling(seed=seed))[0] for seed in (1, 1, 2))
    assert first == again != other
    (_, apart), (_, alike) = Generator(placed).generate(
        [Prompt(prompt, NEW_TOKENS, Sampling(seed=1), request) for request in (5, 6)], lambda *_: False
    )
    assert apart != alike


def test_the_sampled_set_equals_that_of_transformers():
    values = np.random.default_rng(0).normal(size=(6, 320)).astype(np.float32) * 3
    settings = [(1.0, 0), (0.9, 0), (1.0, 7), (0.5, 20), (0.01, 0), (0.95, 400)]
    top_p, top_k = (np.array(part) for part in zip(*settings, strict=True))
    found = np.asarray(kept(jnp.asarray(values), jnp.asarray(top_p, jnp.float32), jnp.asarray(top_k, jnp.int32)))
    for row, (share, number) in enumerate(settings):
        scores = torch.from_numpy(values[row : row + 1])
        if number:
            scores = transformers.TopKLogitsWarper(number)(None, scores)
        if share < 1:
            scores = transformers.TopPLogitsWarper(share)(None, scores)
        assert (found[row] == torch.isfinite(scores)[0].numpy()).all()


def test_the_likeliest_token_is_that_of_argmax_with_ties_and_nan():
    values = np.random.default_rng(0).integers(0, 40, (64, 320)).astype(np.float32)
    values[1], values[2, [7, 9]], values[3, 5], values[4] = -np.inf, np.nan, np.inf, np.nan
    assert np.asarray(likeliest(jnp.asarray(values))).tolist() == values.argmax(axis=-1).tolist()


def test_draws_have_the_shares_of_the_softmax_at_the_temperature():
    number, shares = 4_000, np.array([0.5, 0.3, 0.2])
    scores = jnp.tile(jnp.asarray(2 * np.log(shares), jnp.float32)[None], (number, 1))
    ids = np.arange(number, dtype=np.uint32)
    ones, zeros = np.ones(number, np.float32), np.zeros(number, np.int32)
    found = np.asarray(drawn(scores, Draws(2 * ones, ones, zeros, 0 * ids, ids, zeros)))
    np.testing.assert_allclose(np.bincount(found) / number, shares, atol=0.03)
    assert set(np.asarray(drawn(scores, Draws(0 * ones, ones, zeros, 0 * ids, ids, zeros)))) == {0}


def test_a_text_may_fill_the_context_and_no_more(placed):
    long = tuple(range(2, 252))
    assert len(written(placed, [long], new_tokens=6)[0]) == 6
    assert written(placed, [long], new_tokens=0) == [[]]
    for prompt in (Prompt(long, 7, None, 0), Prompt((), 1, None, 0), Prompt((320,), 1, None, 0)):
        with expect_error(ValueError):
            list(Generator(placed).generate([prompt], lambda *_: False))


def test_the_cache_has_the_compute_dtype_and_keeps_heads_grouped():
    small = PlacedModel(model(), CONFIG, LLAMA3_ROPE, compute_dtype=jnp.bfloat16, mesh=ONE_DEVICE)
    slots = _Slots(small, [], 2, 128)
    assert {(leaf.dtype.name, leaf.shape[:2]) for leaf in jax.tree.leaves(slots._cache)} == {("bfloat16", (2, 2))}


def test_capacities_are_few_and_hold_what_is_needed():
    capacities = {cache_capacity(need) for need in range(1, 8_193)}
    assert capacities == {128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192}
    assert all(need <= cache_capacity(need) <= max(128, 2 * need) for need in range(1, 8_193))


@pytest.mark.parametrize("changes", [{"temperature": 0.0}, {"top_p": 1.5}, {"top_k": -1}, {"seed": -1}])
def test_impossible_sampling_is_an_error(changes):
    with expect_error(ValueError):
        Sampling(**changes)


def test_a_config_without_grouped_heads_writes_text():
    config = LlamaConfig(**{**CONFIG.__dict__, "num_key_value_heads": 4, "num_hidden_layers": 1})
    ours = PlacedModel(model(config), config, LLAMA3_ROPE, compute_dtype=jnp.float32, mesh=ONE_DEVICE)
    assert len(written(ours, prompts(2), end=-1)[1]) == NEW_TOKENS


def test_a_step_writes_into_the_memory_of_the_cache(placed):
    slots = _Slots(placed, [], 2, 4096)
    placements = (slots._placement, *(BY_DEVICE,) * 3)
    program = placed.program(advance, placements, (BY_DEVICE, slots._placement), donated=(0,), samples=False)
    arrays = placed.by_device((slots._tokens, slots._lengths, slots._draws))
    memory = program.func.lower(*program.args, slots._cache, *arrays).compile().memory_analysis()
    num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(slots._cache))
    assert memory.alias_size_in_bytes == num_bytes > 8 * memory.temp_size_in_bytes


@pytest.mark.parametrize(("kernel", "head_dim"), [("paged_tpu", 128), ("paged_gpu", 64)])
def test_a_fused_kernel_agrees_with_the_definition(kernel, head_dim):
    layers, slots, kv_heads, groups, capacity = 3, 5, 2, 4, 1536
    rng = np.random.default_rng(0)

    def values(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=(*shape, head_dim)), jnp.bfloat16)

    keys, cached = (values(layers, slots, kv_heads, capacity) for _ in range(2))
    query, key, value = values(slots, kv_heads * groups) * head_dim**-0.5, *(values(slots, kv_heads) for _ in range(2))
    lengths, layer = jnp.asarray([0, 1, 127, 600, capacity - 1], jnp.int32), jnp.int32(1)
    expected = attend_to_cache(query, key, value, jnp.swapaxes(keys[1], 2, 3), cached[1], lengths)
    cache = appended(KeyValueCache(keys, cached), (key, value), lengths, layer)
    on_tpu = pltpu.force_tpu_interpret_mode(pltpu.InterpretParams())
    with on_tpu if kernel == "paged_tpu" else contextlib.nullcontext():
        found = attend_to_pages(query, cache, lengths + 1, layer, kernel=kernel, interpret=True)
    np.testing.assert_allclose(np.asarray(found, np.float32), np.asarray(expected, np.float32), atol=0.02)
    untouched = [number for number in range(layers) if number != layer]
    assert (cache.keys[jnp.array(untouched)] == keys[jnp.array(untouched)]).all()


def test_a_step_over_the_cache_of_all_layers_is_that_over_a_cache_by_layer():
    tokens, lengths = jnp.asarray([5, 7, 9], jnp.int32), jnp.asarray([0, 40, 127], jnp.int32)
    config = CONFIG.build()
    rng = np.random.default_rng(0)
    empty = empty_cache(CONFIG, slots=3, capacity=128, dtype=jnp.bfloat16, written_out=False)
    cache = KeyValueCache(*(jnp.asarray(rng.normal(size=part.shape), part.dtype) for part in empty))
    found = []
    for kernel in ("reference", "paged_tpu"):
        computation = whole(jnp.bfloat16)._replace(cache_kernel=kernel)
        step = jax.jit(functools.partial(config.decode, computation=computation))
        with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams()):
            states, after = step(model(), tokens, lengths, cache, config.frequencies(LLAMA3_ROPE))
        found.append([np.asarray(leaf, np.float32) for leaf in (states.hidden, *after)])
    for expected, own in zip(*found, strict=True):
        np.testing.assert_allclose(own, expected, atol=0.1)
    assert (found[0][1] != np.asarray(cache.keys, np.float32)).any(axis=(2, 4)).sum() == CONFIG.num_hidden_layers * 3
