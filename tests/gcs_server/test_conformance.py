"""Conformance of the fake Cloud Storage with the documentation.

Google's own testbench (googleapis/storage-testbench) is no oracle for these scripts. It has neither pages nor batches,
appends a chunk that is sent again, and takes a chunk that leaves a gap. Its errors are texts within texts, 412 for a
wrong checksum. `GcsStore` bears these (test_store_faults.py).
"""

import json
import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.gcs_server.control import GcsControl
from tests.gcs_server.server import GcsServer
from tests.gcs_server.wire import Wire, crc32c

UNIT = 256 * 1024
Script = Callable[[Wire], list[Any]]


CASES: list[tuple[Script, list[Any]]] = []


def answers(*expected: Any) -> Callable[[Script], Script]:
    """Declare a script and its answers."""

    def declare(script: Script) -> Script:
        CASES.append((script, list(expected)))
        return script

    return declare


@pytest.fixture(scope="module")
def server() -> Iterator[GcsServer]:
    with GcsServer() as running:
        yield running


# Declared below; parametrised when the module is whole.
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "script" in metafunc.fixturenames:
        metafunc.parametrize(("script", "expected"), CASES, ids=[script.__name__ for script, _ in CASES])


def test_ours_answers_as_documented(server: GcsServer, script: Script, expected: list[Any]):
    assert script(Wire(server.url, f"b-{uuid.uuid4().hex}")) == expected


# Uploads


@answers(200, "11", crc32c(b"hello world"), "XrY7u+Ae7tCTyyK7j1rNww==", "1", b"hello world", "text/plain")
def a_media_upload_is_read_back_with_its_checksums(gcs: Wire) -> list[Any]:
    made = gcs.media("a/b", b"hello world")
    resource = made.json
    got = gcs.read("a/b")
    fields = (resource[field] for field in ("size", "crc32c", "md5Hash", "metageneration"))
    return [made.status, *fields, got.body, got.headers["content-type"]]


@answers(*([200, b"\x00\r\n\xffbinary\r", "text/x-own", {"k": "v"}] * 4))
def a_multipart_upload_takes_either_line_end_and_either_boundary(gcs: Wire) -> list[Any]:
    seen: list[Any] = []
    for line_end in (b"\r\n", b"\n"):
        for boundary in ('"==b=="', "plain"):
            sent = {"line_end": line_end, "boundary": boundary, "resource": {"metadata": {"k": "v"}}}
            made = gcs.multipart("x", b"\x00\r\n\xffbinary\r", **sent)  # type: ignore[arg-type]
            seen += [made.status, gcs.read("x").body, made.json["contentType"], made.json["metadata"]]
    return seen


@answers(400, 400, 200, 404)
def an_upload_whose_checksum_is_wrong_makes_nothing(gcs: Wire) -> list[Any]:
    wrong, right = {"crc32c": crc32c(b"other")}, {"crc32c": crc32c(b"data")}
    statuses = [
        gcs.multipart("bad", b"data", resource=wrong).status,
        gcs.multipart("bad", b"data", resource={"md5Hash": "XrY7u+Ae7tCTyyK7j1rNww=="}).status,
        gcs.multipart("good", b"data", resource=right).status,
    ]
    return [*statuses, gcs.read("bad").status]


@answers(400, 404)
def an_upload_without_a_name_or_to_no_bucket_is_refused(gcs: Wire) -> list[Any]:
    nowhere = Wire(gcs.url, gcs.bucket)
    nowhere.bucket = "there-is-no-such-bucket"
    return [gcs.media("", b"x").status, nowhere.media("x", b"x").status]


@answers(True, True, "1")
def each_upload_is_a_newer_generation(gcs: Wire) -> list[Any]:
    first, second, third = (gcs.media("x", text).json for text in (b"1", b"2", b"2"))
    numbers = [int(resource["generation"]) for resource in (first, second, third)]
    return [numbers == sorted(set(numbers)), first["etag"] != second["etag"], third["metageneration"]]


# Preconditions of uploads


@answers(200, 412, b"first")
def a_media_upload_creates_only_once(gcs: Wire) -> list[Any]:
    first = gcs.media("x", b"first", ifGenerationMatch=0)
    return [first.status, gcs.media("x", b"second", ifGenerationMatch=0).status, gcs.read("x").body]


