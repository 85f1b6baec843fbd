"""Acceptances make codes equivalent in both directions, along chains, and until they are revoked."""

from pathlib import Path

from marin_dag.identity.diff import CodeChanged
from marin_dag.ledger.acceptances import Acceptances
from marin_dag.store.prefix import open_store
from marin_dag.store.store import StoreError
from tests.catalogue import expect_error

DIGEST = "ab" * 32


def test_codes_are_equivalent_in_both_directions_and_along_chains_until_revoked(tmp_path: Path):
    acceptances = Acceptances(open_store(str(tmp_path)))

    def path(old: str, new: str) -> list[str]:
        return [item.because for item in acceptances.path(DIGEST, old, new)]

    for old, new in ("ab", "cb", "cd"):
        acceptances.accept(DIGEST, "web", CodeChanged(("f",), (), (), old, new), f"{old}{new}")
    assert (path("a", "b"), path("b", "a"), path("a", "d")) == (["ab"], ["ab"], ["ab", "cb", "cd"])
    assert path("a", "x") == [] and acceptances.path("cd" * 32, "a", "b") == ()
    (middle,) = (item for item in acceptances.in_force(DIGEST) if item.because == "cb")
    acceptances.revoke(middle, "it was wrong")
    assert (path("a", "d"), path("d", "c")) == ([], ["cd"])
    acceptances.accept(DIGEST, "web", CodeChanged(("f",), (), (), "b", "c"), "right after all")
    assert path("d", "a") == ["cd", "right after all", "ab"]
    assert len(acceptances.log(DIGEST)) == 5


def test_an_unreadable_acceptance_is_named_with_its_fix(tmp_path: Path):
    store = open_store(str(tmp_path))
    store.create(f"accepted/{DIGEST}/000000.json", b"{}")
    with expect_error(StoreError):
        Acceptances(store).in_force(DIGEST)
