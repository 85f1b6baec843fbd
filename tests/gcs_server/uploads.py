"""Uploads: bodies with an object, multipart or in the chunks of a resumable session.

A resumable session accepts a resent chunk, keeps only whole multiples of 256 KiB of a chunk that is not the last, and
checks its preconditions again when the object is created.
"""

import dataclasses
import json
import re
import threading
import uuid
from collections.abc import Mapping
from typing import Any

from tests.gcs_server.objects import WRITABLE_FIELDS, ApiError, Objects, Preconditions, StoredObject, invalid

CHUNK_UNIT_IN_BYTES = 256 * 1024
BOUNDARY = re.compile(r"""boundary=("(?P<quoted>[^"]+)"|(?P<plain>[^;\s]+))""")
CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


def split_multipart(content_type: str, body: bytes) -> list[tuple[dict[str, str], bytes]]:
    """Return headers and body of each part. Lines end in CRLF, or in LF from some clients."""
    found = BOUNDARY.search(content_type)
    if found is None:
        raise invalid(f"multipart content type without boundary: {content_type}")
    delimiter = b"--" + (found["quoted"] or found["plain"]).encode()
    start = body.find(delimiter)
    if start < 0:
        raise invalid("multipart body without its boundary")
    after = start + len(delimiter)
    line_end = b"\r\n" if body[after : after + 2] == b"\r\n" else b"\n"
    end = body.rfind(line_end + delimiter + b"--")
    if end < 0:
        raise invalid("multipart body without its closing boundary")
    parts = []
    for part in body[after + len(line_end) : end].split(line_end + delimiter + line_end):
        # A part without headers begins with its empty line.
        head, separator, data = (b"", b"", part[len(line_end) :])
        if not part.startswith(line_end):
            head, separator, data = part.partition(line_end * 2)
            if not separator:
                raise invalid("multipart part without an empty line after its headers")
        headers = {}
        for line in head.decode().split(line_end.decode()):
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        parts.append((headers, data))
    return parts


@dataclasses.dataclass
class Upload:
    """An object being uploaded."""

    bucket: str
    name: str
    content_type: str | None
    resource: Mapping[str, Any]
    preconditions: Preconditions
    expected: Mapping[str, str]

    def finish(self, objects: Objects, data: bytes) -> StoredObject:
        return objects.insert(
            self.bucket,
            self.name,
            data,
            self.preconditions,
            content_type=self.content_type,
            fields={field: self.resource[field] for field in WRITABLE_FIELDS if field in self.resource},
            expected=self.expected,
        )


def upload_of(
    bucket: str, query: Mapping[str, str], headers: Mapping[str, str], resource: Mapping[str, Any], content_type: str
) -> Upload:
    """Return the upload that query, metadata and headers describe."""
    name = resource.get("name") or query.get("name") or ""
    if not name:
        raise ApiError(400, "required", "Required parameter: name")
    expected = {which: resource[which] for which in ("crc32c", "md5Hash") if which in resource}
    for item in headers.get("x-goog-hash", "").split(","):
        which, _, value = item.strip().partition("=")
        if which in ("crc32c", "md5"):
            expected["md5Hash" if which == "md5" else which] = value
    output = resource.get("contentType") or content_type or None
    return Upload(bucket, name, output, resource, Preconditions.of(query), expected)


def json_body(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body; an empty body is an empty object."""
    if not body.strip():
        return {}
    try:
        found = json.loads(body)
    except ValueError:
        raise ApiError(400, "parseError", "Parse Error") from None
    if not isinstance(found, dict):
        raise ApiError(400, "parseError", "Parse Error")
    return found


@dataclasses.dataclass
class _Session:
    upload: Upload
    data: bytearray = dataclasses.field(default_factory=bytearray)
    outcome: StoredObject | ApiError | None = None


class Sessions:
    """The resumable uploads, and the results of finished ones."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._lock = threading.RLock()
        self._sessions: dict[str, _Session] = {}

    def start(self, upload: Upload) -> str:
        """Start a session and return its id; a precondition that fails now is reported now."""
        self._objects.check(upload.bucket, upload.name, upload.preconditions)
        upload_id = uuid.uuid4().hex
        with self._lock:
            self._sessions[upload_id] = _Session(upload)
        return upload_id

    def cancel(self, upload_id: str) -> None:
        with self._lock:
            self._session(upload_id).outcome = ApiError(499, "clientClosedRequest", "Client Closed Request")

    def send(self, upload_id: str, content_range: str | None, body: bytes) -> StoredObject | int:
        """Return the object when it is complete, before that the number of bytes kept."""
        with self._lock:
            session = self._session(upload_id)
            if isinstance(session.outcome, ApiError):
                raise session.outcome
            if session.outcome is not None:
                return session.outcome
            total = self._take(session, content_range, body)
            if total is None or len(session.data) < total:
                return len(session.data)
            try:
                session.outcome = session.upload.finish(self._objects, bytes(session.data))
            except ApiError as error:
                session.outcome = error
                raise
            finally:
                session.data = bytearray()
            return session.outcome

    def _take(self, session: _Session, content_range: str | None, body: bytes) -> int | None:
        """Keep the new bytes of `body`; return the size of the whole object if it is known."""
        if content_range is None:
            session.data = bytearray(body)
            return len(body)
        found = CONTENT_RANGE.fullmatch(content_range.strip())
        if found is None:
            raise invalid(f"Failed to parse Content-Range header: {content_range}")
        total = None if found[3] == "*" else int(found[3])
        if found[1] is None:
            return total
        first, last = int(found[1]), int(found[2])
        if len(body) != last - first + 1 or (total is not None and last >= total):
            raise invalid(f"Content-Range {content_range} does not fit a body of {len(body)} bytes")
        kept = len(session.data)
        if first > kept:
            raise invalid(f"Content-Range {content_range} begins after the {kept} bytes received so far")
        session.data += body[kept - first :]
        if total is None or last + 1 < total:
            del session.data[max(kept, len(session.data) // CHUNK_UNIT_IN_BYTES * CHUNK_UNIT_IN_BYTES) :]
        return total

    def _session(self, upload_id: str) -> _Session:
        if upload_id not in self._sessions:
            raise ApiError(404, "notFound", "No such upload session")
        return self._sessions[upload_id]
