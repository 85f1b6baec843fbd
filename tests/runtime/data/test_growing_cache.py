"""Batches from a cache that is still being built are those from the finished cache."""

import dataclasses
import itertools
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.data import growing_cache
from runtime.data.cache import CacheError, TokenCache
from runtime.data.cache_writer import ShardWriter, finish_cache
from runtime.data.growing_cache import CacheAbandonedError, GrowingCache, Growth
from runtime.data.loader import Loader
from runtime.data.mixing.loss_drop import LossDrop
from runtime.data.mixture import MixtureSchedule
from runtime.data.order import LoaderError
from runtime.data.prefetch import Activity, ActivityStoppedError, during, watch
from runtime.data.sampler import DataPosition
from tests.catalogue import expect_error
from tests.runtime.data.caches import locate
from tests.runtime.data.conftest import FORMAT, VOCAB_SIZE, random_documents

LENGTH = 32
LOG = logging.getLogger(__name__)


class Building:
    """A cache with `shards_by_block` shards; `build` makes one more of its blocks visible."""

    def __init__(self, folder, shards_by_block=(2, 1, 0, 3), documents="d" * 64):
        self.folder, self.built, self.is_done, self.asked = folder, 0, False, threading.Event()
        blocks, number, made_of = [], 0, (np.arange(VOCAB_SIZE),)
        for index, count in enumerate(shards_by_block):
            records = []
            for _ in range(count):
                writer = ShardWriter(f"{folder}/shards/{number}", FORMAT)
                writer.add(random_documents(30, seed=number), num_bytes=100)
                records.append(writer.close(f"../shards/{number}"))
                number += 1
            blocks.append(records)
            finish_cache(
                f"{folder}/block-{index}", FORMAT, [records], *made_of, documents_digest=documents, may_be_empty=True
            )
        finish_cache(f"{folder}/whole", FORMAT, blocks, *made_of, documents_digest=documents)
        self.whole = TokenCache.open(f"{folder}/whole")
        self.num_blocks = len(shards_by_block)

    def build(self, blocks=1):
        self.built += blocks
        self.is_done = self.built == self.num_blocks

    def watch(self, known):
        self.asked.set()
        if self.built == known < self.num_blocks and self.grows_when_asked:
            self.build()
        blocks = [f"{self.folder}/block-{index}" for index in range(known, self.built)]
        return Growth(blocks, f"{self.folder}/whole" if self.is_done else None, self.is_being_built)

    grows_when_asked = True
    is_being_built = True

    def growing(self, **changes):
        return GrowingCache("web", self.watch, **({"give_up_seconds": 60.0, "log": LOG} | changes))


@pytest.fixture
def building(tmp_path, monkeypatch):
    monkeypatch.setattr(growing_cache, "POLL_SECONDS", 0.001)
    return Building(tmp_path)


def loader_of(cache, **changes):
    return Loader({"web": cache}, {"web": "i"}, MixtureSchedule.constant({"web": 1.0}), LENGTH, 0, **changes)


def test_batches_of_every_epoch_are_those_of_the_finished_cache(building):
    whole, growing = loader_of(building.whole), loader_of(building.growing())
    here, there, grown = DataPosition(), DataPosition(), []
    for step in range(60):
        one, here = whole.batch(here, step, 8)
        two, there = growing.batch(there, step, 8)
        assert all(np.array_equal(x, y) for x, y in zip(one, two, strict=True)) and here == there
        grown.append(building.built)
    assert grown[0] == 1 and grown[-1] == 4, "no block was read ahead"


def test_the_first_row_of_a_block_waits_for_that_block_only(building):
    plan, _ = locate(loader_of(building.whole), DataPosition(), 0, 200)
    num_rows = int(np.argmax(plan.blocks >= 1))
    growing = loader_of(building.growing())
    _, position = locate(growing, DataPosition(), 0, num_rows)
    assert building.built == 1
    locate(growing, position, 1, 1)
    assert building.built == 2


def test_a_cache_that_ends_before_its_first_row_is_refused(building):
    loader = Loader({"web": building.growing()}, {"web": "i"}, MixtureSchedule.constant({"web": 1.0}), 1 << 20, 0)
    with expect_error(LoaderError):
        loader.batch(DataPosition(), 0, 1)
    assert building.is_done


def test_a_growing_cache_resumes_with_the_same_batches(building):
    whole = loader_of(building.whole)
    _, position = whole.batch(DataPosition(), 0, 40)
    expected, _ = whole.batch(position, 1, 40)
    found, _ = loader_of(building.growing()).batch(position, 1, 40)
    assert np.array_equal(expected.tokens, found.tokens)


