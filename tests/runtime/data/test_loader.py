"""A batch depends on the position, the step, the seed and the identities of the sources, and on nothing else."""

import dataclasses
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.data.cache import TokenCache
from runtime.data.cache_writer import token_cache_writer
from runtime.data.loader import Loader
from runtime.data.mixture import MixtureSchedule, MixtureSegment
from runtime.data.order import LoaderError, segments
from runtime.data.permutation import key_of, permuted
from runtime.data.sampler import DataPosition
from tests.catalogue import expect_error
from tests.runtime.data.caches import document_offsets, locate
from tests.runtime.data.conftest import FORMAT

LENGTH = 32
IDENTITIES = {"a": "identity-a", "b": "identity-b", "c": "identity-c"}
WEIGHTS = {"a": 3.0, "b": 1.0, "c": 0.25}


@pytest.fixture(scope="module")
def caches(make_cache):
    return {"a": make_cache(200, seed=1), "b": make_cache(60, seed=2), "c": make_cache(5, seed=3)}


@pytest.fixture(scope="module")
def loader(caches):
    return Loader(caches, IDENTITIES, MixtureSchedule.constant(WEIGHTS), LENGTH, seed=0)


def draw(loader, steps, batch_size=8, position=None):
    """Return the batches of `steps`, and the position after them."""
    position = position or DataPosition()
    batches = []
    for step in steps:
        batch, position = loader.batch(position, step, batch_size)
        batches.append(batch)
    return batches, position


def rows_of(batches, index):
    """Return the rows of one source in the order in which they were drawn."""
    return [row.tolist() for batch in batches for row in batch.tokens[batch.source_index == index]]


def equal(one, two):
    return len(one) == len(two) and all(
        np.array_equal(x, y) for a, b in zip(one, two, strict=True) for x, y in zip(a, b, strict=True)
    )


@given(cut=st.integers(0, 12))
def test_a_loader_resumed_at_any_step_draws_the_same_batches(loader, cut):
    whole, end = draw(loader, range(12))
    first, position = draw(loader, range(cut))
    position = DataPosition.from_json(json.loads(json.dumps(position.to_json())))
    second, resumed_end = draw(loader, range(cut, 12), position=position)
    assert equal(whole, first + second) and end == resumed_end


def test_repeated_and_reordered_calls_change_nothing(loader):
    _, position = draw(loader, range(6))
    again = loader.batch(position, 6, 8)
    loader.batch(DataPosition(), 99, 64)
    assert equal([again[0]], [loader.batch(position, 6, 8)[0]])


def test_rows_are_the_windows_of_an_independent_count(loader, caches):
    batches, _ = draw(loader, range(40))
    for index, name in enumerate("abc"):
        cache = caches[name]
        everything = cache.read(0, cache.num_tokens)
        count = cache.num_tokens // LENGTH
        for drawn, row in enumerate(rows_of(batches, index)):
            epoch, place = divmod(drawn, count)
            key = np.array([key_of("order", 0, IDENTITIES[name], epoch)], np.uint64)
            window = permuted(np.array([place]), sizes=np.array([count]), keys=key)[0]
            shift = key_of("shift", 0, IDENTITIES[name], epoch) % (cache.num_tokens - count * LENGTH + 1)
            begin = window * LENGTH + shift
            assert row == everything[begin : begin + LENGTH].tolist()


