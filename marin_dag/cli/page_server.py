"""Page server: one page for the browser of this machine, its content as JSON, and the requests of its buttons.

Every request needs the key in the address that the command `page` prints: any program of this machine, and any page
that a browser has open, can reach a port.
"""

import datetime
import hmac
import json
import secrets
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from marin_dag.cli.outputs import newest_log
from marin_dag.cli.tell import Sent, actions_of, send_request
from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.ledger.lease import Held, Leases
from marin_dag.ledger.requests import PUBLISH, Request, Requests
from marin_dag.plan.plan import Plan, make_plan
from marin_dag.plan.planned import Verdict
from marin_dag.plan.reasons import render_all
from marin_dag.run.live import Pace, figures_of
from marin_dag.store.redact import redact_document
from marin_dag.store.store import Store, StoreError

HOST = "127.0.0.1"
PAGE = Path(__file__).with_name("page.html")
SCHEMA = "marin_dag.page/2"
KEY_BYTES = 16
MAX_LENGTH_DIGITS = 5
"""Digits of the length of a request."""
SILENT_SECONDS = 60.0
"""A connection that is silent for longer is closed, which ends its thread."""
NO_KEY = "open the whole address that `page` printed; it changes each time that `page` starts"
PLAN_SECONDS = 30.0
"""A plan costs more than the list of running steps. It is made again when that list changes, or after this time."""
LOOK_SECONDS = 4.0
"""The store is read this often, however many pages are open; drivers report progress every ten seconds."""
SHOWN_REQUESTS, SHOWN_WAITING = 20, 50
LOG_BYTES = 64 * 1024
"""The end of a log that is shown."""
WAITING = frozenset({Verdict.FAILED, Verdict.BLOCKED, Verdict.DRIFTED})


