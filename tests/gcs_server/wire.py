"""Wire: plain requests to a server of the JSON API, for scripts that compare two servers."""

import base64
import http.client
import json
import urllib.parse
from typing import Any, NamedTuple

import google_crc32c


class Reply(NamedTuple):
    """A reply; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body or b"null")


def crc32c(data: bytes) -> str:
    """Return the CRC32C as Cloud Storage writes it."""
    return base64.b64encode(google_crc32c.Checksum(data).digest()).decode()


class Wire:
    """Requests about one bucket of one server."""

    def __init__(self, url: str, bucket: str) -> None:
        self.url, self.bucket = url, bucket
        self.send("POST", "/storage/v1/b?project=p", json.dumps({"name": bucket}).encode())

    def send(self, method: str, target: str, body: bytes | None = None, **headers: str) -> Reply:
        """Send a request; underscores in names of headers stand for hyphens."""
        where = urllib.parse.urlparse(target if "://" in target else self.url + target)
        connection = http.client.HTTPConnection(urllib.parse.urlparse(self.url).netloc, timeout=30)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            if body is not None:
                named = {"Content-Type": "application/json", **named}
            connection.request(method, where._replace(scheme="", netloc="").geturl(), body, named)
            got = connection.getresponse()
            return Reply(got.status, {name.lower(): value for name, value in got.getheaders()}, got.read())
        finally:
            connection.close()

    def path(self, name: str, more: str = "", **query: object) -> str:
        """Return the path of an object, or of all objects for ""."""
        base = f"/storage/v1/b/{self.bucket}/o"
        if name:
            base += "/" + urllib.parse.quote(name, safe="") + more
        return base + _query(query)

    def media(self, name: str, data: bytes, **query: object) -> Reply:
        target = f"/upload/storage/v1/b/{self.bucket}/o" + _query({"uploadType": "media", "name": name, **query})
        return self.send("POST", target, data, Content_Type="text/plain")

    def multipart(
        self,
        name: str,
        data: bytes,
        *,
        line_end: bytes = b"\r\n",
        boundary: str = '"==b=="',
        resource: dict[str, Any] | None = None,
        **query: object,
    ) -> Reply:
        line = b"--" + boundary.strip('"').encode()
        head = json.dumps({"name": name, **(resource or {})}).encode()
        parts = [line, b"Content-Type: application/json; charset=UTF-8", b"", head]
        parts += [line, b"Content-Type: text/x-own", b"", data, line + b"--"]
        target = f"/upload/storage/v1/b/{self.bucket}/o" + _query({"uploadType": "multipart", **query})
        return self.send("POST", target, line_end.join(parts), Content_Type=f"multipart/related; boundary={boundary}")

    def resumable(self, name: str, *, resource: dict[str, Any] | None = None, **query: object) -> Reply:
        """Start a session; its URL is the reply's `location`."""
        target = f"/upload/storage/v1/b/{self.bucket}/o" + _query({"uploadType": "resumable", "name": name, **query})
        return self.send("POST", target, json.dumps({"name": name, **(resource or {})}).encode())

    def chunk(self, session: str, content_range: str, data: bytes = b"", method: str = "PUT") -> Reply:
        return self.send(method, session, data, Content_Range=f"bytes {content_range}")

    def read(self, name: str, **headers: str) -> Reply:
        return self.send("GET", self.path(name, alt="media"), None, **headers)

    def names(self, **query: object) -> list[str]:
        return [item["name"] for item in self.send("GET", self.path("", **query)).json.get("items", [])]


def _query(values: dict[str, object]) -> str:
    return "?" + urllib.parse.urlencode({name: str(value) for name, value in values.items()}) if values else ""
