"""Pins down: each gate refuses the cache that it is for, says what to look at, and is silent on a sound one."""

import dataclasses
import re

import pytest

from runtime.data.gates import GateError, GateLimits, ShardCounts, ShardWritten, Tally, findings, refuse_bad_cache
from tests.catalogue import expect_error

SOUND = ShardCounts(
    num_documents=100,
    num_bytes=4_000,
    num_characters=3_900,
    num_tokens=1_000,
    token_bytes=4_000,
    num_unknown=0,
    num_replacement=1,
    num_empty_documents=0,
    num_eos=100,
    fingerprint="1000:ab",
)


def written(shard, name="part-0", **changes):
    """The shard as whoever wrote it counted it."""
    return ShardWritten(name, **({"num_documents": shard.num_documents, "num_bytes": shard.num_bytes} | changes))


def tally_of(*shards):
    return Tally((shard, written(shard, f"part-{number}")) for number, shard in enumerate(shards))


def messages(found):
    return {finding.gate: finding.message for finding in found}


def fails(*shards, limits=None):
    return messages(findings(tally_of(*shards), limits or GateLimits()))


def test_a_sound_cache_passes():
    other = dataclasses.replace(SOUND, fingerprint="1000:cd")
    assert fails(SOUND, other, ShardCounts()) == {}
    refuse_bad_cache(tally_of(SOUND), GateLimits(), name="tokenize/web")


@pytest.mark.parametrize(
    ("gate", "change", "look_at"),
    [
        ("min_bytes_per_token", {"num_tokens": 3_900}, "1.03 bytes a token .* text is binary"),
        ("max_bytes_per_token", {"num_tokens": 100}, "40.00 bytes a token .*truncation"),
        ("max_byte_loss_share", {"token_bytes": 3_999}, "1 of 4000 bytes .*normalizer"),
        ("max_byte_loss_share", {"token_bytes": 4_100}, "100 of 4000 bytes"),
        ("max_eos_error_share", {"num_eos": 99}, "1 of 100 documents have no EOS in its place, .*99 were read back"),
        ("max_eos_error_share", {"num_without_eos": 2}, "2 of 100 documents have no EOS .*special tokens"),
        ("max_bos_error_share", {"num_bos": 3}, "3 of 100 documents have no BOS in its place, or have it elsewhere"),
        ("max_unknown_share", {"num_unknown": 1}, "1 of 1000 tokens are the unknown token .* byte-level"),
        ("max_replacement_share", {"num_replacement": 2}, r"2 of 3900 characters are U\+FFFD .* charset"),
        ("max_empty_document_share", {"num_empty_documents": 1}, "1 of 100 documents have no text .* filter"),
    ],
)
def test_a_cache_that_fails_one_gate_is_refused_by_its_name(gate, change, look_at):
    found = fails(dataclasses.replace(SOUND, **change))
    assert list(found) == [gate]
    assert re.search(look_at, found[gate])


@pytest.mark.parametrize("change", [{"num_documents": 101}, {"num_bytes": 4_001}])
def test_documents_or_bytes_that_were_lost_on_the_way_are_refused_and_the_shard_named(change):
    tally = Tally([(SOUND, written(SOUND)), (SOUND, written(SOUND, "part-1", **change))])
    found = messages(findings(tally, GateLimits(max_duplicate_shards=1)))
    assert list(found) == ["lost_documents"]
    assert "1 of 2 shards" in found["lost_documents"] and "verify that step" in found["lost_documents"]
    assert "of part-1 100 documents of 4000 bytes were read" in found["lost_documents"]


def test_what_one_shard_lost_is_not_made_good_by_what_another_has_too_much():
    more = dataclasses.replace(SOUND, num_documents=101, num_eos=101, fingerprint="1010:ef")
    tally = Tally([(SOUND, written(more, "part-0")), (more, written(SOUND, "part-1"))])
    assert "2 of 2 shards" in messages(findings(tally, GateLimits()))["lost_documents"]


def test_documents_without_the_bos_that_their_tokenizer_has_are_refused():
    """A tokenizer backend once dropped BOS from all caches of a month."""
    found = findings(tally_of(SOUND), GateLimits(), has_bos=True)
    assert [finding.gate for finding in found] == ["max_bos_error_share"]
    assert "100 of 100 documents have no BOS in its place" in found[0].message
    assert not findings(tally_of(dataclasses.replace(SOUND, num_bos=100)), GateLimits(), has_bos=True)


def test_the_same_shard_twice_is_refused_and_the_pair_named():
    assert "shards [('part-0', 'part-1')] have the same tokens" in fails(SOUND, SOUND)["max_duplicate_shards"]
    assert fails(SOUND, SOUND, limits=GateLimits(max_duplicate_shards=1)) == {}


def test_a_cache_mostly_of_empty_shards_is_refused():
    assert "2 of 3 shards have no documents" in fails(SOUND, ShardCounts(), ShardCounts())["max_empty_shard_share"]


def test_the_first_shards_of_a_cache_do_not_tell_how_many_are_empty_and_tell_everything_else():
    first = tally_of(ShardCounts())
    refuse_bad_cache(first, GateLimits(), is_whole=False, name="tokenize/web")
    with expect_error(GateError):
        refuse_bad_cache(first, GateLimits(), name="tokenize/web")
    with expect_error(GateError):
        refuse_bad_cache(
            tally_of(dataclasses.replace(SOUND, num_unknown=5)), GateLimits(), is_whole=False, name="tokenize/web"
        )


def test_the_error_has_every_finding_and_the_steps_name():
    bad = dataclasses.replace(SOUND, num_unknown=5, token_bytes=0)
    with expect_error(GateError):
        refuse_bad_cache(tally_of(bad), GateLimits(), name="tokenize/web")


def test_no_shards_at_all_fail_nothing_that_divides_by_them():
    assert fails() == {}


@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_a_limit_below_zero_or_not_a_number_is_refused(value):
    with expect_error(ValueError):
        GateLimits(max_unknown_share=value)