class Watched:
    """The steps of one graph on one store; safe for the threads of a server."""

    def __init__(self, pipeline: str, graph: Graph, store: Store) -> None:
        self._pipeline, self._graph, self._store = pipeline, graph, store
        self._lock = threading.Lock()
        self._looked = self._planned = -PLAN_SECONDS
        self._is_outdated = True
        """Whether a request was made since the last look began."""
        self._document: dict[str, Any] = {}
        self._failure: StoreError | OSError | None = None
        """The error of the last look."""
        self._plan: Plan | None = None
        self._leases: Mapping[str, Held] = {}
        """The leases of running steps, by digest."""
        self._paces: dict[tuple[str, int], Pace] = {}
        """Paces by digest and epoch: each attempt has its own."""
        self._requests: dict[str, Request] = {}
        """The requests shown, by id: a request never changes."""
        self._replies: dict[str, dict[str, Any] | None] = {}

    def document(self) -> dict[str, Any]:
        """Return what is shown, as JSON data, read from the store at most every `LOOK_SECONDS`.

        Raises:
            StoreError, OSError: the store does not answer, or did not at the last look.
        """
        with self._lock:
            if self._is_outdated or time.monotonic() - self._looked >= LOOK_SECONDS:
                self._is_outdated = False  # first: a request during the look may come too late for it
                try:
                    self._document, self._failure = self._look(), None
                except (StoreError, OSError) as error:
                    self._failure = error  # for every waiting thread: else each would wait for the store in turn
                self._looked = time.monotonic()
            if self._failure is not None:
                raise self._failure
            return self._document

    def tell(self, name: str, word: str, *, at: int | None, reason: str) -> Sent:
        """Send a request, as the command `tell` does; raise its errors."""
        sent = send_request(self._store, self._graph, self._graph.step(name), word, at=at, reason=reason)
        self._is_outdated = True  # without the lock: a look that hangs would delay the reply
        return sent

    def log(self, name: str) -> str:
        """Return the end of the log of the newest attempt; "" where there is none yet.

        Raises:
            UserError: the step does not exist.
        """
        step = self._graph.step(name)
        held = self._leases.get(step.digest)  # its log lies under the name by which it runs
        path = newest_log(self._store, (held and held.holder.name) or step.name, step.digest)
        return "" if path is None else self._store.read(path)[-LOG_BYTES:].decode(errors="replace")

    def _look(self) -> dict[str, Any]:
        alive, _ = Leases(self._store).running_and_silent()  # by our clock, as in a plan: a look writes nothing
        running = {digest: held for digest, held in alive.items() if not held.holder.does}
        now = time.monotonic()
        if self._plan is None or running.keys() != self._leases.keys() or now - self._planned >= PLAN_SECONDS:
            self._plan, self._planned = make_plan(self._graph, self._store), now
        self._leases = running
        epochs = [(digest, held.epoch) for digest, held in running.items()]
        self._paces = {epoch: self._paces.get(epoch) or Pace() for epoch in epochs}
        store_requests = Requests(self._store)
        requests = self._newest_requests(store_requests)
        steps = {step.digest: step for step in self._graph.steps}
        of_others = [held for digest, held in running.items() if digest not in steps]
        verdicts = Counter(planned.verdict for planned in self._plan.steps)
        waiting = [planned for planned in self._plan.steps if planned.verdict in WAITING]
        return {
            "schema": SCHEMA,
            "pipeline": self._pipeline,
            "prefix": self._store.prefix,
            "looked": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "verdicts": {str(verdict): verdicts[verdict] for verdict in Verdict if verdicts[verdict]},
            "running": [self._running(steps[digest], running[digest]) for digest in steps if digest in running],
            "running_with_other_settings": [
                {"name": held.holder.name, "holder": held.holder.description} for held in of_others
            ],
            "waiting": [
                {"name": each.name, "verdict": str(each.verdict), "reasons": list(render_all(each.reasons))}
                for each in waiting[:SHOWN_WAITING]
            ],
            "num_waiting": len(waiting),
            "requests": requests,
            "damaged": sorted(store_requests.damaged.values()),
        }

    def _running(self, step: Step[Any], held: Held) -> dict[str, Any]:
        progress, name = held.progress, held.holder.name
        pace = self._paces[step.digest, held.epoch]
        seconds_left = None if progress is None else pace.seconds_left(progress, time.monotonic())
        is_of_graph = name in self._graph and self._graph.step(name).digest == step.digest
        return {
            "name": name if is_of_graph else step.name,  # its buttons send requests to the step of that name
            "is_queued": held.is_queued,
            "holder": held.holder.description,
            "share": None if progress is None else progress.share,
            "progress": "" if progress is None else figures_of(progress, seconds_left),
            "words": list(actions_of(step)),
            "takes_milestone": PUBLISH in step.kind.requests,
        }

    def _newest_requests(self, store_requests: Requests) -> list[dict[str, Any]]:
        newest = store_requests.newest(SHOWN_REQUESTS, known=self._requests)
        self._requests = {request.id: request for request in newest}
        replies = {request.id: self._replies.get(request.id) or _reply(store_requests, request) for request in newest}
        self._replies = replies
        return [
            {
                "name": request.name,
                "requested": request.sent,
                "text": request.text,
                "reply": replies[request.id],
            }
            for request in newest
        ]


def _reply(requests: Requests, request: Request) -> dict[str, Any] | None:
    reply = requests.reply_to(request)
    return None if reply is None else {"text": reply.text, "is_refused": reply.is_declined}


class PageServer(ThreadingHTTPServer):
    """Server of the page of one `Watched`."""

    daemon_threads = True

    def __init__(self, watched: Watched, port: int) -> None:
        """Bind the port; raise OSError where it is taken."""
        # Hexadecimal: nothing in it looks like a secret, so it is printed whole.
        self.key = secrets.token_hex(KEY_BYTES)
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
        sent = self._watched.tell(name, word, at=at, reason=reason)
        return {"reply": f"{name}: {sent.to}"}

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