@answers(200, 412, 200, 412, b"third")
def a_multipart_upload_creates_once_and_replaces_what_it_names(gcs: Wire) -> list[Any]:
    first = gcs.multipart("x", b"first", ifGenerationMatch=0)
    again = gcs.multipart("x", b"second", ifGenerationMatch=0)
    third = gcs.multipart("x", b"third", ifGenerationMatch=first.json["generation"])
    stale = gcs.multipart("x", b"fourth", ifGenerationMatch=first.json["generation"])
    return [first.status, again.status, third.status, stale.status, gcs.read("x").body]


@answers(412, "conditionNotMet", 404)
def a_generation_that_never_was_is_a_failed_precondition(gcs: Wire) -> list[Any]:
    reply = gcs.multipart("x", b"1", ifGenerationMatch=12345)
    return [reply.status, reply.json["error"]["errors"][0]["reason"], gcs.read("x").status]


@answers(304, 304, 200, b"2")
def an_upload_may_demand_another_generation(gcs: Wire) -> list[Any]:
    missing = gcs.multipart("x", b"1", ifGenerationNotMatch=0)
    first = gcs.multipart("x", b"1")
    same = gcs.multipart("x", b"3", ifGenerationNotMatch=first.json["generation"])
    other = gcs.multipart("x", b"2", ifGenerationNotMatch=1)
    return [missing.status, same.status, other.status, gcs.read("x").body]


@answers(412, 200)
def an_upload_may_demand_a_metageneration(gcs: Wire) -> list[Any]:
    gcs.media("x", b"1")
    wrong = gcs.multipart("x", b"2", ifMetagenerationMatch=7)
    return [wrong.status, gcs.multipart("x", b"2", ifMetagenerationMatch=1).status]


@answers(412, 412, b"theirs")
def a_resumable_upload_creates_only_once_whenever_the_other_came(gcs: Wire) -> list[Any]:
    session = gcs.resumable("x", ifGenerationMatch=0).headers["location"]
    gcs.media("x", b"theirs")
    late = gcs.chunk(session, "0-3/4", b"mine")
    refused = gcs.resumable("x", ifGenerationMatch=0)
    if refused.status == 200:  # a server may also wait for the last chunk
        refused = gcs.chunk(refused.headers["location"], "0-3/4", b"mine")
    return [late.status, refused.status, gcs.read("x").body]


# Resumable uploads


@answers(200, 308, f"bytes=0-{UNIT - 1}", 308, f"bytes=0-{2 * UNIT - 1}", 200, True)
def a_resumable_upload_comes_in_chunks_by_put_or_post(gcs: Wire) -> list[Any]:
    data = bytes(range(256)) * 2048 + b"tail"
    start = gcs.resumable("x")
    session = start.headers["location"]
    one = gcs.chunk(session, f"0-{UNIT - 1}/*", data[:UNIT])
    two = gcs.chunk(session, f"{UNIT}-{2 * UNIT - 1}/*", data[UNIT : 2 * UNIT], "POST")
    end = gcs.chunk(session, f"{2 * UNIT}-{len(data) - 1}/{len(data)}", data[2 * UNIT :])
    seen = [start.status, one.status, one.headers["range"], two.status, two.headers["range"]]
    return [*seen, end.status, gcs.read("x").body == data]


@answers(308, 308, 200, True)
def a_chunk_that_is_sent_again_counts_once(gcs: Wire) -> list[Any]:
    data = bytes(range(256)) * 1024 + b"tail"
    session = gcs.resumable("x").headers["location"]
    statuses = [gcs.chunk(session, f"0-{UNIT - 1}/*", data[:UNIT]).status for _ in range(2)]
    end = gcs.chunk(session, f"{UNIT}-{len(data) - 1}/{len(data)}", data[UNIT:])
    return [*statuses, end.status, gcs.read("x").body == data]


@answers(200, True)
def a_last_chunk_that_is_sent_again_is_answered_again(gcs: Wire) -> list[Any]:
    session = gcs.resumable("x").headers["location"]
    first = gcs.chunk(session, "0-3/4", b"data")
    again = gcs.chunk(session, "0-3/4", b"data")
    return [again.status, first.json["generation"] == again.json["generation"]]


