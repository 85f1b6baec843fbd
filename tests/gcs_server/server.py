"""Server: the fake Cloud Storage as an HTTP server, with faults, latency and a log of requests.

Tests control it under `/_fake`: buckets, objects, faults, the log. These requests have no faults and no delay, and are
not logged.
"""

import asyncio
import collections
import contextlib
import dataclasses
import json
import re
import threading
import urllib.parse
from types import TracebackType
from typing import Any

from tests.gcs_server.api import REASONS, Answer, Api, Request, error_answer
from tests.gcs_server.faults import Fault, Faults, fault_from_json
from tests.gcs_server.objects import ApiError, Preconditions

ORDERS = "/_fake/"
MOST_LOG_LINES = 200_000
MOST_HEADER_BYTES = 1 << 16


@dataclasses.dataclass(frozen=True)
class Logged:
    """A request; `status` is 0 if the connection was cut."""

    request: str
    status: int
    fault: str


class CutConnectionError(Exception):
    """Raised to cut the connection."""


class GcsServer:
    """A server in a thread of this process; a context manager."""

    def __init__(self, *, port: int = 0, latency_seconds: float = 0.0) -> None:
        self.faults = Faults()
        self.latency_seconds = latency_seconds
        self._api = Api()
        self._log: collections.deque[Logged] = collections.deque(maxlen=MOST_LOG_LINES)
        self._port = port
        self._started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="fake cloud storage", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> "GcsServer":
        self._thread.start()
        self._started.wait()
        return self

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def __enter__(self) -> "GcsServer":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", self._port, limit=MOST_HEADER_BYTES)
        self._port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stopping.wait()
        server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while await self._one_request(reader, writer):
                pass
        except (CutConnectionError, ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._connections.discard(task)
            writer.close()

    async def _one_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer a request; return whether the connection stays open."""
        request = await _read_request(reader, writer)
        if request is None:
            return False
        if request.path.startswith(ORDERS):
            answer, fault, shown = self._order(request), None, ""
        else:
            shown = f"{request.method} {urllib.parse.unquote(request.path)}"
            if request.query:
                shown += "?" + "&".join(f"{name}={value}" for name, value in request.query.items())
            answer, fault = await self._answer(request, shown)
        if shown:
            self._log.append(Logged(shown, answer.status, fault.kind if fault else ""))
        await _send(writer, answer, fault)
        return request.headers.get("connection", "").lower() != "close"

    async def _answer(self, request: Request, shown: str) -> tuple[Answer, Fault | None]:
        fault = self.faults.strike(shown)
        if self.latency_seconds:
            await asyncio.sleep(self.latency_seconds)
        if fault is not None and fault.kind in ("reset", "status", "slow"):
            if fault.kind == "reset":
                self._log.append(Logged(shown, 0, "reset"))
                raise CutConnectionError
            if fault.kind == "status":
                refused = error_answer(ApiError(fault.status, "backendError", f"injected {fault.status}"))
                if fault.document:
                    refused.body = fault.document.encode()
                if fault.seconds:
                    refused.headers["Retry-After"] = f"{fault.seconds:g}"
                return refused, fault
            await asyncio.sleep(fault.seconds)
        if fault is not None and fault.kind == "damaged":
            middle = len(request.body) // 2
            request.body = request.body[:middle] + bytes([request.body[middle] ^ 1]) + request.body[middle + 1 :]
        answer = self._api.answer(request)
        if fault is not None and fault.kind == "lost_reply":
            self._log.append(Logged(shown, 0, "lost_reply"))
            raise CutConnectionError
        return answer, fault

    def _order(self, request: Request) -> Answer:
        """Carry out a control request of a test."""
        values: dict[str, Any] = json.loads(request.body) if request.body else {}
        reported: Any = None
        match request.method, request.path.removeprefix(ORDERS):
            case "POST", "faults":
                self.faults.add(fault_from_json(values))
            case "DELETE", "faults":
                self.faults.clear()
            case "POST", "latency":
                self.latency_seconds = values["seconds"]
            case "POST", "fill":
                for name, text in values["objects"].items():
                    self._api.objects.insert(values["bucket"], name, text.encode(), Preconditions())
            case "GET", "requests":
                wanted = request.query.get("where", "")
                reported = [dataclasses.asdict(entry) for entry in list(self._log) if re.search(wanted, entry.request)]
            case "DELETE", "requests":
                self._log.clear()
            case _:
                return error_answer(ApiError(404, "notFound", f"no such order: {request.method} {request.path}"))
        return Answer(200, json.dumps(reported).encode(), {"Content-Type": "application/json"})


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = b""
        while size := int((await reader.readline()).split(b";")[0], 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request.of(method, target, headers, body)


async def _send(writer: asyncio.StreamWriter, answer: Answer, fault: Fault | None) -> None:
    body = answer.body
    kind = fault.kind if fault is not None else ""
    if kind == "corrupt" and body:
        middle = len(body) // 2
        body = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
    if kind == "short":
        body = body[: len(body) // 2]
    head = f"HTTP/1.1 {answer.status} {REASONS.get(answer.status, 'Status')}\r\n"
    for name, value in answer.headers.items():
        head += f"{name}: {value}\r\n"
    if answer.status not in (204, 304):
        head += f"Content-Length: {len(body)}\r\n"
    writer.write(head.encode("latin-1") + b"\r\n")
    if kind == "truncated":
        writer.write(body[: len(body) // 2])
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()  # so that the half arrives; an abort would drop it
        raise CutConnectionError
    if answer.status not in (204, 304):
        writer.write(body)
    await writer.drain()
