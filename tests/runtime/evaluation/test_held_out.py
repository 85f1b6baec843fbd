"""Held-out text: the same windows each time, of all domains in one row, in batches of which only the last is padded."""

import functools
import math
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runtime.data.cache import TokenCache, TokenFormat
from runtime.data.cache_writer import token_cache_writer
from runtime.evaluation.bits_per_byte import PADDING_SEGMENT, BitsPerByteError
from runtime.evaluation.held_out import HeldOut
from runtime.evaluation.windows import ScoredWindows, Windows, read_windows, text_source, window_starts
from runtime.model.computation import whole
from runtime.model.config import LLAMA3_ROPE
from runtime.model.llama.config import LlamaConfig
from runtime.model.llama.model import Llama
from runtime.model.model import logits
from runtime.model.rotary import inverse_frequencies
from runtime.parallel.hosts import host_rows
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from runtime.training import watchdog
from runtime.training.eval_step import TokenLosses, build_eval_step
from runtime.training.watchdog import SETTLING_ANSWERS, Watchdog
from tests.catalogue import expect_error

BOS, EOS, VOCAB_SIZE, SEQUENCE = 0, 1, 64, 16
# Ids 2... stand for 0 to 3 bytes of text: some for a part of a character, one (2) for no text at all.
TOKEN_BYTES = np.array([0, 0, *(index % 4 for index in range(VOCAB_SIZE - 2))], np.int32)
CONFIG = LlamaConfig(
    vocab_size=VOCAB_SIZE, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=8, max_position_embeddings=SEQUENCE,
)  # fmt: skip


def write_cache(path, num_documents, seed=0, token_bytes=TOKEN_BYTES):
    rng = np.random.default_rng(seed)
    documents = [rng.integers(2, VOCAB_SIZE, int(rng.integers(1, 40))) for _ in range(num_documents)]
    token_format = TokenFormat(vocab_size=VOCAB_SIZE, eos_token_id=EOS, bos_token_id=BOS, tokenizer_digest="0" * 64)
    with token_cache_writer(str(path), token_format, token_bytes) as writer:
        writer.add(documents, num_bytes=1)
    return TokenCache.open(str(path))


def documents_of(path, documents):
    token_format = TokenFormat(vocab_size=VOCAB_SIZE, eos_token_id=EOS, bos_token_id=BOS, tokenizer_digest="0" * 64)
    with token_cache_writer(str(path), token_format, TOKEN_BYTES) as writer:
        writer.add([np.array(document) for document in documents], num_bytes=1)
    return TokenCache.open(str(path))


def windows_of(cache, max_tokens=10_000, sequence_length=SEQUENCE):
    """Return the windows of one domain, as the definition has them."""
    starts = window_starts(cache, sequence_length=sequence_length, max_tokens=max_tokens)
    return read_windows(cache, starts, sequence_length)


def held_out(caches, step=None, *, windows_per_batch=8, max_tokens=10_000, rows=None):
    return HeldOut.open(
        {
            name: text_source(cache.path, sequence_length=SEQUENCE, max_tokens=max_tokens)
            for name, cache in caches.items()
        },
        eval_step() if step is None else step,
        sequence_length=SEQUENCE,
        windows_per_batch=windows_per_batch,
        rows=rows,
    )


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TokenCache]:
    """Return three domains, not in the order of their names, of about 20, 3 and 9 windows."""
    folder = tmp_path_factory.mktemp("caches")
    return {
        name: write_cache(folder / name, number, seed)
        for seed, (name, number) in enumerate({"web": 15, "books": 2, "code": 7}.items())
    }


@functools.cache
def eval_step(num_devices=1):
    mesh = make_mesh(MeshShape(data=num_devices), jax.devices()[:num_devices])
    return build_eval_step(
        CONFIG, LLAMA3_ROPE, mesh, attention_kernel="reference", loss_kernel="chunked", compute_dtype="float32"
    )