@answers(308, None, 308, f"bytes=0-{UNIT - 1}", 200, 200)
def a_status_query_says_how_much_is_kept(gcs: Wire) -> list[Any]:
    data = b"x" * UNIT + b"tail"
    session = gcs.resumable("x").headers["location"]
    empty = gcs.chunk(session, "*/*")
    gcs.chunk(session, f"0-{UNIT - 1}/*", data[:UNIT])
    half = gcs.chunk(session, f"*/{len(data)}")
    end = gcs.chunk(session, f"{UNIT}-{len(data) - 1}/{len(data)}", data[UNIT:])
    seen = [empty.status, empty.headers.get("range"), half.status, half.headers["range"], end.status]
    return [*seen, gcs.chunk(session, f"*/{len(data)}").status]


@answers(200, UNIT, 200, 0)
def an_upload_ends_when_its_size_is_told_at_last(gcs: Wire) -> list[Any]:
    session = gcs.resumable("x").headers["location"]
    gcs.chunk(session, f"0-{UNIT - 1}/*", b"x" * UNIT)
    end = gcs.chunk(session, f"*/{UNIT}")
    empty = gcs.chunk(gcs.resumable("empty").headers["location"], "*/0")
    return [end.status, len(gcs.read("x").body), empty.status, len(gcs.read("empty").body)]


@answers(308, f"bytes=0-{UNIT - 1}")
def of_a_chunk_that_is_not_the_last_only_whole_units_are_kept(gcs: Wire) -> list[Any]:
    session = gcs.resumable("x").headers["location"]
    reply = gcs.chunk(session, f"0-{UNIT + 9}/*", b"x" * (UNIT + 10))
    return [reply.status, reply.headers["range"]]


@answers(400, 499, 499, 404)
def a_gap_is_refused_and_a_cancelled_session_makes_nothing(gcs: Wire) -> list[Any]:
    session = gcs.resumable("x").headers["location"]
    gap = gcs.chunk(session, "10-13/14", b"late")
    cancelled = gcs.send("DELETE", session)
    after = gcs.chunk(session, "0-3/4", b"data")
    return [gap.status, cancelled.status, after.status, gcs.read("x").status]


@answers(404)
def an_upload_is_not_there_before_its_last_chunk(gcs: Wire) -> list[Any]:
    session = gcs.resumable("x").headers["location"]
    gcs.chunk(session, f"0-{UNIT - 1}/*", b"x" * UNIT)
    return [gcs.read("x").status]


# Reads


@answers(*[(206, b"2345", "bytes 2-5/10"), (206, b"789", "bytes 7-9/10"), (206, b"89", "bytes 8-9/10")])
def a_range_is_read(gcs: Wire) -> list[Any]:
    gcs.media("x", b"0123456789")
    replies = [gcs.read("x", Range=f"bytes={asked}") for asked in ("2-5", "7-", "-2")]
    return [(reply.status, reply.body, reply.headers["content-range"]) for reply in replies]


@answers((206, b"9"), (416, "bytes */10"), (416, "bytes */0"))
def a_range_past_the_end_is_cut_or_refused(gcs: Wire) -> list[Any]:
    gcs.media("x", b"0123456789")
    gcs.media("empty", b"")
    long = gcs.read("x", Range="bytes=9-100")
    past, of_nothing = gcs.read("x", Range="bytes=10-12"), gcs.read("empty", Range="bytes=0-9")
    refused = [(reply.status, reply.headers.get("content-range")) for reply in (past, of_nothing)]
    return [(long.status, long.body), *refused]


@answers(True, "1", True, "5")
def a_read_tells_generation_and_checksums_in_its_headers(gcs: Wire) -> list[Any]:
    made = gcs.media("x", b"hello").json
    headers = gcs.read("x").headers
    hashes = f"crc32c={made['crc32c']},md5={made['md5Hash']}"
    is_right = headers["x-goog-generation"] == made["generation"]
    reported = headers["x-goog-metageneration"], headers["x-goog-hash"] == hashes
    return [is_right, *reported, headers["x-goog-stored-content-length"]]


@answers(404, 404, 200, 404)
def what_is_not_there_is_not_found(gcs: Wire) -> list[Any]:
    made = gcs.media("x", b"1").json
    generation = int(made["generation"])
    return [
        gcs.read("y").status,
        gcs.send("GET", gcs.path("y")).status,
        gcs.send("GET", gcs.path("x", generation=generation)).status,
        gcs.send("GET", gcs.path("x", generation=generation + 1)).status,
    ]


