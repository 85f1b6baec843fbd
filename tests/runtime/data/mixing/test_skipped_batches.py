"""Skipped batches under a mixing policy: a policy does not learn from them, and they use up sources."""

import dataclasses

import pytest

from runtime.data.loader import Loader
from runtime.data.mixing.loss_drop import LossDrop
from runtime.data.mixing.odm import OdmPaper
from runtime.data.mixing.policies import Static
from runtime.data.mixing.policy import Seen
from runtime.data.mixture import MixtureSchedule
from runtime.data.order import LoaderError
from runtime.data.sampler import DataPosition
from tests.catalogue import expect_error
from tests.runtime.data.caches import locate

LENGTH, BATCH = 32, 8
IDENTITIES = {"a": "identity-a", "b": "identity-b"}


@pytest.fixture(scope="module")
def caches(make_cache):
    return {"a": make_cache(200, seed=1), "b": make_cache(60, seed=2)}


def loader_of(caches, policy, **changes):
    return Loader(
        caches, IDENTITIES, MixtureSchedule.constant({"a": 1.0, "b": 1.0}), LENGTH, 0, policy=policy, **changes
    )


def losses(step):
    """Return losses of which the first source has the lower one."""
    return {f"identity-{name}": Seen(4, 100, 100.0 * loss, 0.0) for name, loss in (("a", 1.0), ("b", 3.0))}


def learned(loader, steps=6):
    position = DataPosition()
    for step in range(steps):
        _, position = locate(loader, position, step, BATCH, feedback=losses)
    return position


POLICIES = [OdmPaper(alpha=0.9, lag_steps=2), LossDrop(warmup_steps=1, window_updates=8, lag_steps=2)]


@pytest.mark.parametrize("policy", POLICIES, ids=["drawn by chance", "allotted"])
def test_a_learning_policy_asks_for_no_loss_of_skipped_batches(caches, policy):
    loader = loader_of(caches, policy)
    position = learned(loader)
    after = loader.skip_batches(position, 6, BATCH, 50)
    assert (after.mixer, sum(after.consumed.values())) == (position.mixer, (6 + 50) * BATCH)
    one, other = (locate(loader, here, 6, BATCH, feedback=losses)[1] for here in (position, after))
    assert (one.shares, one.mixer) == (other.shares, other.mixer)


def test_batches_are_skipped_by_the_learned_shares(caches):
    loader = loader_of(caches, POLICIES[0])
    position = learned(loader)
    share = loader.skip_batches(position, 6, BATCH, 1).shares["identity-b"] / 2**60
    given = loader.skip_batches(position, 6, BATCH, 200).consumed["identity-b"] - position.consumed["identity-b"]
    assert abs(share - 0.5) > 0.01
    assert given == pytest.approx(share * 200 * BATCH, abs=2)


def test_a_policy_begins_with_the_first_update_after_skipped_batches(caches):
    loader = loader_of(caches, POLICIES[0])
    after = loader.skip_batches(DataPosition(), 9, BATCH, 50)
    assert after.mixer is None and after.consumed == {"identity-a": 200, "identity-b": 200}
    mixer = locate(loader, after, 9, BATCH)[1].mixer
    assert mixer is not None and mixer.begin_step == 9


def test_skipped_batches_use_up_sources_and_cannot_exceed_all_of_them(caches):
    sizes = {name: cache.num_tokens // LENGTH for name, cache in caches.items()}
    loader = loader_of(caches, LossDrop(max_epochs={"b": 1.0}, lag_steps=2))
    after = loader.skip_batches(DataPosition(), 0, BATCH, 40)
    assert after.consumed == {"identity-a": 40 * BATCH - sizes["b"], "identity-b": sizes["b"]}
    assert loader.exhausted(after) == {"b"}
    plan, _ = locate(loader, after, 0, BATCH)
    assert set(plan.source_index.tolist()) == {0}
    both = loader_of(caches, LossDrop(max_epochs={"a": 1.0, "b": 1.0}, lag_steps=2))
    most = sum(sizes.values()) // BATCH
    both.skip_batches(DataPosition(), 0, BATCH, most)
    with expect_error(ValueError):
        both.skip_batches(DataPosition(), 0, BATCH, most + 1)


def test_a_position_of_another_length_skips_nothing(caches):
    loader = loader_of(caches, Static())
    position = dataclasses.replace(loader.skip_batches(DataPosition(), 0, BATCH, 1), sequence_length=2 * LENGTH)
    with expect_error(LoaderError):
        loader.skip_batches(position, 1, BATCH, 1)