def test_each_epoch_reads_every_window_once_and_in_another_order(loader, caches):
    count = caches["b"].num_tokens // LENGTH
    position, starts = DataPosition(), []
    while len(starts) < 2 * count:
        plan, position = locate(loader, position, 0, 16)
        starts += plan.starts[plan.source_index == 1].tolist()
    first, second = starts[:count], starts[count : 2 * count]
    assert len(set(first)) == len(set(second)) == count
    assert {start // LENGTH for start in first} == {start // LENGTH for start in second} == set(range(count))
    assert np.argsort(first).tolist() != np.argsort(second).tolist()


def test_other_sources_and_names_change_no_order(loader, caches):
    batches, _ = draw(loader, range(30))
    fewer = Loader(
        {"a": caches["a"], "c": caches["c"]},
        {"a": "identity-a", "c": "identity-c"},
        MixtureSchedule.constant({"a": 1.0, "c": 5.0}),
        LENGTH,
        seed=0,
    )
    others, _ = draw(fewer, range(30))
    renamed = Loader(
        {"z": caches["a"], "y": caches["b"], "x": caches["c"]},
        {"x": "identity-c", "z": "identity-a", "y": "identity-b"},
        MixtureSchedule.constant({"y": 1.0, "x": 0.25, "z": 3.0}),
        LENGTH,
        seed=0,
    )
    same, _ = draw(renamed, range(30))
    for here, there, index, other in ((0, 0, fewer, others), (2, 1, fewer, others), (1, 1, renamed, same)):
        mine, theirs = rows_of(batches, here), rows_of(other, there)
        count = min(len(mine), len(theirs))
        assert count > 5 and mine[:count] == theirs[:count], (here, index.sources)
    assert all(np.array_equal(one.tokens, two.tokens) for one, two in zip(batches, same, strict=True))


def test_another_seed_or_identity_is_another_order(caches, loader):
    batches, _ = draw(loader, range(5))
    for seed, identities in ((1, IDENTITIES), (0, IDENTITIES | {"a": "retokenized"})):
        others, _ = draw(Loader(caches, identities, MixtureSchedule.constant(WEIGHTS), LENGTH, seed), range(5))
        assert rows_of(batches, 0) != rows_of(others, 0)


def test_hosts_that_read_only_their_rows_read_one_batch(loader):
    whole, after = loader.batch(DataPosition(), 3, 8)
    parts = [loader.batch(DataPosition(), 3, 8, rows=slice(start, start + 2)) for start in range(0, 8, 2)]
    assert np.array_equal(np.concatenate([part.tokens for part, _ in parts]), whole.tokens)
    assert all(position == after for _, position in parts)


def test_counts_follow_the_weights_exactly_and_by_name(loader):
    _, position = draw(loader, range(170), batch_size=5)
    assert position.consumed == {"identity-a": 600, "identity-b": 200, "identity-c": 50}


def test_weights_change_at_their_step(caches):
    schedule = MixtureSchedule(
        (MixtureSegment(0, {"a": 1.0}), MixtureSegment(4, {"b": 1.0}), MixtureSegment(6, {"a": 1.0}))
    )
    loader = Loader(caches, IDENTITIES, schedule, LENGTH, seed=0)
    batches, position = draw(loader, range(8))
    assert [set(batch.source_index.tolist()) for batch in batches] == [{0}] * 4 + [{1}] * 2 + [{0}] * 2
    straight, _ = draw(Loader(caches, IDENTITIES, MixtureSchedule.constant({"a": 1.0}), LENGTH, seed=0), range(6))
    assert rows_of(batches, 0) == rows_of(straight, 0)
    assert position.consumed == {"identity-a": 48, "identity-b": 16}


def test_a_source_without_cache_in_one_phase_continues_in_the_next(caches):
    def phase(weights):
        names = {name: IDENTITIES[name] for name in weights}
        mixture = MixtureSchedule.constant(weights)
        return Loader({name: caches[name] for name in weights}, names, mixture, LENGTH, seed=0)

    both, without = phase({"a": 3.0, "b": 1.0}), phase({"a": 3.0, "c": 0.25})
    first, position = draw(both, range(5), batch_size=7)
    before = position
    _, position = draw(without, range(5, 9), batch_size=7, position=position)
    assert position.consumed["identity-b"] == before.consumed["identity-b"]
    assert position.carry["identity-b"] == before.carry["identity-b"]
    second, _ = draw(both, range(9, 14), batch_size=7, position=DataPosition.from_json(position.to_json()))
    straight, _ = draw(both, range(14), batch_size=7)
    back = rows_of(first + second, 1)
    assert len(rows_of(second, 1)) > 5 and back == rows_of(straight, 1)[: len(back)]


def test_two_names_of_one_source_share_its_order_and_add_their_weights(caches):
    aliases = Loader(
        {"a": caches["a"], "again": caches["a"], "b": caches["b"]},
        {"a": "identity-a", "again": "identity-a", "b": "identity-b"},
        MixtureSchedule.constant({"a": 2.0, "again": 1.0, "b": 1.0}),
        LENGTH,
        seed=0,
    )
    plain = Loader(caches, IDENTITIES, MixtureSchedule.constant({"a": 3.0, "b": 1.0}), LENGTH, seed=0)
    one, two = draw(aliases, range(10))[0], draw(plain, range(10))[0]
    assert all(np.array_equal(x.tokens, y.tokens) for x, y in zip(one, two, strict=True))
    assert {index for batch in one for index in batch.source_index.tolist()} == {0, 2}, "the first of its names"


def test_a_position_of_a_quadrillion_sequences_is_exact(loader):
    position = DataPosition({"identity-a": 10**15, "identity-b": 10**15}, {}, LENGTH)
    batch, after = loader.batch(position, 10**12, 8)
    assert after.consumed["identity-a"] == 10**15 + int(np.count_nonzero(batch.source_index == 0))
    assert batch.tokens.shape == (8, LENGTH)


@given(rows=st.lists(st.lists(st.integers(0, 3), min_size=7, max_size=7), min_size=1, max_size=4))
def test_segment_ids_count_documents_and_eos_belongs_to_its_document(rows):
    found = segments(np.array(rows, np.uint16), 0)
    for row, ids in zip(rows, found.tolist(), strict=True):
        document, expected = 0, []
        for token in row:
            expected.append(document)
            document += token == 0
        assert ids == expected


def test_segment_ids_agree_with_the_document_offsets(loader, caches):
    plan, _ = locate(loader, DataPosition(), 0, 16)
    batch, _ = loader.batch(DataPosition(), 0, 16)
    for row, (index, start) in enumerate(zip(plan.source_index, plan.starts, strict=True)):
        offsets = document_offsets(caches["abc"[index]])
        owner = np.searchsorted(offsets, np.arange(start, start + LENGTH), side="right")
        assert batch.segment_ids[row].tolist() == (owner - owner[0]).tolist()


def test_a_batch_is_of_int32(loader):
    batch, _ = loader.batch(DataPosition(), 0, 4)
    assert {array.dtype for array in batch} == {np.dtype(np.int32)}
    assert batch.source_index.shape == (4,)


def test_prefetched_batches_are_the_same_and_in_order(loader):
    batches, end = draw(loader, range(3, 15))
    with loader.prefetched(DataPosition(), range(3, 15), 8, depth=2) as prefetched:
        items = list(prefetched)
    assert [step for step, _, _ in items] == list(range(3, 15))
    assert equal(batches, [batch for _, batch, _ in items]) and items[-1][2] == end


@pytest.mark.parametrize("rows", [slice(None), slice(1, 3), np.array([3, 0])], ids=["all rows", "a slice", "some rows"])
def test_small_batches_read_together_are_those_read_alone(loader, rows):
    """The reader takes one batch alone, then sixteen together, then the rest."""
    position = DataPosition()
    with loader.prefetched(DataPosition(), range(21), 4, depth=2, rows=rows) as prefetched:
        for step, batch, after in prefetched:
            alone, position = loader.batch(position, step, 4, rows=rows)
            assert equal([alone], [batch]) and after == position
    assert step == 20


class Faltering:
    """A cache that fails some reads."""

    def __init__(self, cache, *failing_reads):
        self._cache, self._failing_reads, self.num_reads = cache, failing_reads, 0

    def __getattr__(self, name):
        return getattr(self._cache, name)

    def read_spans(self, starts, lengths):
        self.num_reads += 1
        if self.num_reads in self._failing_reads:
            raise TimeoutError("the store is silent")
        return self._cache.read_spans(starts, lengths)


def test_batches_read_together_are_read_alone_after_a_failed_read(caches, caplog):
    faltering = Faltering(caches["a"], 2)
    mixture = MixtureSchedule.constant({"a": 1.0})
    loader, whole = (
        Loader({"a": cache}, {"a": "identity-a"}, mixture, LENGTH, seed=0) for cache in (faltering, caches["a"])
    )
    with loader.prefetched(DataPosition(), range(65), 4, depth=2) as prefetched:
        batches = [batch for _, batch, _ in prefetched]
    assert equal(batches, draw(whole, range(65), 4)[0])
    # The first alone, sixteen together in vain and then alone, and three times sixteen together.
    assert faltering.num_reads == 1 + 1 + 16 + 3
    assert [record.args[:2] for record in caplog.records] == [(1, 16)]


def test_an_error_of_one_batch_is_raised_after_the_batches_before_it(caches):
    """The second read is of sixteen batches together; the twelfth is of the eleventh batch alone."""
    faltering = Faltering(caches["a"], 2, 12)
    loader = Loader({"a": faltering}, {"a": "identity-a"}, MixtureSchedule.constant({"a": 1.0}), LENGTH, seed=0)
    given = []
    with pytest.raises(TimeoutError), loader.prefetched(DataPosition(), range(30), 4, depth=2) as prefetched:
        for step, _, _ in prefetched:
            given.append(step)
    assert given == list(range(10))


@given(taken=st.integers(0, 9), num_batches=st.integers(0, 9), batch_size=st.integers(1, 9))
def test_skipped_batches_lead_to_the_position_after_taken_ones(loader, taken, num_batches, batch_size):
    _, position = draw(loader, range(taken), batch_size)
    expected = position
    for _ in range(num_batches):
        _, expected = locate(loader, expected, taken, batch_size)
    assert loader.skip_batches(position, taken, batch_size, num_batches) == expected
    by_twos = loader.skip_batches(
        loader.skip_batches(position, taken, batch_size, num_batches // 2), taken, batch_size, 1
    )
    assert by_twos == loader.skip_batches(position, taken, batch_size, num_batches // 2 + 1)


def test_skipped_batches_are_of_the_mixture_of_their_step(caches):
    early, late = {"a": 1.0}, {"b": 1.0, "c": 1.0}
    mixture = MixtureSchedule((MixtureSegment(0, early), MixtureSegment(5, late)))
    loader = Loader(caches, IDENTITIES, mixture, LENGTH, seed=0)
    assert loader.skip_batches(DataPosition(), 4, 8, 50).consumed == {"identity-a": 400}
    assert loader.skip_batches(DataPosition(), 5, 8, 50).consumed == {"identity-b": 200, "identity-c": 200}


def test_no_token_is_read_for_skipped_batches(loader, monkeypatch):
    for cache in ("read", "read_spans"):
        monkeypatch.setattr(TokenCache, cache, None)
    assert sum(loader.skip_batches(DataPosition(), 0, 8, 300).consumed.values()) == 2400


def test_batches_are_skipped_exactly_after_a_trillion_sequences(loader):
    position = loader.skip_batches(DataPosition(), 0, 8, 17)
    far = dataclasses.replace(position, consumed={name: 2**40 + n for name, n in position.consumed.items()})
    after = loader.skip_batches(far, 0, 8, 17)
    assert sum(after.consumed.values()) - sum(far.consumed.values()) == 8 * 17
    assert after.consumed["identity-a"] > 2**40


def test_slots_of_all_sources_are_spread_over_the_batch(loader):
    plan, _ = locate(loader, DataPosition(), 0, 512)
    halves = Counter(plan.source_index[:256].tolist()), Counter(plan.source_index[256:].tolist())
    assert all(halves[0][index] and halves[1][index] for index in range(3))


def test_sources_that_cannot_be_drawn_are_refused(caches, make_cache):
    def build(caches, identities, weights, length=LENGTH):
        return Loader(caches, identities, MixtureSchedule.constant(weights), length, seed=0)

    with expect_error(LoaderError):
        build(caches, IDENTITIES, {"a": 1.0, "d": 1.0})
    with expect_error(LoaderError):
        build(caches, {"a": "x"}, {"a": 1.0})
    with expect_error(LoaderError):
        build(caches, IDENTITIES, {"c": 1.0}, length=4096)
    with expect_error(LoaderError):
        build(caches, IDENTITIES | {"b": "identity-a"}, {"a": 1.0})


def test_a_source_of_one_sequence_is_drawn_and_a_smaller_one_is_refused(tmp_path):
    for length in (LENGTH, LENGTH - 1):
        with token_cache_writer(f"{tmp_path}/{length}", FORMAT, np.ones(FORMAT.vocab_size)) as writer:
            writer.add([np.full(length - 1, 7)], num_bytes=1)
    one, less = (TokenCache.open(f"{tmp_path}/{length}") for length in (LENGTH, LENGTH - 1))
    mixture = MixtureSchedule.constant({"a": 1.0})
    batch, position = Loader({"a": one}, {"a": "i"}, mixture, LENGTH, 0).batch(DataPosition(), 0, 3)
    assert batch.tokens.tolist() == [[7] * (LENGTH - 1) + [0]] * 3 and position.consumed == {"i": 3}
    with expect_error(LoaderError):
        Loader({"a": less}, {"a": "i"}, mixture, LENGTH, 0)


@pytest.mark.parametrize(
    "other_format",
    [{"vocab_size": 501}, {"bos_token_id": 7}, {"tokenizer_digest": "e" * 64}],
    ids=["vocabulary", "bos", "digest"],
)
def test_caches_of_different_tokenizers_are_refused(caches, loader, monkeypatch, other_format):
    other = type(caches["b"]).open(caches["b"].path)
    monkeypatch.setattr(other, "format", dataclasses.replace(other.format, **other_format))
    with expect_error(LoaderError):
        Loader(caches | {"b": other}, IDENTITIES, MixtureSchedule.constant(WEIGHTS), LENGTH, seed=0)


def test_a_position_of_another_sequence_length_is_refused(loader):
    with expect_error(LoaderError):
        loader.batch(DataPosition(sequence_length=64), 0, 4)


def test_a_position_that_counts_rows_of_unknown_length_is_refused(make_cache):
    loader = Loader({"a": make_cache()}, {"a": "identity-a"}, MixtureSchedule.constant({"a": 1.0}), LENGTH, seed=0)
    _, position = loader.batch(DataPosition(), 0, 4)
    document = position.to_json() | {"sequence_length": None}
    with expect_error(LoaderError):
        loader.batch(DataPosition.from_json(document), 1, 4)


@pytest.mark.parametrize("step", [0, 1, 9])
def test_a_recorded_batch_is_the_one_that_was_drawn(loader, step):
    _, before = draw(loader, range(step))
    batch, after = loader.batch(before, step, 8)
    counts = {name: after.consumed[name] - before.consumed.get(name, 0) for name in after.consumed}
    found, recorded = loader.recorded_batch(counts, before.consumed, step)
    located, _ = loader.locate(before, range(step, step + 1), 8)
    assert equal([recorded], [batch]) and equal([found], [located])