def model():
    return jax.tree.map(lambda leaf: 5 * leaf, Llama(CONFIG).init(jax.random.key(0)))


class Recorded:
    """An evaluation step whose loss of a window is one of its tokens alone; what it was given is kept."""

    def __init__(self) -> None:
        self.given: list[Windows] = []

    def __call__(self, params: Any, tokens: np.ndarray, segment_ids: np.ndarray) -> TokenLosses:
        self.given.append(Windows(tokens, segment_ids))
        has_target = (segment_ids == np.roll(segment_ids, -1, axis=1)) & (np.arange(SEQUENCE) < SEQUENCE - 1)
        losses = np.log1p(tokens + 0.1 * np.roll(tokens, -1, axis=1)).astype(np.float32)
        return TokenLosses(np.where(segment_ids == PADDING_SEGMENT, np.nan, losses), has_target)  # type: ignore[arg-type]


def plainly(params, windows):
    """Compute the definition, token by token, from whole logits."""
    frequencies = inverse_frequencies(LLAMA3_ROPE, CONFIG.head_dim)

    @jax.jit
    def whole_logits(params, windows):
        return logits(CONFIG.build(), params, *windows, frequencies, computation=whole(jnp.float32))

    values = whole_logits(params, windows)
    log_shares = np.asarray(jax.nn.log_softmax(values), np.float64)
    bits, num_bytes, num_tokens = 0.0, 0, 0
    for window, (tokens, segment_ids) in enumerate(zip(*windows, strict=True)):
        for i in range(SEQUENCE - 1):
            target = tokens[i + 1]
            if segment_ids[i] == segment_ids[i + 1] != PADDING_SEGMENT and TOKEN_BYTES[target]:
                bits -= log_shares[window, i, target] / math.log(2)
                num_bytes += int(TOKEN_BYTES[target])
                num_tokens += 1
    return bits, num_bytes, num_tokens


def test_the_sums_of_each_domain_follow_the_definition(caches):
    found = held_out(caches).scores(model())
    assert list(found) == ["books", "code", "web"]
    for name, cache in caches.items():
        bits, num_bytes, num_tokens = plainly(model(), windows_of(cache))
        assert (found[name].num_bytes, found[name].num_tokens) == (num_bytes, num_tokens)
        assert found[name].bits == pytest.approx(bits, rel=1e-5)


def test_a_uniform_model_needs_the_logarithm_of_the_vocabulary_for_each_token(caches):
    for found in held_out(caches).scores(jax.tree.map(jnp.zeros_like, model())).values():
        assert found.bits == pytest.approx(found.num_tokens * math.log2(VOCAB_SIZE), rel=1e-6)


@pytest.mark.parametrize("windows_per_batch", [1, 3, 64])
def test_sums_do_not_depend_on_the_batch_size(caches, windows_per_batch):
    expected = held_out(caches, Recorded()).scores(None)
    assert held_out(caches, Recorded(), windows_per_batch=windows_per_batch).scores(None) == expected
    computed, again = (held_out(caches, windows_per_batch=size).scores(model()) for size in (8, windows_per_batch))
    for name in caches:
        assert again[name][1:] == computed[name][1:]
        assert again[name].bits == pytest.approx(computed[name].bits, rel=1e-6)


def test_the_score_of_a_domain_does_not_depend_on_others(caches):
    together = held_out(caches, Recorded()).scores(None)
    alone = {name: held_out({name: cache}, Recorded()).scores(None)[name] for name, cache in caches.items()}
    assert together == alone


def test_scores_repeat_bitwise_in_any_order_of_domains(caches):
    first, second = (held_out(given).scores(model()) for given in (caches, dict(reversed(caches.items()))))
    assert first == second and list(first) == list(second)