@answers(200, 412, 304, 200, 412)
def a_read_may_have_preconditions(gcs: Wire) -> list[Any]:
    generation = int(gcs.media("x", b"1").json["generation"])
    queries: list[dict[str, object]] = [
        {"ifGenerationMatch": generation},
        {"ifGenerationMatch": generation + 1},
        {"ifGenerationNotMatch": generation},
        {"ifGenerationNotMatch": generation + 1},
        {"ifMetagenerationMatch": 2},
    ]
    return [gcs.send("GET", gcs.path("x", alt="media", **query)).status for query in queries]


@answers((412, 404), (304, 404), (200, 404))
def a_read_of_metadata_has_them_too_and_what_is_missing_is_missing(gcs: Wire) -> list[Any]:
    gcs.media("x", b"1")
    queries: list[dict[str, object]] = [
        {"ifGenerationMatch": 5},
        {"ifMetagenerationNotMatch": 1},
        {"ifMetagenerationMatch": 1},
    ]
    return [tuple(gcs.send("GET", gcs.path(name, **query)).status for name in ("x", "gone")) for query in queries]


@answers({"name": "x", "size": "1"}, {"items": [{"name": "x", "size": "1"}]})
def only_the_fields_that_are_asked_for_come(gcs: Wire) -> list[Any]:
    gcs.media("x", b"1")
    one = gcs.send("GET", gcs.path("x", fields="name,size"))
    return [one.json, gcs.send("GET", gcs.path("", fields="items(name,size),nextPageToken")).json]


# Deletes


@answers(204, 404, 404)
def a_delete_succeeds_once(gcs: Wire) -> list[Any]:
    gcs.media("x", b"1")
    return [gcs.send("DELETE", gcs.path("x")).status, gcs.send("DELETE", gcs.path("x")).status, gcs.read("x").status]


@answers(412, 412, 304, 200, 204, 404)
def a_delete_may_have_preconditions(gcs: Wire) -> list[Any]:
    generation = int(gcs.media("x", b"1").json["generation"])
    refused: list[dict[str, object]] = [
        {"ifGenerationMatch": generation + 1},
        {"ifMetagenerationMatch": 9},
        {"ifGenerationNotMatch": generation},
    ]
    statuses = [gcs.send("DELETE", gcs.path("x", **query)).status for query in refused]
    statuses.append(gcs.read("x").status)
    statuses.append(gcs.send("DELETE", gcs.path("x", ifGenerationMatch=generation)).status)
    return [*statuses, gcs.send("DELETE", gcs.path("x", ifGenerationMatch=generation)).status]


def _batch(gcs: Wire, line_end: str) -> list[Any]:
    for name in ("a", "b", "c/d"):
        gcs.media(name, b"1")
    lines = []
    for index, name in enumerate(("a", "c/d", "gone")):
        lines += ["--==x==", "Content-Type: application/http", "Content-Transfer-Encoding: binary"]
        lines += [f"Content-ID: <id+{index}>", "", f"DELETE {gcs.path(name)} HTTP/1.1"]
        lines += ["Content-Type: application/json", "accept: application/json", "content-length: 0", "", ""]
    body = line_end.join([*lines, "--==x==--"]).encode()
    reply = gcs.send("POST", "/batch/storage/v1", body, Content_Type='multipart/mixed; boundary="==x=="')
    codes = [int(code) for code in re.findall(rb"HTTP/1.1 (\d+)", reply.body)]
    # A delete inside a batch may answer 200 or 204.
    return [reply.status, *(200 if code == 204 else code for code in codes), gcs.names()]


@answers(200, 200, 200, 404, ["b"])
def a_batch_deletes_many_and_tells_of_each(gcs: Wire) -> list[Any]:
    return _batch(gcs, "\r\n")


@answers(200, 200, 200, 404, ["b"])
def a_batch_may_have_the_line_ends_of_gcsfs(gcs: Wire) -> list[Any]:
    return _batch(gcs, "\n")


# Listings


@answers(["a", "a/b", "a0", "b"], ["a/b"], ["a/b", "a0"])
def a_listing_is_in_order_and_bounded(gcs: Wire) -> list[Any]:
    for name in ("b", "a0", "a/b", "a"):
        gcs.media(name, b"1")
    return [gcs.names(), gcs.names(prefix="a/"), gcs.names(startOffset="a/", endOffset="b")]