def test_unbuilt_batches_are_skipped_and_only_the_first_update_waits(building):
    loader = loader_of(building.growing())
    num_batches = (building.whole.block_ends[0] // LENGTH) // 4  # twice what the first block holds
    after = loader.skip_batches(DataPosition(), 0, 8, num_batches)
    assert after == loader_of(building.whole).skip_batches(DataPosition(), 0, 8, num_batches)
    assert building.built <= 1
    found, _ = loader.batch(after, 0, 8)
    assert np.array_equal(found.tokens, loader_of(building.whole).batch(after, 0, 8)[0].tokens) and building.built > 1


def test_each_epoch_reads_every_row_once_and_later_epochs_mix_the_blocks(building):
    loader, ends = loader_of(building.whole), (0, *building.whole.block_ends)
    rows = [(end - begin) // LENGTH for begin, end in itertools.pairwise(ends)]
    plan, position = locate(loader, DataPosition(), 0, sum(rows))
    assert plan.blocks.tolist() == sorted(plan.blocks.tolist())
    later, _ = locate(loader, position, 1, sum(rows))
    for found in (plan, later):
        places = set(zip(found.blocks.tolist(), found.places.tolist(), strict=True))
        assert places == {(block, place) for block, count in enumerate(rows) for place in range(count)}
        starts = found.starts - np.array(ends)[found.blocks]
        assert (starts >= 0).all() and (found.starts + LENGTH <= np.array(ends)[found.blocks + 1]).all()
    assert set(later.data_epochs.tolist()) == {1} and not np.array_equal(plan.starts, later.starts)
    orders = set()
    for step in range(1, 8):
        plan, position = locate(loader, position, step, sum(rows))
        orders.add(tuple(dict.fromkeys(plan.blocks.tolist())))
    assert len(orders) > 2, "each epoch has its own order of blocks"


def test_blocks_of_one_size_have_different_orders(tmp_path):
    records = []
    for number in range(3):
        writer = ShardWriter(f"{tmp_path}/shards/{number}", FORMAT)
        writer.add([np.full(LENGTH - 1, 7)] * 50 + [np.full(LENGTH - 3, 7)], num_bytes=1)
        records.append([writer.close(f"../shards/{number}")])
    finish_cache(f"{tmp_path}/whole", FORMAT, records, np.arange(VOCAB_SIZE))
    plan, _ = locate(loader_of(TokenCache.open(f"{tmp_path}/whole")), DataPosition(), 0, 150)
    orders = plan.places.reshape(3, 50).tolist()
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert all(sum(x == y for x, y in zip(one, two, strict=True)) < 10 for one, two in itertools.pairwise(orders))
    begins = plan.starts - plan.blocks * (51 * LENGTH - 2) - plan.places * LENGTH
    assert len(set(begins.tolist())) == 3, "the spare tokens of each block are cut off at another place"


def test_a_policy_that_needs_the_size_waits_for_the_end(building):
    loader = loader_of(building.growing(), policy=LossDrop(max_epochs={"web": 1e6}))
    assert building.built == 1
    locate(loader, DataPosition(), 0, 4)
    assert building.is_done


def test_a_wait_is_counted_by_its_cause_and_ends_with_its_reader(building):
    building.grows_when_asked = False
    building.build()
    loader = loader_of(building.growing())
    building.asked.clear()
    batches = loader.prefetched(DataPosition(), range(100), 8, depth=1)
    for _ in range(building.whole.block_ends[0] // LENGTH // 8):
        next(batches)
    assert building.asked.wait(60)
    before = batches._activity.seconds()
    building.asked.clear()
    assert building.asked.wait(60)
    after = batches._activity.seconds()
    assert after["cache not built yet"] > before["cache not built yet"]
    batches.close()
    assert not batches._thread.is_alive()


def test_an_abandoned_cache_ends_the_wait(building, caplog):
    building.grows_when_asked = building.is_being_built = False
    building.build()
    growing = building.growing(give_up_seconds=0.01)
    with expect_error(CacheAbandonedError):
        growing.grow()
    assert [record.args[:2] for record in caplog.records] == [("web", 2)]


def test_a_stop_releases_the_waiting_reader(building):
    building.grows_when_asked = False
    building.build()
    activity = Activity()
    activity.stopped.set()
    with ThreadPoolExecutor(1, initializer=watch, initargs=(activity,)) as pool, pytest.raises(ActivityStoppedError):
        pool.submit(building.growing().grow).result()


def test_a_finished_cache_of_other_blocks_is_refused(building, tmp_path):
    (tmp_path / "other").mkdir()
    other = Building(tmp_path / "other", (1, 1, 1, 1))
    growing = building.growing()
    building.folder, building.built, building.is_done = other.folder, 4, True
    with expect_error(CacheError):
        growing.grow()


@pytest.mark.parametrize("made", [lambda regrouped, _: regrouped, lambda _, rewritten: rewritten])
def test_a_finished_cache_of_the_same_shards_in_other_blocks_or_of_other_tokens_is_refused(building, made):
    """There are as many rows, but of other tokens or in another order."""
    growing = building.growing()
    shards = list(building.whole.shards)
    other_tokens = dataclasses.replace(shards[5], tokens_crc32c="00000000")
    blocks = made(
        [shards[:1], shards[1:3], [], shards[3:]], [shards[:2], shards[2:3], [], [*shards[3:5], other_tokens]]
    )
    finish_cache(f"{building.folder}/whole", FORMAT, blocks, np.arange(VOCAB_SIZE), documents_digest="d" * 64)
    with expect_error(CacheError):
        locate(loader_of(growing, policy=LossDrop(max_epochs={"web": 1e6})), DataPosition(), 0, 1)


def test_a_block_of_other_documents_is_refused(building, tmp_path):
    (tmp_path / "other").mkdir()
    other = Building(tmp_path / "other", documents="e" * 64)
    growing = building.growing()
    building.folder = other.folder
    with expect_error(CacheError):
        growing.grow()


def test_a_growing_cache_needs_a_first_block(building):
    building.grows_when_asked = False
    with expect_error(CacheError):
        building.growing()


@given(parts=st.lists(st.sampled_from(["losses of earlier updates", "store read"]), max_size=6))
def test_seconds_of_an_activity_add_up_to_the_time_that_passed(parts):
    activity = Activity()
    watch(activity)
    began = activity.seconds()
    for cause in parts:
        with during(cause), during("cache not built yet"):
            pass
    ended = activity.seconds()
    assert set(ended) <= {"drawing", "cache not built yet", *parts}
    assert all(ended[cause] >= began.get(cause, 0.0) for cause in ended)
