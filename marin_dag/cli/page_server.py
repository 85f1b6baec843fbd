"""Page server: one page for the browser of this machine, its content as JSON, and the requests of its buttons.

Every request needs the key in the address that the command `page` prints: any program of this machine, and any page
that a browser has open, can reach a port.
"""

import hmac
import json
import secrets
import sys
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from marin_dag.cli.watched import Watched
from marin_dag.errors import UserError
from marin_dag.store.redact import redact_document
from marin_dag.store.store import StoreError

HOST = "127.0.0.1"
PAGE = Path(__file__).with_name("page.html")
KEY_BYTES = 16
MAX_LENGTH_DIGITS = 5
"""Digits of the length of a request."""
SILENT_SECONDS = 60.0
"""A connection that is silent for longer is closed, which ends its thread."""
NO_KEY = "open the whole address that `page` printed; it changes each time that `page` starts"


class PageServer(ThreadingHTTPServer):
    """Server of the page of one `Watched`."""

    daemon_threads = True

    def __init__(self, watched: Watched, port: int) -> None:
        """Bind the port; raise OSError where it is taken."""
        self.key = secrets.token_hex(
            KEY_BYTES
        )  # hexadecimal: nothing in it looks like a secret, so it is printed whole
        super().__init__((HOST, port), partial(_Handler, watched, self.key))

    @property
    def address(self) -> str:
        """The address with the key; a browser sends the part after # to no server."""
        return f"http://{HOST}:{self.server_port}/#{self.key}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print unexpected errors, but not that a browser closed the connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    timeout = SILENT_SECONDS

    def __init__(self, watched: Watched, key: str, *given: Any) -> None:
        self._watched, self._key = watched, key
        super().__init__(*given)  # answers the request

    def do_GET(self) -> None:
        """Send the page, which holds no data, or its data to a client with the key."""
        path, _, query = self.path.partition("?")
        if path == "/":
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", PAGE.read_bytes())
        elif not self._has_key():
            self._refuse(HTTPStatus.FORBIDDEN, NO_KEY)
        elif path == "/state":
            self._answer(self._watched.document)
        elif path == "/log":
            self._answer(lambda: {"log": self._watched.log(parse_qs(query).get("name", [""])[-1])})
        else:
            self._refuse(HTTPStatus.NOT_FOUND, f"{path} does not exist")

    def do_POST(self) -> None:
        """Send a request to a step."""
        size = self.headers.get("Content-Length", "")
        if not self._has_key():
            self._refuse(HTTPStatus.FORBIDDEN, NO_KEY)
        elif self.path != "/request":
            self._refuse(HTTPStatus.NOT_FOUND, f"{self.path} does not exist")
        elif not size.isascii() or not size.isdigit() or len(size) > MAX_LENGTH_DIGITS:
            self._refuse(HTTPStatus.BAD_REQUEST, "the request is too long, or has no Content-Length")
        else:
            body = self.rfile.read(int(size))
            self._answer(lambda: self._request(body))

    def _request(self, body: bytes) -> dict[str, Any]:
        try:
            asked = json.loads(body)
            name, word, at, reason = (asked[field] for field in ("name", "word", "at", "reason"))
        except (ValueError, TypeError, KeyError):
            raise UserError("page: a request is JSON with name, word, at and reason.") from None
        if not all(isinstance(text, str) for text in (name, word, reason)) or not (at is None or type(at) is int):
            raise UserError("page: name, word and reason are strings, and at is an integer or null.")
        said = self._watched.tell(name, word, at=at, reason=reason)
        return {"reply": f"{name}: {said.whom}"}

    def _answer(self, make: Callable[[], dict[str, Any]]) -> None:
        try:
            document = make()
        except (StoreError, OSError) as error:  # the page shows it, and asks again
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except UserError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        else:
            self._send_json(HTTPStatus.OK, document)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._send_json(status, {"error": why})

    def _send_json(self, status: HTTPStatus, document: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(redact_document(document)).encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),  # no other page can lay our buttons below its own
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _has_key(self) -> bool:
        return hmac.compare_digest(self.headers.get("X-Key", "").encode(), self._key.encode())

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing: one line per request would hide the messages of the terminal."""
