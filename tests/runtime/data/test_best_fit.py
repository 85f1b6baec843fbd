"""Packed rows hold every document once, cut only documents longer than a row, and tell padding from text."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.data.best_fit import pack
from runtime.data.loader import DataPosition, Loader, LoaderError
from runtime.data.mixture import MixtureSchedule
from tests.catalogue import expect_error
from tests.runtime.data.caches import document_offsets

ROW = 24
LENGTHS = st.lists(st.integers(0, 60), max_size=60)


def offsets_of(lengths, begin=0):
    return begin + np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(lengths, np.int64), dtype=np.int64)])


def rows_of(found):
    ends = found.row_ends.tolist()
    return [
        list(zip(found.starts[first:last].tolist(), found.lengths[first:last].tolist(), strict=True))
        for first, last in zip([0, *ends], ends, strict=False)
    ]


@given(lengths=LENGTHS, begin=st.integers(0, 1000))
def test_every_token_is_in_one_row_and_only_longer_documents_are_cut(lengths, begin):
    offsets = offsets_of(lengths, begin)
    found = pack(offsets[:-1], offsets[1:], ROW)
    rows = rows_of(found)
    assert all(0 < sum(length for _, length in row) <= ROW for row in rows)
    pieces = sorted(piece for row in rows for piece in row)
    expected = []
    for start, end in zip(offsets.tolist(), offsets.tolist()[1:], strict=False):
        expected += [(place, min(ROW, end - place)) for place in range(start, end, ROW)]
    assert pieces == expected
    assert found.num_padding == len(rows) * ROW - sum(lengths)
    assert found.num_cut == sum(length > ROW for length in lengths)


@given(lengths=LENGTHS)
def test_it_is_best_fit_longest_first(lengths):
    """Compares with the definition, one piece at a time: as many rows, each as full."""
    pieces = sorted((min(ROW, n - at) for n in lengths for at in range(0, n, ROW)), reverse=True)
    rooms = []
    for piece in pieces:
        fitting = [room for room in rooms if room >= piece]
        if fitting:
            rooms.remove(min(fitting))
        rooms.append((min(fitting) if fitting else ROW) - piece)
    offsets = offsets_of(lengths)
    rows = rows_of(pack(offsets[:-1], offsets[1:], ROW))
    assert sorted(ROW - sum(length for _, length in row) for row in rows) == sorted(rooms)


def test_documents_of_one_length_keep_the_order_of_the_source():
    """Unstable sorts order equal lengths by the processor's vectors."""
    offsets = offsets_of(np.random.default_rng(0).integers(1, 6, 1_000))
    rows = rows_of(pack(offsets[:-1], offsets[1:], 5))
    as_long_as_a_row = [row for row in rows if row[0][1] == 5]
    assert len(as_long_as_a_row) > 100 and as_long_as_a_row == sorted(as_long_as_a_row)
    assert all(row == sorted(row) for row in rows)


def test_documents_of_web_lengths_leave_little_padding():
    lengths = np.random.default_rng(0).lognormal(6.0, 1.0, 20_000).astype(np.int64) + 1
    offsets = offsets_of(lengths)
    found = pack(offsets[:-1], offsets[1:], 2048)
    assert found.num_padding < 0.001 * len(found.row_ends) * 2048


@pytest.fixture(scope="module")
def loader(make_cache):
    caches = {"a": make_cache(120, seed=1), "b": make_cache(40, seed=2)}
    identities, mixture = {"a": "identity-a", "b": "identity-b"}, MixtureSchedule.constant({"a": 2.0, "b": 1.0})
    return Loader(caches, identities, mixture, ROW, seed=0, packing="whole_documents"), caches


def test_rows_hold_whole_documents_and_padding_predicts_nothing(loader):
    loader, caches = loader
    position, seen = DataPosition(), []
    offsets = document_offsets(caches["a"])
    count = len(pack(offsets[:-1], offsets[1:], ROW).row_ends)
    while position.consumed.get("identity-a", 0) < count:
        batch, position = loader.batch(position, 0, 12)
        for row, segments, index in zip(batch.tokens, batch.segment_ids, batch.source_index, strict=True):
            has_target = segments[:-1] == segments[1:]
            ends = [np.flatnonzero(segments == segment) for segment in np.unique(segments)]
            documents = [row[places].tolist() for places in ends if len(places) > 1 or row[places[0]] != 0]
            assert not has_target[np.flatnonzero(row[:-1] == 0)].any(), "neither EOS nor padding predicts"
            if index == 0 and len(seen) < count:
                seen.append(documents)
    cache = caches["a"]
    offsets = document_offsets(cache).tolist()
    expected = []
    for start, end in itertools.pairwise(offsets):
        expected += [cache.read(place, min(ROW, end - place)).tolist() for place in range(start, end, ROW)]
    expected = [piece for piece in expected if piece != [0]]  # an empty document reads like padding
    assert sorted(piece for row in seen for piece in row) == sorted(expected)


@given(cut=st.integers(0, 20))
def test_resumed_at_any_step_it_draws_the_same_rows(loader, cut):
    loader, _ = loader
    position, straight = DataPosition(), []
    for step in range(20):
        if step == cut:
            position = DataPosition.from_json(json.loads(json.dumps(position.to_json())))
        batch, position = loader.batch(position, step, 6)
        straight.append(batch)
    again = DataPosition()
    for step in range(20):
        batch, again = loader.batch(again, step, 6)
        assert all(np.array_equal(x, y) for x, y in zip(batch, straight[step], strict=True))


def test_a_position_of_the_other_packing_is_refused(loader, make_cache):
    loader, caches = loader
    _, position = loader.batch(DataPosition(), 0, 4)
    other = Loader(caches, {"a": "identity-a", "b": "identity-b"}, MixtureSchedule.constant({"a": 1.0}), ROW, seed=0)
    with expect_error(LoaderError):
        other.batch(position, 1, 4)
