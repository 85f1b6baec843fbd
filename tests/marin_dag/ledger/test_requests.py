"""Requests and replies as objects of a store."""

from pathlib import Path

import pytest

from marin_dag.ledger.requests import PUBLISH, REPLY, REQUESTS, STOP, Requests
from marin_dag.store.local import LocalStore
from marin_dag.store.prefix import open_store
from tests.catalogue import check_message


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "runs"))


def test_a_reply_that_cannot_be_read_counts_as_none_and_is_named(store: LocalStore) -> None:
    requests = Requests(store)
    request = requests.send("a" * 64, "step", STOP)
    path = f"{REQUESTS}/{'a' * 64}/{request.id}{REPLY}"
    store.create(path, b"{")
    assert requests.reply_to(request) is None
    assert list(requests.damaged) == [path]
    check_message(requests.damaged[path].replace(request.id, "<id>").replace(store.prefix, "<prefix>"))


def test_a_request_that_cannot_be_read_is_named_and_hides_no_other(store: LocalStore) -> None:
    requests = Requests(store)
    path = f"{REQUESTS}/{'a' * 64}/20200101-by-hand.json"
    store.create(path, b"save")
    request = requests.send("a" * 64, "step", STOP)
    assert requests.of("a" * 64) == [request]
    assert list(requests.damaged) == [path]
    check_message(requests.damaged[path].replace(store.prefix, "<prefix>"))


def test_a_reason_has_one_printable_line_without_secrets(store: LocalStore) -> None:
    reason = "see https://anna:hunter2@host/x\n\x1b[31mred\x1b[0m  and more"
    request = Requests(store).send("a" * 64, "step", STOP, reason=reason)
    assert "hunter2" not in request.reason and request.reason.endswith(" [31mred[0m and more")
    assert request.reason.isprintable()


@pytest.mark.parametrize("where", ["a folder", "a bucket"])
def test_requests_stay_in_any_store_until_their_fork_is_dropped_without_a_reply(
    where: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    prefix = str(tmp_path) if where == "a folder" else f"gs://{request.getfixturevalue('gcs_bucket')}/{tmp_path.name}"
    requests = Requests(open_store(prefix))
    save = requests.send("a" * 64, "step", "save", reason="now")
    publish = [requests.send("b" * 64, "other", PUBLISH, milestone=at, fork="a fork") for at in (3, 5)]
    assert requests.of("a" * 64) == [save] and requests.of("b" * 64, known={publish[0].id}) == publish[1:]
    assert {each.id for each in requests.of_all()} == {each.id for each in (save, *publish)}
    requests.reply(publish[0], "an attempt", "it will")
    requests.reply(publish[0], "another", "never")
    reply = requests.reply_to(publish[0])
    assert reply is not None and (reply.attempt, reply.text) == ("an attempt", "it will")
    assert requests.replied("b" * 64) == {publish[0].id} and requests.wanted_milestones("b" * 64) == {3, 5}
    requests.withdraw("a fork")
    assert requests.of_all() == [save, publish[0]], "a request with a reply stays"