def test_batches_span_domains_and_only_the_last_is_padded(caches):
    step = Recorded()
    opened = held_out(caches, step)
    opened.scores(None)
    in_order = [windows_of(caches[name]) for name in sorted(caches)]
    expected = Windows(*(np.concatenate(parts) for parts in zip(*in_order, strict=True)))
    assert len(in_order[0].tokens) < 8, "the first batch has windows of two domains"
    assert len(expected.tokens) % 8, "the last has padding"
    for given, wanted in zip(zip(*step.given, strict=True), expected, strict=True):
        assert all(rows.shape == (8, SEQUENCE) and rows.dtype == np.int32 for rows in given)
        np.testing.assert_array_equal(np.concatenate(given)[: len(wanted)], wanted)
    behind = np.concatenate([batch.segment_ids for batch in step.given])[len(expected.tokens) :]
    assert (behind == PADDING_SEGMENT).all()
    assert len(step.given) == opened.num_batches == math.ceil(len(expected.tokens) / 8)
    assert opened.num_windows == len(expected.tokens)


def test_domains_that_fit_into_one_batch_are_scored_by_one_call_of_the_program(caches):
    step = Recorded()
    held_out(caches, step, windows_per_batch=64).scores(None)
    assert len(step.given) == 1 < len(caches)


def test_progress_is_reported_after_each_batch(caches):
    reported: list[int] = []
    opened = held_out(caches)
    opened.scores(model(), on_batch=reported.append)
    assert reported == list(range(1, opened.num_batches + 1)) and len(reported) > 2


def test_a_window_is_counted_by_the_bytes_of_its_own_domain(tmp_path, caches):
    twice = write_cache(tmp_path / "twice", 7, seed=2, token_bytes=2 * TOKEN_BYTES)
    found = held_out(caches | {"twice": twice}, Recorded()).scores(None)
    assert (found["twice"].bits, found["twice"].num_tokens) == (found["code"].bits, found["code"].num_tokens)
    assert found["twice"].num_bytes == 2 * found["code"].num_bytes


HOSTS = [[[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 3, 5], [1, 2, 4, 6, 7]]]