@answers(["top"], ["a/", "b/"], ["a/x"], ["a/c/"])
def a_delimiter_folds_folders(gcs: Wire) -> list[Any]:
    for name in ("top", "a/x", "a/c/y", "a/c/z", "b/q"):
        gcs.media(name, b"1")
    whole = gcs.send("GET", gcs.path("", delimiter="/")).json
    inner = gcs.send("GET", gcs.path("", delimiter="/", prefix="a/")).json
    return [
        [item["name"] for item in whole["items"]],
        whole["prefixes"],
        [item["name"] for item in inner["items"]],
        inner["prefixes"],
    ]


@answers([["0", "1"], ["2", "3"], ["4"]], ["0", "1", "2", "3", "4"])
def a_listing_comes_in_pages(gcs: Wire) -> list[Any]:
    for name in "01234":
        gcs.media(name, b"1")
    pages, query = [], {"maxResults": "2"}
    while True:
        page = gcs.send("GET", gcs.path("", **query)).json
        pages.append([item["name"] for item in page["items"]])
        if "nextPageToken" not in page:
            return [pages, [name for page in pages for name in page]]
        query["pageToken"] = page["nextPageToken"]


@answers([[["a/"], []], [["b/"], []], [[], ["c"]]])
def pages_count_folders_too(gcs: Wire) -> list[Any]:
    for name in ("a/1", "a/2", "b/1", "c"):
        gcs.media(name, b"1")
    pages, query = [], {"maxResults": "1", "delimiter": "/"}
    while True:
        page = gcs.send("GET", gcs.path("", **query)).json
        pages.append([page.get("prefixes", []), [item["name"] for item in page.get("items", [])]])
        if "nextPageToken" not in page:
            return [pages]
        query["pageToken"] = page["nextPageToken"]


@answers(1000, True, 5)
def a_page_holds_at_most_a_thousand(gcs: Wire) -> list[Any]:
    for index in range(1005):
        gcs.media(f"{index:04d}", b"")
    page = gcs.send("GET", gcs.path("", maxResults=5000)).json
    rest = gcs.send("GET", gcs.path("", pageToken=page["nextPageToken"])).json
    return [len(page["items"]), "nextPageToken" in page, len(rest["items"])]


@answers(200, 200, b"2", ["n o/d:e?#[x]%2F\u00e9", "x", "x/y"])
def names_may_hold_what_they_like_and_be_each_others_folders(gcs: Wire) -> list[Any]:
    statuses = [gcs.media("x", b"1").status, gcs.media("x/y", b"2").status]
    gcs.multipart("n o/d:e?#[x]%2F\u00e9", b"3")
    return [*statuses, gcs.read("x/y").body, gcs.names()]


# Copies


@answers(200, True, b"data", "text/plain", True)
def a_rewrite_makes_the_same_bytes(gcs: Wire) -> list[Any]:
    made = gcs.media("x", b"data").json
    reply = gcs.send("POST", gcs.path("x", f"/rewriteTo/b/{gcs.bucket}/o/d%2Fy"), b"")
    copied = reply.json["resource"]
    is_newer = int(copied["generation"]) > int(made["generation"])
    return [reply.status, reply.json["done"], gcs.read("d/y").body, copied["contentType"], is_newer]


@answers(404, 412, 200, 412, b"1")
def a_rewrite_may_have_preconditions_on_both_ends(gcs: Wire) -> list[Any]:
    gcs.media("x", b"1")
    gcs.media("y", b"2")

    def rewrite(source: str, target: str, **query: object) -> int:
        more = f"/rewriteTo/b/{gcs.bucket}/o/{target}"
        return gcs.send("POST", gcs.path(source, more, **query), b"").status

    return [
        rewrite("gone", "z"),
        rewrite("x", "y", ifGenerationMatch=0),
        rewrite("x", "z", ifGenerationMatch=0),
        rewrite("x", "y", ifSourceGenerationMatch=5),
        gcs.read("z").body,
    ]


