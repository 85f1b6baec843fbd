"""Shares are exact in the long run, whatever their size, the batch size or the step at which they change."""

from collections import Counter
from fractions import Fraction

from hypothesis import assume, given
from hypothesis import strategies as st

from runtime.data import allocation
from runtime.data.allocation import WHOLE, allocate, shuffled_slots
from runtime.data.mixture import apportioned

SHARES = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.floats(1e-6, 1e3), min_size=1, max_size=12)


@given(shares=SHARES, batches=st.lists(st.integers(1, 300), min_size=1, max_size=40))
def test_no_source_is_ever_further_from_its_share_than_the_bound(shares, batches):
    weights, carry, given_so_far = apportioned(shares), {}, Counter()
    total = sum(Fraction(weight) for weight in shares.values())
    for index, size in enumerate(batches):
        counts, carry = allocate(weights, carry, size)
        assert sum(counts.values()) == size and min(counts.values()) >= 0
        assert sum(carry.values()) == 0
        given_so_far.update(counts)
        drawn = sum(batches[: index + 1])
        for source, weight in shares.items():
            share = Fraction(weight) / total
            assert abs(given_so_far[source] - share * drawn) <= Fraction(1, 2) + share * len(shares) / 2 + Fraction(
                1, 10**9
            )


@given(shares=SHARES)
def test_weights_become_whole_numbers_that_lose_nothing(shares):
    weights = apportioned(shares)
    total = sum(Fraction(weight) for weight in shares.values())
    assert sum(weights.values()) == WHOLE
    assert all(abs(weights[source] - Fraction(share) / total * WHOLE) < 1 for source, share in shares.items())


def test_a_share_of_a_tenth_of_a_sequence_a_batch_is_drawn_every_tenth_batch():
    """Truncation in each batch, as in the public loader, would never draw it."""
    weights, carry, counts = apportioned({"web": 0.99, "rare": 0.01}), {}, Counter()
    for _ in range(100):
        step_counts, carry = allocate(weights, carry, 10)
        counts.update(step_counts)
    assert counts == {"web": 990, "rare": 10}
    assert abs(carry["rare"]) < 1_000  # of 2**60: the rounding of 0.01 to a float


def test_counts_are_exact_after_ten_to_the_fifteenth_sequences():
    weights = apportioned({"a": 1.0, "b": 2.0, "c": 1e-9})
    counts, carry = allocate(weights, {}, 10**15)
    total = Fraction(3) + Fraction(1e-9)
    assert counts["c"] == round(10**15 * Fraction(1e-9) / total) == 333_333
    assert sum(counts.values()) == 10**15
    assert all(abs(value) < 2 * WHOLE for value in carry.values())


@given(shares=SHARES, first=st.integers(1, 5_000), second=st.integers(1, 5_000))
def test_cutting_a_batch_in_two_draws_the_same_in_all(shares, first, second):
    weights = apportioned(shares)
    whole = allocate(weights, {}, first + second).counts
    one, carry = allocate(weights, {}, first)
    two, _ = allocate(weights, carry, second)
    assert {source: one[source] + two[source] for source in weights} == whole


def test_weights_that_change_at_every_step_lose_nothing():
    """Online mixing changes weights at each step: the carry must outlive the change."""
    carry: dict[str, int] = {}
    counts: Counter[str] = Counter()
    for step in range(4_000):
        rare = 0.001 * (1 + step % 3)
        step_counts, carry = allocate(apportioned({"web": 1 - rare, "rare": rare}), carry, 16)
        counts.update(step_counts)
    assert abs(counts["rare"] - 4_000 * 16 * 0.002) <= 1


def test_a_source_without_weight_keeps_its_carry():
    weights = apportioned({"a": 0.6, "b": 0.4})
    _, carry = allocate(weights, {}, 1)
    _, resting = allocate(apportioned({"a": 1.0}), carry, 7)
    assert resting["b"] == carry["b"] != 0


