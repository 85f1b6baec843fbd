"""Each gate refuses the cache that it is for, says where to look, and passes a sound one."""

import dataclasses

import pytest

from runtime.data.gates import GateError, GateLimits, ShardCounts, ShardWritten, Tally, check_gates, failed_gates
from tests.catalogue import check_message, expect_error

SOUND = ShardCounts(
    num_documents=100,
    num_bytes=4_000,
    num_characters=3_900,
    num_tokens=1_000,
    token_bytes=4_000,
    num_unknown=0,
    num_replacement=1,
    num_empty_documents=0,
    fingerprint="1000:ab",
)


def written(shard, name="part-0", **changes):
    """Return the counts of the step that wrote the shard."""
    return ShardWritten(name, **({"num_documents": shard.num_documents, "num_bytes": shard.num_bytes} | changes))


def tally_of(*shards):
    return Tally((shard, written(shard, f"part-{number}")) for number, shard in enumerate(shards))


def fails(*shards, limits=None):
    return failed_gates(tally_of(*shards), limits or GateLimits())


def test_a_sound_cache_passes():
    other = dataclasses.replace(SOUND, fingerprint="1000:cd")
    assert fails(SOUND, other, ShardCounts()) == {}
    check_gates(tally_of(SOUND), GateLimits(), name="tokenize/web")


@pytest.mark.parametrize(
    ("gate", "change"),
    [
        ("min_bytes_per_token", {"num_tokens": 3_900}),
        ("max_bytes_per_token", {"num_tokens": 100}),
        ("max_byte_loss_share", {"token_bytes": 3_999}),
        ("max_byte_loss_share", {"token_bytes": 4_100}),
        ("max_unknown_share", {"num_unknown": 1}),
        ("max_replacement_share", {"num_replacement": 2}),
        ("max_empty_document_share", {"num_empty_documents": 1}),
    ],
)
def test_a_cache_that_fails_one_gate_is_refused_by_its_name(gate, change):
    found = fails(dataclasses.replace(SOUND, **change))
    assert list(found) == [gate]
    check_message(found[gate])


@pytest.mark.parametrize("change", [{"num_documents": 101}, {"num_bytes": 4_001}])
def test_lost_documents_or_bytes_are_refused_with_their_shard(change):
    tally = Tally([(SOUND, written(SOUND)), (SOUND, written(SOUND, "part-1", **change))])
    found = failed_gates(tally, GateLimits(max_duplicate_shards=1))
    assert list(found) == ["lost_documents"]
    check_message(found["lost_documents"])


def test_a_loss_of_one_shard_is_not_offset_by_an_excess_of_another():
    more = dataclasses.replace(SOUND, num_documents=101, fingerprint="1010:ef")
    tally = Tally([(SOUND, written(more, "part-0")), (more, written(SOUND, "part-1"))])
    assert tally.num_lossy_shards == 2
    check_message(failed_gates(tally, GateLimits())["lost_documents"])


def test_the_same_shard_twice_is_refused_and_the_pair_named():
    check_message(fails(SOUND, SOUND)["max_duplicate_shards"])
    assert fails(SOUND, SOUND, limits=GateLimits(max_duplicate_shards=1)) == {}


def test_a_cache_mostly_of_empty_shards_is_refused():
    check_message(fails(SOUND, ShardCounts(), ShardCounts())["max_empty_shard_share"])


def test_empty_shards_count_only_in_a_whole_cache():
    first = tally_of(ShardCounts())
    check_gates(first, GateLimits(), is_whole=False, name="tokenize/web")
    with expect_error(GateError):
        check_gates(first, GateLimits(), name="tokenize/web")
    with expect_error(GateError):
        check_gates(
            tally_of(dataclasses.replace(SOUND, num_unknown=5)), GateLimits(), is_whole=False, name="tokenize/web"
        )


def test_the_error_has_every_finding_and_the_name_of_the_step():
    bad = dataclasses.replace(SOUND, num_unknown=5, token_bytes=0)
    with expect_error(GateError) as raised:
        check_gates(tally_of(bad), GateLimits(), name="tokenize/web")
    assert isinstance(raised.value, GateError)
    assert raised.value.gates == ("max_unknown_share", "max_byte_loss_share")


def test_a_cache_without_shards_passes():
    assert fails() == {}


@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_a_limit_below_zero_or_not_a_number_is_refused(value):
    with expect_error(ValueError):
        GateLimits(max_unknown_share=value)
