"""Dedup: copies and near copies form one cluster whose first document stays; different texts stay apart."""

import random
import uuid

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.text.dedup import COMPARED, Components, Members, agreeing, copies, dropped, members, minhash, signatures
from runtime.text.minhash import MinHash
from runtime.text.signature_files import SignatureFile, exact_pairs, ids_of, near_pairs, ranges, write_signatures
from tests.catalogue import expect_error

PARAMETERS = MinHash()


def words(seed, count=400):
    chooser = random.Random(seed)
    return [f"w{chooser.randrange(5_000)}" for _ in range(count)]


def text(seed):
    return " ".join(words(seed))


def edited(seed, edits):
    changed = words(seed)
    for number in range(edits):
        changed[(number * 97 + 13) % len(changed)] = f"edit{number}"
    return " ".join(changed)


def written(texts, parameters=PARAMETERS, name="shard", kept=None):
    """The signatures of a shard, in memory."""
    folder = f"memory://signatures/{uuid.uuid4()}"
    write_signatures(folder, [([f"{name}/{number}" for number in range(len(texts))], texts)], parameters)
    if kept is not None:
        with fsspec.open(f"{folder}/kept.npy", "wb") as file:
            np.save(file, np.array(kept, bool))
    return SignatureFile(folder, None if kept is None else f"{folder}/kept.npy")


def found(texts, parameters=PARAMETERS):
    return clusters_of([written(texts, parameters)], parameters)


def clusters_of(files, parameters=PARAMETERS, first_own=0, tasks=1, num_ranges=1):
    components = Components()
    exact = [exact_pairs(files, buckets) for buckets in ranges(num_ranges, 1)]
    components.join(np.concatenate(exact))
    for part in range(tasks):
        for buckets in ranges(num_ranges, 1):
            components.join(near_pairs(files, range(part, parameters.num_bands, tasks), parameters, buckets))
    found = dropped(components, np.concatenate(exact), first_own=first_own)
    clusters: dict[int, tuple[list[int], list[int]]] = {}
    for document, kept, is_exact in zip(*(column.tolist() for column in found), strict=True):
        clusters.setdefault(kept, ([], []))[not is_exact].append(document)
    return [(kept, tuple(exact), tuple(near)) for kept, (exact, near) in sorted(clusters.items())]


def pages(seed, count, boilerplate=346, own=54):
    """Return pages that share most of their words: many pairs are near duplicates by signature, and many not."""
    chooser = random.Random(seed)
    shared = " ".join(words(seed, boilerplate))
    return [f"{' '.join(f'p{chooser.randrange(50_000)}' for _ in range(own))} {shared}" for _ in range(count)]


def by_all_pairs(texts):
    """Return clusters by the definition: every pair that shares a band and agrees in 80 %."""
    rows = minhash(texts, PARAMETERS)
    led_by = list(range(len(texts)))

    def root(number):
        return number if led_by[number] == number else root(led_by[number])

    for later, row in enumerate(rows):
        equal = rows[:later] == row
        shares_band = equal.reshape(later, 14, 8).all(axis=2).any(axis=1)
        for earlier in np.flatnonzero(shares_band & (equal.sum(axis=1) >= 90)):
            low, high = sorted((root(int(earlier)), root(later)))
            led_by[high] = low
    kept = sorted({root(number) for number in range(len(texts)) if root(number) != number})
    members = [tuple(n for n in range(len(texts)) if root(n) == first and n != first) for first in kept]
    return [(first, (), near) for first, near in zip(kept, members, strict=True)]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_drops_match_the_definition_over_all_pairs(seed):
    texts = pages(seed, 65)
    expected = by_all_pairs(texts)
    assert found(texts) == expected
    assert 5 < sum(len(near) for _, _, near in expected) < 64


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_duplicates_in_a_crowded_bucket_are_found(seed):
    texts = pages(seed, 150)
    (near,), (expected,) = (
        [{number for cluster in clusters for number in cluster[2]}] for clusters in (found(texts), by_all_pairs(texts))
    )
    assert near <= expected
    assert len(near) >= 0.97 * len(expected) > 50


