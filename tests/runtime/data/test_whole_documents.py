"""Whole documents are packed a portion at a time, the same for every caller and from every position."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.data import whole_documents
from runtime.data.cache import TokenCache
from runtime.data.loader import DataPosition, Loader
from runtime.data.mixture import MixtureSchedule
from runtime.data.whole_documents import PIECE_DOCUMENTS, PIECES_A_PORTION, documents_of, num_portions
from tests.runtime.data.caches import document_offsets, locate

ROW, BATCH = 48, 4


@pytest.fixture(autouse=True, scope="module")
def small_portions():
    """Set portions of 24 documents."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_documents, "PIECE_DOCUMENTS", 8)
        patch.setattr(whole_documents, "PIECES_A_PORTION", 3)
        yield


class Watched:
    """A cache that counts the documents whose ends are read."""

    def __init__(self, cache: TokenCache):
        self.cache, self.asked_for = cache, []

    def __getattr__(self, name):
        return getattr(self.cache, name)

    @property
    def asked(self):
        return sum(self.asked_for)

    def document_ends(self, block, first, last):
        self.asked_for.append(last - first)
        return self.cache.document_ends(block, first, last)


@pytest.fixture(scope="module")
def caches(make_cache):
    return {size: make_cache(size, seed=size) for size in (300, 1_200)}


def loader_of(cache, seed=0, **changes):
    weights = MixtureSchedule.constant({"a": 1.0})
    return Loader({"a": cache}, {"a": "identity"}, weights, ROW, seed, **({"packing": "whole_documents"} | changes))


def same(one, two):
    return all(np.array_equal(x, y) for x, y in zip(one, two, strict=True))


@pytest.fixture(scope="module")
def drawn(caches):
    """Return the batches of a little more than two epochs, and the position before each."""
    loader, position, found, epoch = loader_of(caches[300]), DataPosition(), [], 0
    while len(found) < 3 or epoch < 2:
        before = position
        plan, position = locate(loader, before, len(found), BATCH)
        epoch = plan.data_epochs.max()
        batch, again = loader.batch(before, len(found), BATCH)
        assert again == position
        found.append((before, batch, plan))
    return found


def test_the_first_batch_touches_one_portion_however_large_the_source(caches):
    for cache in caches.values():
        watched = Watched(cache)
        loader_of(watched).batch(DataPosition(), 0, BATCH)
        assert watched.asked <= 3 * (8 + 1)


@given(step=st.integers(0, 10**6))
def test_a_loader_resumed_anywhere_reads_as_little_and_draws_the_same_rows(caches, drawn, step):
    step %= len(drawn)
    before, expected, _ = drawn[step]
    watched = Watched(caches[300])
    found, _ = loader_of(watched).batch(DataPosition.from_json(json.loads(json.dumps(before.to_json()))), step, BATCH)
    assert same(found, expected)
    # At most the portion that the last batch ended in, and those that this one begins and ends in.
    assert watched.asked <= 3 * 3 * (8 + 1)


@given(step=st.integers(0, 10**6))
def test_a_bookmark_changes_no_row(caches, drawn, step):
    step %= len(drawn)
    before, expected, plan = drawn[step]
    loader = loader_of(caches[300])
    found, after = locate(loader, dataclasses.replace(before, bookmarks={}), step, BATCH)
    assert same(found, plan)
    assert step + 1 == len(drawn) or after == drawn[step + 1][0]
    assert same(loader.batch(before, step, BATCH)[0], expected)


@given(step=st.integers(0, 10**6), num_batches=st.integers(0, 30))
def test_skipped_batches_lead_to_the_same_position_and_pack_nothing_before_them(caches, drawn, step, num_batches):
    step %= len(drawn)
    num_batches = min(num_batches, len(drawn) - 1 - step)
    before, there = drawn[step][0], drawn[step + num_batches][0]
    watched = Watched(caches[300])
    assert loader_of(watched).skip_batches(before, step, BATCH, num_batches) == there
    portions = there.bookmarks["identity"]["turn"] - before.bookmarks["identity"]["turn"] if before.bookmarks else 9
    assert watched.asked <= (portions + 2) * 3 * (8 + 1)


def test_a_bookmark_of_another_order_is_ignored(caches, drawn):
    before, _, _ = drawn[-1]
    with_it, _ = loader_of(caches[300], seed=1).batch(before, 0, BATCH)
    without, _ = loader_of(caches[300], seed=1).batch(dataclasses.replace(before, bookmarks={}), 0, BATCH)
    assert same(with_it, without)


def test_a_loader_that_moves_backwards_draws_the_same_rows(caches, drawn):
    loader = loader_of(caches[300])
    for step in (len(drawn) - 1, 0, len(drawn) // 2, 1):
        before, expected, _ = drawn[step]
        assert same(loader.batch(before, step, BATCH)[0], expected)


def test_each_epoch_reads_every_document_once_and_in_another_order(caches, drawn):
    cache = caches[300]
    offsets = document_offsets(cache).tolist()
    expected = sorted(tuple(cache.read(start, end - start).tolist()) for start, end in itertools.pairwise(offsets))
    orders = []
    for epoch in range(2):
        documents = []
        for _, batch, plan in drawn:
            for row in batch.tokens[plan.data_epochs == epoch]:
                documents += [tuple(part) for part in np.split(row, np.flatnonzero(row == 0) + 1) if len(part)]
        # An empty document reads like padding.
        assert sorted(part for part in documents if part != (0,)) == [part for part in expected if part != (0,)]
        orders.append(documents)
    assert orders[0] != orders[1]


def test_sequences_of_an_epoch_are_counted_without_packing(caches):
    watched = Watched(caches[1_200])
    order = loader_of(watched)._order
    assert order.num_sequences("identity") == caches[1_200].num_tokens // ROW and watched.asked == 0


@given(num_documents=st.integers(0, 600))
def test_each_document_is_in_one_portion_and_portions_are_bounded(num_documents):
    portions = [documents_of(portion, num_documents) for portion in range(num_portions(num_documents))]
    assert all(len(pieces) <= 3 and pieces == sorted(pieces) for pieces in portions)
    assert all(0 < last - first <= 8 for pieces in portions for first, last in pieces)
    found = sorted(number for pieces in portions for piece in pieces for number in range(*piece))
    assert found == list(range(num_documents))


def test_a_portion_has_documents_from_all_over_its_block():
    pieces = documents_of(0, 8 * 3_000)
    assert max(first for first, _ in pieces) - min(first for first, _ in pieces) > 1_000


def test_portions_are_packed_nearly_full():
    from runtime.data.best_fit import pack

    assert PIECE_DOCUMENTS * PIECES_A_PORTION == 65_536
    lengths = np.random.default_rng(0).lognormal(6.0, 1.0, 65_536).astype(np.int64) + 1
    ends = np.cumsum(lengths)
    found = pack(ends - lengths, ends, 4_096)
    assert found.num_padding < 0.0005 * len(found.row_ends) * 4_096