@pytest.mark.parametrize("hosts", HOSTS)
def test_the_rows_of_all_hosts_make_the_batches_of_one_host(caches, hosts, monkeypatch):
    devices, batch = jax.devices(), 8
    mesh = make_mesh(MeshShape(data=8), devices)
    alone = held_out(caches)
    read_all, read = TokenCache.read_spans, Counter[int]()
    together = ScoredWindows(*(np.full_like(part, -7) for part in alone.windows))
    by_batch = [part.reshape(-1, batch, SEQUENCE) for part in together]
    for number, host in enumerate(hosts):

        def counted(cache: TokenCache, starts: Any, lengths: Any, number: int = number) -> Any:
            read[number] += int(lengths.sum())
            return read_all(cache, starts, lengths)

        rows = host_rows(mesh, batch, devices=[devices[index] for index in host])
        with monkeypatch.context() as patch:
            patch.setattr(TokenCache, "read_spans", counted)
            part = held_out(caches, windows_per_batch=batch, rows=rows)
        assert part.domains == alone.domains
        assert part.num_batches == alone.num_batches
        for whole_batches, held in zip(by_batch, part.windows, strict=True):
            whole_batches[:, rows.rows] = held.reshape(part.num_batches, len(host), SEQUENCE)
        assert read[number] == (part.windows.segment_ids != PADDING_SEGMENT).sum()
    for found, expected in zip(together, alone.windows, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_placed_rows_give_the_figures_of_a_whole_batch(caches):
    mesh = make_mesh(MeshShape(data=8), jax.devices())
    placed = held_out(caches, eval_step(8), rows=host_rows(mesh, 8)).scores(model())
    assert placed == held_out(caches, eval_step(8)).scores(model())


def test_a_large_enough_limit_puts_every_token_in_one_window(tmp_path):
    cache = write_cache(tmp_path, 33)
    assert cache.num_tokens % SEQUENCE
    windows = windows_of(cache, max_tokens=10**9)
    is_text = windows.segment_ids != PADDING_SEGMENT
    np.testing.assert_array_equal(windows.tokens[is_text], cache.read(0, cache.num_tokens))


def test_a_smaller_limit_spreads_windows_over_the_whole_cache(tmp_path):
    cache = write_cache(tmp_path, 400)
    windows = windows_of(cache, max_tokens=10 * SEQUENCE + 3)
    assert len(windows.tokens) == 10
    num_there = math.ceil(cache.num_tokens / SEQUENCE)
    starts = [(i * num_there // 10) * SEQUENCE for i in range(10)]
    for row, start in zip(windows.tokens, starts, strict=True):
        np.testing.assert_array_equal(row, cache.read(start, SEQUENCE))
    assert starts[-1] > 0.85 * cache.num_tokens


def test_a_domain_shorter_than_one_window_has_a_score(tmp_path):
    cache = write_cache(tmp_path, 1, seed=3)
    windows = windows_of(cache, max_tokens=1024, sequence_length=1024)
    assert windows.tokens.shape == (1, 1024)
    assert (windows.segment_ids != PADDING_SEGMENT).sum() == cache.num_tokens


def test_documents_in_the_padded_end_of_a_text_are_separate(tmp_path):
    windows = windows_of(documents_of(tmp_path, [[2, 3, 4], [5, 6]]))
    assert windows.tokens.tolist() == [[BOS, 2, 3, 4, EOS, BOS, 5, 6, EOS, *[0] * 7]]
    assert windows.segment_ids.tolist() == [[*[0] * 5, *[1] * 4, *[PADDING_SEGMENT] * 7]]


def test_a_diverged_model_is_an_error_and_not_a_number(caches):
    diverged = jax.tree.map(lambda leaf: leaf * jnp.nan, model())
    with expect_error(BitsPerByteError):
        held_out(caches).scores(diverged)


def test_a_loss_that_is_not_finite_names_its_domain(caches):
    window = windows_of(caches["code"]).tokens[1]

    def infinite_at_it(params: Any, tokens: np.ndarray, segment_ids: np.ndarray) -> TokenLosses:
        losses, has_target = Recorded()(params, tokens, segment_ids)
        is_it = (tokens == window).all(axis=1, keepdims=True)
        return TokenLosses(np.where(is_it, np.inf, losses), has_target)  # type: ignore[arg-type]

    with expect_error(BitsPerByteError):
        held_out(caches, infinite_at_it).scores(None)


def test_a_domain_without_a_predicted_byte_is_an_error(tmp_path: Path, caches):
    silent = documents_of(tmp_path / "silent", [[2, 2, 2], [2]])
    with expect_error(BitsPerByteError):
        held_out(caches | {"silent": silent}).scores(model())


def test_too_few_tokens_for_one_window_are_an_error(caches):
    with expect_error(BitsPerByteError):
        held_out(caches, max_tokens=15)


def test_the_watchdog_sees_a_hang_in_an_evaluation(caches, monkeypatch):
    monkeypatch.setattr(watchdog, "HANG_SECONDS", 0.3)
    monkeypatch.setattr(watchdog, "FLUSH_SECONDS", 0.0)
    seen: list[int] = []
    ended = threading.Event()

    class Hanging(Recorded):
        def __call__(self, *arguments):
            if len(self.given) == SETTLING_ANSWERS:
                assert ended.wait(60)
            return super().__call__(*arguments)

    def end(code: int) -> None:
        monkeypatch.setattr(watchdog, "HANG_SECONDS", 600.0)  # on a busy machine a later batch is late, too
        ended.set()

    dog = Watchdog("batch", on_hang=lambda number, seconds: seen.append(number), end=end)
    with dog.watching():
        held_out(caches, Hanging(), windows_per_batch=4).scores(None, watchdog=dog)
    assert seen == [SETTLING_ANSWERS + 1]
