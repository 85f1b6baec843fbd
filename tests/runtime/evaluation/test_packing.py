"""Rows as long as their sequences need, and contexts that are run once."""

import numpy as np

from runtime.evaluation.packing import Group, arranged, batches, groups, pack, row_length, short_row_length


def a_group(rng: np.random.Generator, longest: int) -> Group:
    def tokens(most: int) -> tuple[int, ...]:
        return tuple(rng.integers(1, 320, int(rng.integers(1, most + 1))).tolist())

    return Group(tokens(longest), tuple({tokens(9) for _ in range(int(rng.integers(1, 5)))}))


def test_packing_keeps_every_group_once_and_wastes_little():
    rng = np.random.default_rng(1)
    some = [a_group(rng, 100) for _ in range(1000)]
    rows = pack(some)
    assert sorted(group for row in rows for group in row.groups) == sorted(some)
    assert all(sum(group.size for group in row.groups) <= row.length for row in rows)
    assert sum(group.size for group in some) / sum(row.length for row in rows) > 0.97


def test_rows_are_as_long_as_their_longest_group_needs():
    rows = pack([Group((1,) * size, ((),)) for size in (3000, 700, 600, 300, 20, 20)])
    assert [row.length for row in rows] == [4096, 1024], "a row is filled before the next one"
    assert [row.length for row in pack([Group((1,) * 20, ((),))])] == [256]
    assert {row_length(size) for size in range(1, 8_193)} == {256, 512, 1024, 2048, 4096, 8192}


def test_short_rows_have_few_lengths_and_little_padding():
    lengths = {size: short_row_length(size) for size in range(1, 8_193)}
    assert len({*lengths.values()}) == 15 and min(lengths.values()) == 64
    assert all(size <= length <= max(64, size * 3 / 2) for size, length in lengths.items())


def test_a_batch_is_padded_to_a_power_of_two_of_rows_on_each_device():
    rows = pack([Group((1,) * 200, ((),)) for _ in range(37)])
    sizes = [(num_rows, len(batch)) for num_rows, batch in batches(rows, tokens_per_batch=1024, devices=4)]
    assert sizes == [(16, 16), (16, 16), (8, 5)]


def test_a_context_lies_in_a_row_once_and_again_where_its_continuations_exceed_a_row():
    tails = [(n,) * 10 for n in range(8)]
    assert list(groups({(1, 2): tails}, 256)) == [Group((1, 2), tuple(tails))]
    parts = list(groups({(1, 2): tails}, 35))
    assert [len(part.tails) for part in parts] == [3, 3, 2] and all(part.context == (1, 2) for part in parts)
    assert list(groups({(1,) * 50: [(2,) * 10]}, 35)) == [Group((1,) * 50, ((2,) * 10,))]


def test_each_continuation_follows_its_context_in_position_and_in_what_it_sees():
    packed, places = arranged(pack([Group((5, 6, 7), ((8, 9), (), (10,))), Group((11,), ((12,),))]), 2)
    (_, first), (_, second) = places
    assert (first.context, first.tails, second.context, second.tails) == (0, (3, 5, 5), 6, (7,))
    assert packed.tokens[0, :9].tolist() == [5, 6, 7, 8, 9, 10, 11, 12, 0]
    assert packed.positions[0, :8].tolist() == [0, 1, 2, 3, 4, 3, 0, 1]
    assert packed.begin[0, :9].tolist() == [0, 0, 0, 3, 3, 5, 6, 7, 8]
    assert packed.prefix_end[0, :9].tolist() == [0, 0, 0, 3, 3, 3, 6, 7, 0]
    assert packed.prefix_begin[0, 7] == 6 and packed.begin[1].tolist() == list(range(256))
