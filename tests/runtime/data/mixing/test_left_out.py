"""Batches that are left out under a policy: one that learns stands still, and a source that ends is used up by them."""

import dataclasses

import pytest

from runtime.data.loader import DataPosition, Loader, LoaderError
from runtime.data.mixing.fixed import Proportional
from runtime.data.mixing.loss_drop import LossDrop
from runtime.data.mixing.odm_paper import OdmPaper
from runtime.data.mixing.policy import Seen
from runtime.data.mixture import MixtureSchedule
from tests.catalogue import expect_error

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
    """The first source is the easier one."""
    return {f"identity-{name}": Seen(4, 100, 100.0 * loss, 0.0) for name, loss in (("a", 1.0), ("b", 3.0))}


def learned(loader, steps=6):
    position = DataPosition()
    for step in range(steps):
        _, position = loader.plan(position, step, BATCH, feedback=losses)
    return position


POLICIES = [OdmPaper(alpha=0.9, lag_steps=2), LossDrop(warmup_steps=1, window_updates=8, lag_steps=2)]


@pytest.mark.parametrize("policy", POLICIES, ids=["drawn by chance", "allotted"])
def test_a_policy_that_learns_asks_for_no_loss_and_goes_on_as_if_nothing_had_been_left_out(caches, policy):
    loader = loader_of(caches, policy)
    position = learned(loader)
    after = loader.left_out(position, 6, BATCH, 50)
    assert (after.mixer, sum(after.consumed.values())) == (position.mixer, (6 + 50) * BATCH)
    one, other = (loader.plan(here, 6, BATCH, feedback=losses)[1] for here in (position, after))
    assert (one.shares, one.mixer) == (other.shares, other.mixer)


def test_it_leaves_out_by_the_shares_that_it_has_and_not_by_those_of_the_mixture(caches):
    loader = loader_of(caches, POLICIES[0])
    position = learned(loader)
    share = loader.left_out(position, 6, BATCH, 1).shares["identity-b"] / 2**60
    given = loader.left_out(position, 6, BATCH, 200).consumed["identity-b"] - position.consumed["identity-b"]
    assert abs(share - 0.5) > 0.01
    assert given == pytest.approx(share * 200 * BATCH, abs=2)


def test_a_policy_that_has_not_begun_begins_with_the_first_update(caches):
    loader = loader_of(caches, POLICIES[0])
    after = loader.left_out(DataPosition(), 9, BATCH, 50)
    assert after.mixer is None and after.consumed == {"identity-a": 200, "identity-b": 200}
    mixer = loader.plan(after, 9, BATCH)[1].mixer
    assert mixer is not None and mixer.begin_step == 9


def test_by_size_is_by_size(caches):
    loader = loader_of(caches, Proportional())
    taken = DataPosition()
    for _ in range(20):
        _, taken = loader.plan(taken, 3, BATCH)
    assert loader.left_out(DataPosition(), 3, BATCH, 20) == taken


def test_what_is_left_out_uses_a_source_up_and_more_than_all_of_them_have_is_refused(caches):
    sizes = {name: cache.num_tokens // LENGTH for name, cache in caches.items()}
    loader = loader_of(caches, LossDrop(max_epochs={"b": 1.0}, lag_steps=2))
    after = loader.left_out(DataPosition(), 0, BATCH, 40)
    assert after.consumed == {"identity-a": 40 * BATCH - sizes["b"], "identity-b": sizes["b"]}
    assert loader.exhausted(after) == {"b"}
    plan, _ = loader.plan(after, 0, BATCH)
    assert set(plan.source_index.tolist()) == {0}
    both = loader_of(caches, LossDrop(max_epochs={"a": 1.0, "b": 1.0}, lag_steps=2))
    most = sum(sizes.values()) // BATCH
    both.left_out(DataPosition(), 0, BATCH, most)
    with expect_error(ValueError):
        both.left_out(DataPosition(), 0, BATCH, most + 1)


def test_beside_a_replayed_log_and_under_another_packing_nothing_is_left_out(caches):
    replaying = loader_of(caches, Proportional(), replay=lambda step: {"identity-a": BATCH})
    with expect_error(LoaderError):
        replaying.left_out(DataPosition(), 0, BATCH, 1)
    loader = loader_of(caches, Proportional())
    position = dataclasses.replace(loader.left_out(DataPosition(), 0, BATCH, 1), packing="whole_documents")
    with expect_error(LoaderError):
        loader.left_out(position, 1, BATCH, 1)