def test_three_hundred_kinds_in_one_bucket_are_all_found():
    kinds, versions = 300, 3
    rows = np.random.default_rng(0).integers(0, 1 << 32, (kinds, 112), np.uint32)[np.arange(kinds * versions) % kinds]
    documents = np.arange(len(rows))
    one_bucket = members(np.zeros(len(rows), np.uint64), documents.astype(np.uint64), documents)
    pairs = np.concatenate(list(agreeing(one_bucket, documents, rows, 0.8)))
    components = Components()
    components.join(pairs)
    assert np.array_equal(components.roots, documents % kinds)


def pairs_in_one_bucket(minhashes, min_similarity):
    documents = np.arange(len(minhashes))
    found = agreeing(Members(np.zeros_like(documents), documents), documents, minhashes, min_similarity)
    return np.concatenate(list(found))


def test_six_hundred_versions_of_one_text_hide_no_pair_after_them():
    """Only documents that agree with none before them go on to the next round of a large bucket."""
    minhashes = np.repeat(np.array([[1], [2]], np.uint32), [600, 2], axis=0) * np.ones(10, np.uint32)
    found = pairs_in_one_bucket(minhashes, 0.8)
    assert [600, 601] in found.tolist()
    assert np.bincount(found[:, 1]).max() == COMPARED, "each is compared with those at the front, and once"


def test_texts_are_copies_by_128_bits_of_their_hash_and_not_by_64():
    keys, marks = np.array([5, 5, 5, 7], np.uint64), np.array([1, 2, 1, 1], np.uint64)
    assert copies(keys, marks, np.array([10, 11, 12, 13])).tolist() == [[10, 12]]


@pytest.mark.parametrize("beside", ["one", "two words", "three little words", "four words stand here", ""])
def test_a_text_has_the_same_signature_beside_texts_shorter_than_an_ngram(beside):
    alone = minhash([text(1), text(2)], PARAMETERS)
    assert np.array_equal(minhash([text(1), beside, text(2)], PARAMETERS)[[0, 2]], alone)


def test_a_similarity_that_is_just_reached_is_enough():
    minhashes = np.array([range(10), [*range(8), 98, 99], [*range(7), 97, 96, 95]], np.uint32)
    assert pairs_in_one_bucket(minhashes, 0.8).tolist() == [[0, 1]]
    assert pairs_in_one_bucket(minhashes, 0.7).tolist() == [[0, 1], [0, 2], [1, 2]]


@pytest.mark.parametrize("count", [60, 100])
def test_more_documents_at_the_end_remove_no_duplicate(count):
    texts = pages(3, 130)
    before, after = (
        {number for cluster in found(some) for number in cluster[2] if number < count}
        for some in (texts[:count], texts)
    )
    assert before <= after


def test_an_exact_copy_is_dropped_for_the_first():
    assert found([text(1), text(2), text(1)]) == [(0, (2,), ())]


def test_a_near_copy_is_dropped_and_a_different_text_is_not():
    assert found([text(1), text(2), edited(1, 3)]) == [(0, (), (2,))]


def test_case_punctuation_and_layout_do_not_hide_a_copy():
    assert found([text(1), text(1).upper().replace(" ", ",\n")]) == [(0, (), (1,))]


def test_a_copy_of_a_near_copy_belongs_to_the_same_cluster():
    assert found([text(1), edited(1, 2), edited(1, 2)]) == [(0, (), (1, 2))]


def test_texts_shorter_than_an_ngram_match_only_copies():
    assert found(["one two", "one two", "one three", "", "", "ONE TWO"]) == [(0, (1,), (5,)), (3, (4,), ())]
    assert found(["!!!", "???", "", "!!!"]) == [(0, (3,), ())], "those of no words, only their copies"


VERSIONS = [text(1), edited(1, 3), text(2), text(1), edited(2, 2), "", "", text(3), edited(1, 3), edited(2, 5)]