@answers(False, True, "1048576", True, True)
def a_long_rewrite_takes_several_calls(gcs: Wire) -> list[Any]:
    data = b"x" * (1 << 20) + b"tail"
    gcs.media("x", data)
    more = f"/rewriteTo/b/{gcs.bucket}/o/y"
    first = gcs.send("POST", gcs.path("x", more, maxBytesRewrittenPerCall=1 << 20), b"").json
    query = {"maxBytesRewrittenPerCall": 1 << 20, "rewriteToken": first.get("rewriteToken", "")}
    second = gcs.send("POST", gcs.path("x", more, **query), b"").json
    seen = [first["done"], "resource" not in first, first["totalBytesRewritten"], second["done"]]
    return [*seen, gcs.read("y").body == data]


@answers(200, b"data")
def a_copy_makes_the_same_bytes(gcs: Wire) -> list[Any]:
    gcs.media("x", b"data")
    return [gcs.send("POST", gcs.path("x", f"/copyTo/b/{gcs.bucket}/o/y"), b"{}").status, gcs.read("y").body]


@answers(200, b"data", 404)
def a_move_leaves_nothing_behind(gcs: Wire) -> list[Any]:
    gcs.media("x", b"data")
    return [gcs.send("POST", gcs.path("x", "/moveTo/o/y"), b"").status, gcs.read("y").body, gcs.read("x").status]


@answers(200, b"abc", crc32c(b"abc"))
def a_compose_joins_its_sources(gcs: Wire) -> list[Any]:
    for name in "abc":
        gcs.media(name, name.encode())
    body = json.dumps({"sourceObjects": [{"name": name} for name in "abc"], "destination": {}}).encode()
    reply = gcs.send("POST", gcs.path("all", "/compose"), body)
    return [reply.status, gcs.read("all").body, reply.json["crc32c"]]


@answers(412, 404, 412, 400, 3, False)
def a_compose_may_have_preconditions_and_says_of_how_many_it_is_made(gcs: Wire) -> list[Any]:
    for name in "abc":
        gcs.media(name, name.encode())

    def compose(*sources: dict[str, Any], **query: object) -> Any:
        body = json.dumps({"sourceObjects": sources, "destination": {}}).encode()
        return gcs.send("POST", gcs.path("all", "/compose", **query), body)

    stale = compose({"name": "a", "objectPreconditions": {"ifGenerationMatch": "5"}})
    gone = compose({"name": "a"}, {"name": "gone"})
    compose({"name": "a"})
    exists = compose({"name": "a"}, ifGenerationMatch=0)
    many = compose(*[{"name": "a"}] * 33)
    made = compose({"name": "a"}, {"name": "b"}, {"name": "c"}).json
    refused = [stale.status, gone.status, exists.status, many.status]
    return [*refused, made["componentCount"], "md5Hash" in made]


# Metadata and buckets


@answers(200, "2", True, {"b": "2", "c": "3"}, 412)
def a_patch_changes_metadata_alone(gcs: Wire) -> list[Any]:
    made = gcs.multipart("x", b"1", resource={"metadata": {"a": "1", "b": "2"}}).json
    body = json.dumps({"metadata": {"a": None, "c": "3"}}).encode()
    patched = gcs.send("PATCH", gcs.path("x", ifMetagenerationMatch=1), body)
    is_same = patched.json["generation"] == made["generation"]
    late = gcs.send("PATCH", gcs.path("x", ifMetagenerationMatch=1), body)
    return [patched.status, patched.json["metageneration"], is_same, patched.json["metadata"], late.status]


@answers(200, 409, 404, 204, 404)
def a_bucket_is_made_once_and_deleted_empty(gcs: Wire) -> list[Any]:
    bucket = f"/storage/v1/b/{gcs.bucket}"
    gcs.media("x", b"1")
    full = gcs.send("DELETE", bucket).status
    gone = gcs.send("GET", "/storage/v1/b/there-is-no-such-bucket").status
    there = gcs.send("GET", bucket).status
    gcs.send("DELETE", gcs.path("x"))
    return [there, full, gone, gcs.send("DELETE", bucket).status, gcs.send("GET", gcs.path("")).status]


def test_a_bucket_that_exists_is_a_conflict(server: GcsServer):
    control = GcsControl(server.url)
    control.make_bucket("made-once")
    reply = Wire(server.url, "made-once").send("POST", "/storage/v1/b?project=p", b'{"name": "made-once"}')
    assert reply.status == 409
