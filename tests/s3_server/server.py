"""Fake S3: moto, one request at a time and with faults.

Concurrent creates of one path could both win in moto, which checks whether an object exists and then stores it.
"""

import http.client
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from werkzeug.serving import WSGIRequestHandler, make_server

from tests.threaded_server import ThreadedServer

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class _Handler(WSGIRequestHandler):
    def log(self, kind: str, message: str, *arguments: Any) -> None:  # keep the output of tests short
        pass


class S3Server(ThreadedServer):
    """moto."""

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_Handler)
        super().__init__(server, "fake s3")
        self.ignores_if_none_match = False
        self._application: Application = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()

    def environment(self) -> dict[str, str]:
        """Return the variables that lead s3fs and AWS's tools to this server."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test-secret-0123456789",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def make_bucket(self, name: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._server.server_port)
        connection.request(
            "PUT", f"/{name}", headers={"Authorization": "AWS4-HMAC-SHA256 Credential=test/x/us-east-1/s3"}
        )
        status = connection.getresponse().status
        connection.close()
        assert status == 200, status

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        request = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}?{environ.get('QUERY_STRING', '')}"
        fault = self.faults.strike(request)
        self.requests.append(request)
        if self.ignores_if_none_match:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if fault is not None and fault.kind == "reset":
            return _cut(environ, start_response)
        if fault is not None and fault.kind == "status":
            start_response(f"{fault.status} Injected", [("Content-Type", "application/xml")])
            code = {403: "AccessDenied", 409: "ConditionalRequestConflict", 429: "SlowDown", 503: "SlowDown"}
            if environ["REQUEST_METHOD"] == "HEAD":
                return []
            return [f"<Error><Code>{code.get(fault.status, 'InternalError')}</Code></Error>".encode()]
        if fault is not None and fault.kind == "slow":
            time.sleep(fault.seconds)
        with self._lock:
            body = b"".join(self._application(environ, start_response))
        if fault is not None and fault.kind == "lost_reply":
            return _cut(environ, start_response)
        if fault is not None and fault.kind == "truncated":
            return [body[: len(body) // 2]]
        return [body]


def _cut(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    start_response("200 OK", [])  # ignored
    return []
