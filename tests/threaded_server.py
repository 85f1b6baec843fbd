"""Threaded server: a fake service in threads of this process, with faults; a context manager."""

import threading
from types import TracebackType
from typing import Any, Self

from tests.gcs_server.faults import Faults


class ThreadedServer:
    """A server of `socketserver`'s kind; `requests` has a line for each request."""

    def __init__(self, server: Any, name: str, *, poll_seconds: float = 0.5) -> None:
        self.faults = Faults()
        self.requests: list[str] = []
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, args=(poll_seconds,), name=name, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
