"""Samples: the documents with the lowest keys, and no other in memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.text.documents import EVERY_KEY, Document, key_limit, last_key, sample_key, sampled, size_of

SIZES = st.lists(st.integers(0, 30), max_size=40)


def documents_of(sizes):
    return [Document(str(number), "é" * size, "test") for number, size in enumerate(sizes)]


@given(sizes=SIZES, num_bytes=st.integers(1, 400), cut=st.integers(0, 40), share=st.integers(0, 4))
def test_the_lowest_keys_of_all_shards_are_those_of_the_source(sizes, num_bytes, cut, share):
    documents, below = documents_of(sizes), EVERY_KEY * share // 4
    parts = [sampled(part, below=below, num_bytes=num_bytes) for part in (documents[:cut], documents[cut:])]
    found = [document for part in parts for document in part]
    last = last_key([(sample_key(document), size_of(document)) for document in found], num_bytes)
    expected, size = set(), 0
    for document in sorted((one for one in documents if one.text and sample_key(one) < below), key=sample_key):
        if size < num_bytes:
            expected.add(document)
            size += size_of(document)
    assert [one for one in found if sample_key(one) <= last] == [one for one in documents if one in expected]


def test_the_code_of_the_step_that_wrote_documents_changes_no_sample():
    keys = [sample_key(Document(f"{digest}/a.txt#3", "text", digest)) for digest in ("00b32374daf2", "1f85e2faf08a")]
    assert keys[0] == keys[1] != sample_key(Document("1f85e2faf08a/a.txt#4", "text", "1f85e2faf08a"))


def test_an_exactly_full_sample_takes_no_more_documents():
    assert last_key([(3, 5), (1, 5), (2, 5)], 10) == 2
    assert last_key([(3, 5), (1, 5), (2, 5)], 11) == 3
    assert last_key([(3, 5), (1, 5)], 11) == 3
    assert last_key([], 1) == -1


class CountedText(str):
    """A text that counts the living texts of its class; other allocations of the process do not matter."""

    __slots__ = ()
    num_alive = 0

    def __new__(cls, text: str) -> "CountedText":
        CountedText.num_alive += 1
        return super().__new__(cls, text)

    def __del__(self) -> None:
        CountedText.num_alive -= 1


def test_a_sample_holds_only_its_own_documents():
    most = 0

    def documents():
        nonlocal most
        for number in range(20_000):
            most = max(most, CountedText.num_alive)
            yield Document(str(number), CountedText(f"{number:06d}" * 170), "test")

    found = sampled(documents(), below=EVERY_KEY, num_bytes=100_000)
    assert 100_000 <= sum(map(size_of, found)) < 102_000
    assert len(found) <= most <= len(found) + 2  # and the current document, and the next


@pytest.mark.parametrize(
    ("wanted", "num_bytes", "num_documents", "share"),
    [(0, 10, 10**6, 0.001), (10, 400, 10**6, 0.1), (10, 400, 5_000, 0.2), (100, 400, 10**6, 1), (10, 400, 999, 1)],
)
def test_a_source_gives_four_times_the_wanted_bytes_and_a_thousand_documents(wanted, num_bytes, num_documents, share):
    assert key_limit(wanted, num_bytes=num_bytes, num_documents=num_documents) == int(share * EVERY_KEY)
