"""Page server: one page for the browser of this machine, what it shows as JSON, and the words of its buttons.

What it knows and does is for whoever has its key, which is in the address that the command `page` prints, and nobody
else: any program of this machine, and any page that a browser has open, can reach a port.
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
"""Of the length of what is told."""
SILENT_SECONDS = 60.0
"""Who has connected and is silent for longer is let go, with the thread that waits."""
NO_KEY = "open the address that `page` has printed, all of it; it is another one each time that it is started"


class PageServer(ThreadingHTTPServer):
    """Serves the page of what is `watched`."""

    daemon_threads = True

    def __init__(self, watched: Watched, port: int) -> None:
        """Raises OSError where the port is taken."""
        self.key = secrets.token_hex(KEY_BYTES)  # of letters that no secret begins with: it is printed as it is
        super().__init__((HOST, port), partial(_Handler, watched, self.key))

    @property
    def address(self) -> str:
        """For the browser, which keeps what is behind # to itself, and gives it to the page alone."""
        return f"http://{HOST}:{self.server_port}/#{self.key}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says what was not foreseen; that a browser has gone while it was answered is nothing."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    timeout = SILENT_SECONDS

    def __init__(self, watched: Watched, key: str, *given: Any) -> None:
        self._watched, self._key = watched, key
        super().__init__(*given)  # answers the request

    def do_GET(self) -> None:
        """The page, which says nothing by itself; what it shows, for whoever has the key."""
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
            self._refuse(HTTPStatus.NOT_FOUND, f"there is no {path}")

    def do_POST(self) -> None:
        """A word to a step."""
        size = self.headers.get("Content-Length", "")
        if not self._has_key():
            self._refuse(HTTPStatus.FORBIDDEN, NO_KEY)
        elif self.path != "/tell":
            self._refuse(HTTPStatus.NOT_FOUND, f"there is no {self.path}")
        elif not size.isascii() or not size.isdigit() or len(size) > MAX_LENGTH_DIGITS:
            self._refuse(HTTPStatus.BAD_REQUEST, "what is told is too long, or does not say how long it is")
        else:
            body = self.rfile.read(int(size))
            self._answer(lambda: self._told(body))

    def _told(self, body: bytes) -> dict[str, Any]:
        try:
            asked = json.loads(body)
            name, word, at, reason = (asked[field] for field in ("name", "word", "at", "reason"))
        except (ValueError, TypeError, KeyError):
            raise UserError("tell: a request is {name, word, at, reason}, as JSON.") from None
        if not all(isinstance(text, str) for text in (name, word, reason)) or not (at is None or type(at) is int):
            raise UserError("tell: name, word and reason are texts, and at a whole number or null.")
        said = self._watched.tell(name, word, at=at, reason=reason)
        return {"said": f"{name}: {said.to}"}

    def _answer(self, make: Callable[[], dict[str, Any]]) -> None:
        try:
            document = make()
        except (StoreError, OSError) as error:  # the page says it, and asks again
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
            ("X-Frame-Options", "DENY"),  # nobody else's page puts our buttons below its own
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _has_key(self) -> bool:
        return hmac.compare_digest(self.headers.get("X-Key", "").encode(), self._key.encode())

    def log_message(self, format: str, *arguments: Any) -> None:
        """Says nothing: a line a request would hide what the terminal has to say."""
