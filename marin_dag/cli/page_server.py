"""Page server: the page of a run for the browser of this machine, its data as JSON, and the requests of its buttons.

Every request needs the key in the address that the command `page` prints: any program of this machine, and any page
that a browser has open, can reach a port. A view is a whole page of its own, which a browser opens without the key: its
address works once, and its scripts run in a sandbox that reaches nothing of the page or the server.
"""

import base64
import hashlib
import hmac
import html
import json
import math
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from marin_dag.cli.page_content import PageContent
from marin_dag.cli.watched import Watched
from marin_dag.errors import UserError
from marin_dag.graph.step import Step
from marin_dag.store.redact import redact_document
from marin_dag.store.store import StoreError

HOST = "127.0.0.1"
PAGE, SCRIPT = (Path(__file__).with_name(name) for name in ("page.html", "page.js"))
KEY_BYTES = 16
MAX_LENGTH_DIGITS = 5
"""Digits of the length of a request."""
SILENT_SECONDS = 60.0
"""A connection that is silent for longer is closed, which ends its thread."""
NO_KEY = "open the whole address that `page` printed; it changes each time that `page` starts"
TICKET_SECONDS = 60.0
"""The time in which a browser has to open a view that was asked for."""
VIEW_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
)


class Tickets:
    """Tickets for views, each of which opens a view once; safe for the threads of a server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: dict[str, tuple[str, float]] = {}

    def add(self, name: str) -> str:
        ticket, now = secrets.token_hex(KEY_BYTES), time.monotonic()
        with self._lock:
            fresh = {each: view for each, view in self._names.items() if now - view[1] < TICKET_SECONDS}
            self._names = {**fresh, ticket: (name, now)}
        return ticket

    def take(self, ticket: str) -> str | None:
        """Return the view of a ticket; None if the ticket was used, is old or unknown."""
        with self._lock:
            name, made = self._names.pop(ticket, ("", -math.inf))
        return name if time.monotonic() - made < TICKET_SECONDS else None


def whole_page(pipeline: str, steps: Iterable[Step[Any]], content: PageContent) -> tuple[bytes, str]:
    """Return the page and its content security policy.

    Clients without the key get it too, so it has names of the recipe and no data of a run: the graph without states.
    """
    scripts = [*content.scripts, SCRIPT.read_text(encoding="utf-8")]
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    page = PAGE.read_text(encoding="utf-8")
    for place, part in (
        ("/*STYLE*/", content.style),
        ("<!--PIPELINE-->", html.escape(pipeline)),
        ("<!--GRAPH-->", "".join(_lanes(steps))),
        ("<!--CONTENT-->", content.markup),
        ("<!--SCRIPTS-->", "".join(f"<script>{script}</script>" for script in scripts)),
    ):
        before, _, after = page.partition(place)
        page = before + part + after
    policy = f"default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src {hashes}"
    return page.encode(), f"{policy}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def _lanes(steps: Iterable[Step[Any]]) -> Iterator[str]:
    """Yield the lanes of the graph as page.js makes them: the steps of one source or phase side by side."""
    lanes: dict[str, list[str]] = {}
    for step in steps:
        chip = f'<button type="button" class="step">{html.escape(step.kind.name)}</button>'
        lanes.setdefault(step.name.partition("/")[2] or step.name, []).append(chip)
    for name, chips in lanes.items():
        yield f'<div class="lane"><span>{html.escape(name)}</span><div>{"".join(chips)}</div></div>'


class PageServer(ThreadingHTTPServer):
    """Server of the page of one `Watched`, with the additions of its recipe."""

    daemon_threads = True

    def __init__(self, watched: Watched, port: int, content: PageContent | None = None) -> None:
        # Hexadecimal: nothing in it looks like a secret, so it is printed whole.
        self.key = secrets.token_hex(KEY_BYTES)
        self.watched, self.content, self.tickets = watched, content or PageContent(), Tickets()
        self.page = whole_page(watched.pipeline, watched.steps, self.content)
        super().__init__((HOST, port), _Handler)

    @property
    def address(self) -> str:
        """The address with the key; a browser sends the part after # to no server."""
        return f"http://{HOST}:{self.server_port}/#{self.key}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print unexpected errors, but not that a browser closed the connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = SILENT_SECONDS

    def do_GET(self) -> None:
        """Send the page, which holds no data of a run, or these data to a client with the key."""
        path, _, words = self.path.partition("?")
        query = {name: values[-1] for name, values in parse_qs(words).items()}
        answers: dict[str, Callable[[], dict[str, Any]]] = {
            "/state": self.server.watched.document,
            "/log": lambda: {"log": self.server.watched.log(query.get("name", ""))},
            "/values": lambda: self._values(query),
            "/data": lambda: self.server.content.data(query),
        }
        if path == "/":
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", *self.server.page)
        elif path.startswith("/open/"):
            self._open(path.removeprefix("/open/"))
        elif not self._has_key():
            self._refuse(HTTPStatus.FORBIDDEN, NO_KEY)
        elif path in answers:
            self._answer(answers[path])
        else:
            self._refuse(HTTPStatus.NOT_FOUND, f"{path} does not exist")

    def do_POST(self) -> None:
        size = self.headers.get("Content-Length", "")
        if not self._has_key():
            self._refuse(HTTPStatus.FORBIDDEN, NO_KEY)
        elif self.path not in ("/request", "/open"):
            self._refuse(HTTPStatus.NOT_FOUND, f"{self.path} does not exist")
        elif not size.isascii() or not size.isdigit() or len(size) > MAX_LENGTH_DIGITS:
            self._refuse(HTTPStatus.BAD_REQUEST, "the request is too long, or has no Content-Length")
        else:
            body = self.rfile.read(int(size))
            self._answer(lambda: (self._request if self.path == "/request" else self._ticket)(body))

    def _values(self, query: dict[str, str]) -> dict[str, Any]:
        try:
            low, high = (float(query[end]) if end in query else None for end in ("low", "high"))
        except ValueError:
            low = high = math.nan
        if not all(end is None or math.isfinite(end) for end in (low, high)):
            raise UserError("page: low and high are finite numbers.")
        values = self.server.content.values(low, high)
        version = hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]
        return {"version": version, **({} if query.get("known") == version else values)}

    def _ticket(self, body: bytes) -> dict[str, Any]:
        return {"path": f"/open/{self.server.tickets.add(body.decode(errors='replace'))}"}

    def _open(self, ticket: str) -> None:
        """Send the view of a ticket, or the reason why the ticket opens none."""
        name = self.server.tickets.take(ticket)
        if name is None:
            self._refuse(HTTPStatus.FORBIDDEN, "this address worked once; open the view from its link on the page")
            return
        self._answer(lambda: self.server.content.view(name))

    def _request(self, body: bytes) -> dict[str, Any]:
        try:
            asked = json.loads(body)
            name, word, at, reason = (asked[field] for field in ("name", "word", "at", "reason"))
        except (ValueError, TypeError, KeyError):
            raise UserError("page: a request is JSON with name, word, at and reason.") from None
        if not all(isinstance(text, str) for text in (name, word, reason)) or not (at is None or type(at) is int):
            raise UserError("page: name, word and reason are strings, and at is an integer or null.")
        sent = self.server.watched.tell(name, word, at=at, reason=reason)
        return {"reply": f"{name}: {sent.to}"}

    def _answer(self, make: Callable[[], dict[str, Any] | str]) -> None:
        """Send the data, or the view, that `make` returns."""
        try:
            made = make()
        except (StoreError, OSError) as error:  # the page shows it, and asks again
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except UserError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        else:
            if isinstance(made, str):
                self._send(HTTPStatus.OK, "text/html; charset=utf-8", made.encode(), VIEW_POLICY)
            else:
                self._send_json(HTTPStatus.OK, made)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._send_json(status, {"error": why})

    def _send_json(self, status: HTTPStatus, document: dict[str, Any]) -> None:
        figures = {"figures": document.pop("figures")} if "figures" in document else {}  # many numbers and no texts
        self._send(status, "application/json", json.dumps(redact_document(document) | figures).encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes, policy: str = "default-src 'none'") -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", policy),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),  # no other page can lay our buttons below its own
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _has_key(self) -> bool:
        return hmac.compare_digest(self.headers.get("X-Key", "").encode(), self.server.key.encode())

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing: one line per request would hide the messages of the terminal."""