@given(
    weights=st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.integers(0, 20), min_size=2, max_size=12),
    carry=st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.integers(-5 * WHOLE, 5 * WHOLE), max_size=12),
    size=st.integers(1, 40),
)
def test_sequences_go_out_by_deadline_one_at_a_time(weights, carry, size):
    """Compares with the definition over fractions; few and small weights make many ties."""
    assume(any(weights.values()))
    shares = apportioned({source: float(weight) for source, weight in weights.items()})
    carry |= {next(iter(carry), "a"): carry.get(next(iter(carry), "a"), 0) - sum(carry.values())}
    drawn = {source: share for source, share in shares.items() if share}
    owed = {source: carry.get(source, 0) + share * size for source, share in drawn.items()}
    expected = {source: max(0, (2 * amount + WHOLE) // (2 * WHOLE)) for source, amount in owed.items()}

    def due(source, change):
        return Fraction((2 * expected[source] + change) * WHOLE - 2 * owed[source], 2 * drawn[source]), source

    while sum(expected.values()) < size:
        expected[min(drawn, key=lambda source: due(source, 1))] += 1
    while sum(expected.values()) > size:
        expected[max((s for s in drawn if expected[s]), key=lambda source: due(source, -1))] -= 1
    counts, left = allocate(shares, carry, size)
    assert counts == expected
    assert left == {**carry, **{source: amount - expected[source] * WHOLE for source, amount in owed.items()}}


def test_a_batch_of_thousands_of_sources_computes_each_deadline_once_and_one_for_each_sequence(monkeypatch):
    """Comparing all sources for each sequence took three quarters of a minute a batch."""
    looks = []
    monkeypatch.setattr(allocation, "_deadline", lambda *given, of=allocation._deadline: looks.append(1) or of(*given))
    weights = apportioned({f"source-{number}": 1.0 for number in range(5_000)})
    counts, carry = allocate(weights, {}, 1_024)
    assert sum(counts.values()) == 1_024 and max(counts.values()) == 1
    assert len(looks) <= 5_000 + 1_024
    counts, _ = allocate(weights, carry, 3_976)
    assert sum(counts.values()) == 3_976 and max(counts.values()) == 1


def test_a_source_whose_share_is_rounded_to_zero_gets_nothing():
    weights = {"a": WHOLE // 3, "b": WHOLE // 3, "c": WHOLE - 2 * (WHOLE // 3), "d": 0}
    for size in range(1, 12):
        counts, carry = allocate(weights, {"d": 3 * WHOLE, "a": -3 * WHOLE}, size)
        assert sum(counts.values()) == size and "d" not in counts and carry["d"] == 3 * WHOLE


@given(shares=SHARES, size=st.integers(1, 500))
def test_names_and_their_order_do_not_change_counts(shares, size):
    renamed = {f"x{source}": weight for source, weight in reversed(shares.items())}
    counts = allocate(apportioned(shares), {}, size).counts
    other = allocate(apportioned(renamed), {}, size).counts
    assert {f"x{source}": count for source, count in counts.items()} == other


@given(counts=st.dictionaries(st.sampled_from("abc"), st.integers(0, 30), min_size=1), step=st.integers(0, 10**9))
def test_slots_hold_the_counts_in_an_order_of_the_step(counts, step):
    slots = shuffled_slots([counts], seed=0, first_step=step)
    assert Counter(slots) == Counter({source: count for source, count in counts.items() if count})
    assert slots == shuffled_slots([dict(reversed(counts.items()))], seed=0, first_step=step)


def test_slots_of_a_source_are_spread_over_the_batch():
    slots = shuffled_slots([{"a": 512, "b": 512}], seed=0, first_step=3)
    assert 200 < slots[:512].count("a") < 312
    assert slots != shuffled_slots([{"a": 512, "b": 512}], seed=0, first_step=4)
