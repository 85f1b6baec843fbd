"""Transient errors: those that are retried, and others."""

import errno
import urllib.error
from email.message import Message

import aiohttp
import gcsfs.retry
import google.api_core.exceptions
import pytest
import ray.exceptions
import requests

from marin_dag.run.retries import PreemptedError
from marin_dag.store.retry import is_transient


def http_error(code: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("https://host/file", code, "the server", Message(), None)


TRANSIENT = [
    ConnectionResetError("reset"),
    BrokenPipeError("gone"),
    TimeoutError("too long"),
    OSError(errno.EHOSTUNREACH, "no route"),
    OSError(errno.ESTALE, "stale file handle"),
    http_error(429),
    http_error(503),
    urllib.error.URLError(ConnectionRefusedError("refused")),
    requests.exceptions.ConnectionError("reset"),
    requests.exceptions.ReadTimeout("too long"),
    requests.exceptions.ChunkedEncodingError("cut"),
    aiohttp.ClientPayloadError("cut"),
    aiohttp.ServerDisconnectedError(),
    google.api_core.exceptions.ServiceUnavailable("later"),
    google.api_core.exceptions.TooManyRequests("slower"),
    gcsfs.retry.HttpError({"code": 502, "message": "bad gateway"}),
    ray.exceptions.NodeDiedError("node died"),
    ray.exceptions.WorkerCrashedError(),
    ray.exceptions.OutOfMemoryError("killed"),
    ray.exceptions.ActorDiedError(),
    ray.exceptions.ActorUnavailableError("unreachable", b"0" * 16),
    ray.exceptions.LocalRayletDiedError(),
    ValueError("UNAVAILABLE: no route"),  # here and below in the words of TensorStore
    ValueError("ABORTED: Error reading gs://b/c: All 32 retry attempts failed: 503"),
    ValueError("DEADLINE_EXCEEDED: 30 s"),
    ValueError("RESOURCE_EXHAUSTED: quota of requests"),
    ValueError("UNKNOWN: Failed to open: Stale file handle [os_error_code='116']"),
    PreemptedError("the machine is about to go"),
]

PERMANENT = [
    ValueError("least must not be 13"),
    ValueError("PERMISSION_DENIED: HTTP 403"),
    ValueError("FAILED_PRECONDITION: Error reading gs://b/c: Not enough data"),
    ValueError("RESOURCE_EXHAUSTED: Error writing: No space left on device [os_error_code='28']"),
    ValueError("the store said UNAVAILABLE: no route"),
    KeyError("text"),
    OSError(errno.ENOSPC, "No space left on device"),
    PermissionError(errno.EACCES, "denied"),
    FileNotFoundError("no such file"),
    http_error(403),
    http_error(404),
    google.api_core.exceptions.Forbidden("no"),
    gcsfs.retry.HttpError({"code": 401, "message": "who?"}),
    requests.exceptions.InvalidURL("no"),
    MemoryError(),
    ZeroDivisionError(),
    ray.exceptions.TaskUnschedulableError("never fits"),
]


@pytest.mark.parametrize("error", TRANSIENT, ids=lambda error: type(error).__name__)
def test_transient_errors_are_retried(error: Exception):
    assert is_transient(error)


@pytest.mark.parametrize("error", PERMANENT, ids=lambda error: type(error).__name__)
def test_permanent_errors_are_not_retried(error: Exception):
    assert not is_transient(error)


def test_the_cause_of_an_error_counts():
    try:
        try:
            raise ConnectionResetError("reset")
        except ConnectionResetError as reset:
            raise RuntimeError("the shard could not be read") from reset
    except RuntimeError as error:
        assert is_transient(error)


def test_an_error_may_declare_itself_permanent():
    class GoneForGoodError(ConnectionResetError):
        is_transient = False

    assert not is_transient(GoneForGoodError("the peer was deleted"))


def test_an_error_raised_from_none_is_judged_alone():
    try:
        try:
            raise ConnectionResetError("reset")
        except ConnectionResetError:
            raise ValueError("an unrelated mistake in the handler") from None
    except ValueError as error:
        assert not is_transient(error)
