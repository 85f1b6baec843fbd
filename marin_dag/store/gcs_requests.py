"""Requests to Cloud Storage: gcsfs, with each request tried again while its error may pass and each download checked.

gcsfs by itself gives up at once on a timeout, takes no notice of Retry-After, and believes a body whatever its
checksum.
"""

import asyncio
import base64
import io
import re
from typing import Any

import aiohttp
import google.auth.exceptions
import google_crc32c
from gcsfs.core import GCSFileSystem
from gcsfs.retry import HttpError, validate_response

from marin_dag.store.retry import Backoff

BACKOFF = Backoff()
CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 60.0
# A longer upload may be silent for longer; no network that a pipeline runs on is slower than this.
SLOWEST_BYTES_PER_SECOND = 100_000
LARGE_BODY_IN_BYTES = 1 << 20
CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/")


class DownloadError(Exception):
    """A body that is not what the store said it would send."""

    is_transient = True


class CheckedFileSystem(GCSFileSystem):
    """The plain gcsfs class: its successor asks for the kind of bucket by gRPC, and waits where nobody answers."""

    async def _request(
        self,
        method: str,
        path: str,
        *args: Any,
        headers: dict[str, str] | None = None,
        json: Any = None,
        data: Any = None,
        cache_type: Any = None,
        cache_source: Any = None,
        **kwargs: Any,
    ) -> tuple[int, Any, Any, bytes]:
        pauses = BACKOFF.pauses()
        while True:
            asked: float | None = None
            try:
                status, got, info, contents = await self._once(method, path, args, headers, json, data, kwargs)
                asked = _retry_after(got)
                validate_response(status, contents, path, args)
                _check_download(status, got, contents, path)
                return status, got, info, contents
            except (HttpError, DownloadError, aiohttp.ClientError, ConnectionError, TimeoutError, OSError) as error:
                pause = pauses.after(error, asked)
                if pause is None:
                    raise
            except google.auth.exceptions.GoogleAuthError as error:
                pause = pauses.after(error, None) if error.retryable else None
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    async def _once(
        self,
        method: str,
        path: str,
        args: tuple[Any, ...],
        headers: dict[str, str] | None,
        json: Any,
        data: Any,
        query: dict[str, Any],
    ) -> tuple[int, Any, Any, bytes]:
        await self._set_session()
        size = len(data) if isinstance(data, (bytes, bytearray, memoryview)) else 0
        if size > LARGE_BODY_IN_BYTES:
            data = io.BytesIO(data)  # aiohttp sends a stream piece by piece, and warns of a block that size
        elif hasattr(data, "seek"):
            data.seek(0)
        silence = SILENCE_SECONDS + size / SLOWEST_BYTES_PER_SECOND
        async with self.session.request(
            method=method,
            url=self._format_path(path, args),
            params=self._get_params(query),
            json=json,
            headers=self._get_headers(headers),
            data=data,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence),
        ) as reply:
            return reply.status, reply.headers, reply.request_info, await reply.read()


def _retry_after(headers: Any) -> float | None:
    text = headers.get("Retry-After", "")
    return float(text) if text.isdigit() else None  # the other form is a date; the backoff's own pause will do


def _check_download(status: int, headers: Any, contents: bytes, path: str) -> None:
    if status == 206:
        found = CONTENT_RANGE.match(headers.get("Content-Range", ""))
        if found is not None and int(found[2]) - int(found[1]) + 1 != len(contents):
            raise DownloadError(f"{path}: {len(contents)} bytes came of {found[0]}")
        return
    # What the store unpacks on the way has the checksum of the packed bytes.
    if status != 200 or headers.get("X-Goog-Stored-Content-Encoding", "identity") != "identity":
        return
    for item in ",".join(headers.getall("X-Goog-Hash", [])).split(","):
        name, _, value = item.strip().partition("=")
        if name == "crc32c" and base64.b64decode(value) != google_crc32c.Checksum(contents).digest():
            raise DownloadError(f"{path}: the {len(contents)} bytes that came do not have the CRC32C {value}")
