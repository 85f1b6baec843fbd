"""Control: starts the fake Cloud Storage for a test, adds faults, and reads its log of requests."""

import dataclasses
import json
import os
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.gcs_server.faults import Fault

REPOSITORY = Path(__file__).parents[2]


class GcsControl:
    """Control of a server at `url`, in this process or in another."""

    def __init__(self, url: str) -> None:
        self.url = url

    def environment(self) -> dict[str, str]:
        """Return the variables that lead gcsfs, google-cloud-storage and TensorStore to this server."""
        return {
            "STORAGE_EMULATOR_HOST": self.url,
            "TENSORSTORE_GCS_HTTP_URL": self.url,
            # By default fsspec's class for gs:// asks for the kind of bucket by gRPC, and waits.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }

    def make_bucket(self, name: str) -> None:
        self._ask("POST", "/storage/v1/b?project=p", {"name": name})

    def fill(self, bucket: str, objects: Mapping[str, str]) -> None:
        """Store many small objects at once, for benchmarks."""
        self._ask("POST", "/_fake/fill", {"bucket": bucket, "objects": dict(objects)})

    def add_fault(self, fault: Fault) -> None:
        self._ask("POST", "/_fake/faults", dataclasses.asdict(fault))

    def clear_faults(self) -> None:
        self._ask("DELETE", "/_fake/faults")

    def set_latency(self, seconds: float) -> None:
        """Delay each request by this time."""
        self._ask("POST", "/_fake/latency", {"seconds": seconds})

    def requests(self, where: str = "") -> list[dict[str, Any]]:
        """Return the requests since the log was cleared: `request` (METHOD /path?query), `status`, `fault`.

        Args:
            where: a regular expression, searched in `request`.
        """
        found: list[dict[str, Any]] = self._ask("GET", f"/_fake/requests?where={urllib.parse.quote(where)}")
        return found

    def clear_requests(self) -> None:
        self._ask("DELETE", "/_fake/requests")

    def _ask(self, method: str, target: str, values: Any = None) -> Any:
        body = None if values is None else json.dumps(values).encode()
        request = urllib.request.Request(f"{self.url}{target}", body, {"Content-Type": "application/json"})
        request.method = method
        with urllib.request.urlopen(request) as answer:
            return json.loads(answer.read() or b"null")


class GcsServerProcess(GcsControl):
    """A server in its own process, which ends with the process that started it; a context manager."""

    def __init__(self, *, buckets: Iterable[str] = (), latency_seconds: float = 0.0) -> None:
        command = [sys.executable, "-m", "tests.gcs_server", "--latency-seconds", str(latency_seconds)]
        for bucket in buckets:
            command += ["--bucket", bucket]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY, env=environment, text=True
        )
        assert self._process.stdout is not None
        url = self._process.stdout.readline().strip()
        if not url:
            raise RuntimeError(f"the fake Cloud Storage did not start: exit code {self._process.wait()}")
        super().__init__(url)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> "GcsServerProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