@pytest.mark.parametrize(("tasks", "num_ranges"), [(1, 1), (2, 3), (5, 1), (14, 64)])
def test_clusters_do_not_depend_on_the_number_of_tasks(tasks, num_ranges):
    assert clusters_of([written(VERSIONS)], tasks=tasks, num_ranges=num_ranges) == found(VERSIONS) != []


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)).filter(lambda pair: pair[0] != pair[1]), max_size=20))
def test_components_do_not_depend_on_the_parts_of_the_pairs(pairs):
    parts = [np.array(pairs[place : place + 3], np.int64).reshape(-1, 2) for place in range(0, len(pairs) + 1, 3)]
    components = Components()
    for part in parts:
        components.join(part)
    roots = {document: {document} for pair in pairs for document in pair}
    for left, right in pairs:
        together = roots[left] | roots[right]
        roots |= dict.fromkeys(together, together)
    assert dict(zip(components.documents.tolist(), components.roots.tolist(), strict=True)) == {
        document: min(members) for document, members in roots.items()
    }


@pytest.mark.parametrize("cut", range(1, len(VERSIONS)))
def test_clusters_do_not_depend_on_the_shards(cut):
    assert clusters_of([written(VERSIONS[:cut]), written(VERSIONS[cut:])]) == found(VERSIONS)


def test_a_document_of_an_earlier_source_is_dropped_in_the_later_one():
    earlier = written([text(1), text(1), text(2), text(4)], kept=[True, False, True, True])
    own = written([text(5), edited(1, 3), text(2), text(5), text(6)])
    # Numbers 0 to 2 are what the earlier source kept, 3 and above the later source.
    assert clusters_of([earlier, own], first_own=3) == [(0, (), (4,)), (1, (5,), ()), (3, (6,), ())]


def test_two_earlier_documents_that_an_own_one_joins_both_stay():
    earlier = written([text(1), edited(1, 3)])
    assert clusters_of([earlier, written([text(1)])], first_own=2) == [(0, (2,), ())]


def test_a_dropped_document_of_an_earlier_source_drops_nothing():
    earlier = written([text(1), text(2)], kept=[False, True])
    assert clusters_of([earlier, written([text(1)])], first_own=1) == []


def test_a_kept_document_after_a_dropped_one_of_an_earlier_source_is_compared():
    earlier = written([text(1), text(2), text(3)], name="earlier", kept=[False, True, True])
    own = written([edited(3, 1), text(9)], name="own")
    assert clusters_of([earlier, own], first_own=2) == [(1, (), (2,))]
    assert ids_of([earlier, own], np.array([0, 1, 2])) == {0: "earlier/1", 1: "earlier/2", 2: "own/0"}


def test_no_documents_are_no_clusters():
    assert found([]) == []


@pytest.mark.parametrize("edits", [2, 4, 8, 12, 16, 24, 32])
def test_the_estimate_is_near_the_true_similarity(edits):
    left, right = text(5), edited(5, edits)
    grams = [{tuple(value.split()[i : i + 5]) for i in range(396)} for value in (left, right)]
    true = len(grams[0] & grams[1]) / len(grams[0] | grams[1])
    rows = minhash([left, right], MinHash(num_bands=64, rows_per_band=16))
    assert abs(np.mean(rows[0] == rows[1]) - true) < 0.06


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=8), st.integers(1, 4))
def test_signatures_do_not_depend_on_batches(choices, cut):
    texts = [edited(seed, edits) for seed, edits in choices]
    whole = signatures(texts, PARAMETERS)
    parts = [signatures(texts[:cut], PARAMETERS), signatures(texts[cut:], PARAMETERS)]
    for field in ("exact", "minhash"):
        assert np.array_equal(getattr(whole, field), np.concatenate([getattr(part, field) for part in parts]))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=10))
def test_one_document_of_each_text_stays_and_none_is_dropped_twice(choices):
    texts = [edited(seed, edits) for seed, edits in choices]
    dropped = [member for _, exact, near in found(texts) for member in (*exact, *near)]
    assert len(dropped) == len(set(dropped))
    assert len(texts) - len(dropped) == len({seed for seed, _ in choices})


@pytest.mark.parametrize(
    "change", [{"num_bands": 0}, {"ngram_words": 0}, {"min_similarity": 0}, {"min_similarity": 1.5}]
)
def test_impossible_parameters_are_refused(change):
    with expect_error(ValueError):
        MinHash(**change)
