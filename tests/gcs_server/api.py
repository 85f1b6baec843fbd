"""Api: the requests and answers of the JSON API as values, and the effect of each on the objects."""

import dataclasses
import json
import re
import urllib.parse
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from tests.gcs_server.objects import ApiError, Objects, Preconditions, StoredObject, invalid
from tests.gcs_server.uploads import Sessions, json_body, split_multipart, upload_of

BYTE_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
MOST_CALLS_OF_A_BATCH = 100
MEBIBYTE = 1 << 20


@dataclasses.dataclass
class Request:
    """A request; `path` is escaped, header names are in lower case."""

    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: bytes

    @classmethod
    def of(cls, method: str, target: str, headers: Mapping[str, str], body: bytes) -> "Request":
        path, _, query = target.partition("?")
        return cls(method, path, dict(urllib.parse.parse_qsl(query, keep_blank_values=True)), headers, body)


@dataclasses.dataclass
class Answer:
    """An answer."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = dataclasses.field(default_factory=dict)


Route = tuple[str, "re.Pattern[str]", Callable[..., Answer]]


class Api:
    """Answers requests, from several threads at once."""

    def __init__(self) -> None:
        self.objects = Objects()
        self._sessions = Sessions(self.objects)
        self._rewrites: dict[str, int] = {}
        bucket, one = "/storage/v1/b/([^/]+)", "/storage/v1/b/([^/]+)/o/([^/]+)"
        two = f"{one}/%s/b/([^/]+)/o/([^/]+)"
        self._routes: list[Route] = [
            (method, re.compile(pattern), action)
            for method, pattern, action in (
                ("GET", "/storage/v1/b", self._list_buckets),
                ("POST", "/storage/v1/b", self._make_bucket),
                ("GET", bucket, self._get_bucket),
                ("DELETE", bucket, self._delete_bucket),
                ("GET", f"{bucket}/o", self._list),
                ("POST", f"/upload{bucket}/o", self._upload),
                ("PUT", f"/upload{bucket}/o", self._continue_upload),
                ("DELETE", f"/upload{bucket}/o", self._cancel_upload),
                ("GET", f"(?:/download)?{one}", self._get),
                ("DELETE", one, self._delete),
                ("PATCH", one, self._patch),
                ("PUT", one, self._patch),
                ("POST", two % "rewriteTo", self._rewrite),
                ("POST", two % "copyTo", self._copy),
                ("POST", f"{one}/moveTo/o/([^/]+)", self._move),
                ("POST", f"{one}/compose", self._compose),
                ("POST", "/batch/storage/v1", self._batch),
            )
        ]

    def answer(self, request: Request) -> Answer:
        """Answer a request; never raise for what a client sends."""
        try:
            for method, pattern, action in self._routes:
                found = pattern.fullmatch(request.path)
                if found and method == request.method:
                    return action(request, *map(urllib.parse.unquote, found.groups()))
            raise ApiError(404, "notFound", f"Not Found: {request.method} {request.path}")
        except ApiError as error:
            return error_answer(error)

    def _list_buckets(self, request: Request) -> Answer:
        items = [_bucket_resource(name) for name in self.objects.buckets()]
        return _json({"kind": "storage#buckets", "items": items})

    def _make_bucket(self, request: Request) -> Answer:
        name = str(json_body(request.body).get("name", ""))
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]", name):
            raise invalid(f"Invalid bucket name: {name!r}")
        self.objects.make_bucket(name)
        return _json(_bucket_resource(name))

    def _get_bucket(self, request: Request, bucket: str) -> Answer:
        self.objects.require_bucket(bucket)
        return _json(_bucket_resource(bucket))

    def _delete_bucket(self, request: Request, bucket: str) -> Answer:
        self.objects.delete_bucket(bucket)
        return Answer(204)

    def _list(self, request: Request, bucket: str) -> Answer:
        page = self.objects.list(bucket, request.query)
        document: dict[str, Any] = {"kind": "storage#objects"}
        if page.next_token is not None:
            document["nextPageToken"] = page.next_token
        if page.prefixes:
            document["prefixes"] = page.prefixes
        chosen = request.query.get("fields")
        if chosen:
            items = [found.resource for found in page.objects]
            return _json(_only({**document, **({"items": items} if items else {})}, _parsed_fields(chosen)))
        text = json.dumps(document)
        if page.objects:  # each object's JSON is made once: a benchmark lists many thousands
            text = text[:-1] + f', "items": [{", ".join(found.resource_json for found in page.objects)}]}}'
        return Answer(200, text.encode(), {"Content-Type": "application/json; charset=UTF-8"})

    def _upload(self, request: Request, bucket: str) -> Answer:
        if "upload_id" in request.query:  # gcsfs sends chunks by POST
            return self._continue_upload(request, bucket)
        self.objects.require_bucket(bucket)
        content_type = request.headers.get("content-type", "")
        match request.query.get("uploadType"):
            case "media":
                upload = upload_of(bucket, request.query, request.headers, {}, content_type)
                return _resource(upload.finish(self.objects, request.body))
            case "multipart":
                parts = split_multipart(content_type, request.body)
                if len(parts) != 2:
                    raise invalid(f"multipart upload of {len(parts)} parts; metadata and data are wanted")
                (_, resource), (headers, data) = parts
                upload = upload_of(
                    bucket, request.query, request.headers, json_body(resource), headers.get("content-type", "")
                )
                return _resource(upload.finish(self.objects, data))
            case "resumable":
                upload_type = request.headers.get("x-upload-content-type", "")
                upload = upload_of(bucket, request.query, request.headers, json_body(request.body), upload_type)
                upload_id = self._sessions.start(upload)
                query = urllib.parse.urlencode({**request.query, "name": upload.name, "upload_id": upload_id})
                location = f"http://{request.headers.get('host', '')}{request.path}?{query}"
                return Answer(200, b"", {"Location": location, "X-GUploader-UploadID": upload_id})
        raise invalid(f"Invalid uploadType {request.query.get('uploadType')!r}")

    def _continue_upload(self, request: Request, bucket: str) -> Answer:
        upload_id = request.query.get("upload_id", "")
        got = self._sessions.send(upload_id, request.headers.get("content-range"), request.body)
        if isinstance(got, StoredObject):
            return _resource(got)
        return Answer(308, b"", {"Range": f"bytes=0-{got - 1}"} if got else {})

    def _cancel_upload(self, request: Request, bucket: str) -> Answer:
        self._sessions.cancel(request.query.get("upload_id", ""))
        return error_answer(ApiError(499, "clientClosedRequest", "Client Closed Request"))

    def _get(self, request: Request, bucket: str, name: str) -> Answer:
        found = self.objects.get(bucket, name, Preconditions.of(request.query), _generation(request.query))
        if request.query.get("alt") == "media":
            return _media(found, request.headers.get("range", ""))
        chosen = request.query.get("fields")
        return _json(_only(found.resource, _parsed_fields(chosen)) if chosen else found.resource)

    def _delete(self, request: Request, bucket: str, name: str) -> Answer:
        self.objects.delete(bucket, name, Preconditions.of(request.query), _generation(request.query))
        return Answer(204)

    def _patch(self, request: Request, bucket: str, name: str) -> Answer:
        changes, demanded = json_body(request.body), Preconditions.of(request.query)
        return _resource(self.objects.patch(bucket, name, changes, demanded, replace=request.method == "PUT"))

    def _copied(self, request: Request, source: tuple[str, str], target: tuple[str, str]) -> StoredObject:
        return self.objects.copy(
            source,
            target,
            Preconditions.of(request.query, "Source"),
            Preconditions.of(request.query),
            source_generation=_generation(request.query, "sourceGeneration"),
            changes=json_body(request.body),
        )

    def _copy(self, request: Request, bucket: str, name: str, to_bucket: str, to_name: str) -> Answer:
        return _resource(self._copied(request, (bucket, name), (to_bucket, to_name)))

    def _rewrite(self, request: Request, bucket: str, name: str, to_bucket: str, to_name: str) -> Answer:
        size = len(self.objects.get(bucket, name, Preconditions.of(request.query, "Source")).data)
        token = request.query.get("rewriteToken") or uuid.uuid4().hex
        if token not in self._rewrites and "rewriteToken" in request.query:
            raise invalid("Invalid rewriteToken")
        at_most = int(request.query.get("maxBytesRewrittenPerCall") or size)
        if at_most % MEBIBYTE and at_most < size:
            raise invalid("maxBytesRewrittenPerCall must be an integral multiple of 1 MiB")
        written = self._rewrites[token] = min(size, self._rewrites.get(token, 0) + at_most)
        answer: dict[str, Any] = {
            "kind": "storage#rewriteResponse",
            "totalBytesRewritten": str(written),
            "objectSize": str(size),
            "done": written == size,
        }
        if written < size:
            return _json({**answer, "rewriteToken": token})
        return _json({**answer, "resource": self._copied(request, (bucket, name), (to_bucket, to_name)).resource})

    def _move(self, request: Request, bucket: str, name: str, to_name: str) -> Answer:
        source, own = Preconditions.of(request.query, "Source"), Preconditions.of(request.query)
        return _resource(self.objects.move(bucket, name, to_name, source, own))

    def _compose(self, request: Request, bucket: str, name: str) -> Answer:
        body = json_body(request.body)
        made = self.objects.compose(
            bucket, name, body.get("sourceObjects", []), body.get("destination", {}), Preconditions.of(request.query)
        )
        return _resource(made)

    def _batch(self, request: Request) -> Answer:
        parts = split_multipart(request.headers.get("content-type", ""), request.body)
        if len(parts) > MOST_CALLS_OF_A_BATCH:
            raise invalid(f"The batch request holds {len(parts)} calls; at most 100 are allowed.")
        boundary = f"batch_{uuid.uuid4().hex}"
        text = b""
        for headers, call in parts:
            answer = self.answer(_embedded(call))
            reply = f"HTTP/1.1 {answer.status} {REASONS.get(answer.status, '')}\r\n".encode()
            for name, value in {**answer.headers, "Content-Length": str(len(answer.body))}.items():
                reply += f"{name}: {value}\r\n".encode()
            text += f"--{boundary}\r\nContent-Type: application/http\r\n".encode()
            if "content-id" in headers:
                text += f"Content-ID: <response-{headers['content-id'].strip('<>')}>\r\n".encode()
            text += b"\r\n" + reply + b"\r\n" + answer.body + b"\r\n"
        text += f"--{boundary}--\r\n".encode()
        return Answer(200, text, {"Content-Type": f"multipart/mixed; boundary={boundary}"})


REASONS = {200: "OK", 204: "No Content", 206: "Partial Content", 304: "Not Modified", 308: "Resume Incomplete"}
REASONS |= {400: "Bad Request", 403: "Forbidden", 404: "Not Found", 409: "Conflict", 412: "Precondition Failed"}
REASONS |= {416: "Range Not Satisfiable", 429: "Too Many Requests", 503: "Service Unavailable"}


def error_answer(error: ApiError) -> Answer:
    """Return the error document of the JSON API; 304 has no body."""
    if error.status == 304:
        return Answer(304)
    detail = {"message": error.message, "domain": "global", "reason": error.reason}
    return _json({"error": {"code": error.status, "message": error.message, "errors": [detail]}}, error.status)


def _json(document: Mapping[str, Any], status: int = 200) -> Answer:
    return Answer(status, json.dumps(document).encode(), {"Content-Type": "application/json; charset=UTF-8"})


def _resource(found: StoredObject) -> Answer:
    return Answer(
        200, found.resource_json.encode(), {"Content-Type": "application/json; charset=UTF-8", "ETag": found.etag}
    )


def _bucket_resource(name: str) -> dict[str, Any]:
    return {
        "kind": "storage#bucket",
        "id": name,
        "name": name,
        "location": "US",
        "locationType": "multi-region",
        "storageClass": "STANDARD",
        "metageneration": "1",
        "projectNumber": "0",
        "timeCreated": "2026-01-01T00:00:00.000Z",
        "updated": "2026-01-01T00:00:00.000Z",
    }


def _media(found: StoredObject, asked: str) -> Answer:
    hashes = f"crc32c={found.crc32c}" + (f",md5={found.md5}" if found.md5 else "")
    headers = {
        "Content-Type": found.content_type,
        "ETag": found.etag,
        "X-Goog-Generation": str(found.generation),
        "X-Goog-Metageneration": str(found.metageneration),
        "X-Goog-Hash": hashes,
        "X-Goog-Stored-Content-Length": str(len(found.data)),
        "X-Goog-Stored-Content-Encoding": "identity",
        "X-Goog-Storage-Class": "STANDARD",
        "Last-Modified": found.updated.strftime("%a, %d %b %Y %H:%M:%S GMT"),
    }
    size = len(found.data)
    wanted = BYTE_RANGE.fullmatch(asked.strip())
    if wanted is None or not (wanted[1] or wanted[2]):
        return Answer(200, found.data, headers)
    if wanted[1]:
        first, last = int(wanted[1]), min(int(wanted[2] or size - 1), size - 1)
        if wanted[2] and int(wanted[2]) < first:
            return Answer(200, found.data, headers)
    else:
        first, last = max(0, size - int(wanted[2])), size - 1
    if first >= size:
        refused = error_answer(ApiError(416, "requestedRangeNotSatisfiable", "The requested range is not satisfiable"))
        refused.headers["Content-Range"] = f"bytes */{size}"
        return refused
    return Answer(206, found.data[first : last + 1], {**headers, "Content-Range": f"bytes {first}-{last}/{size}"})


def _generation(query: Mapping[str, str], name: str = "generation") -> int | None:
    if not query.get(name):
        return None
    if not query[name].isdigit():
        raise invalid(f"Invalid value for {name}: {query[name]!r}")
    return int(query[name])


def _embedded(call: bytes) -> Request:
    """Return the request in a part of a batch."""
    text = call.replace(b"\r\n", b"\n")
    head, _, body = text.partition(b"\n\n")
    first, *lines = head.decode().strip("\n").split("\n")
    method, target, *_ = first.split(" ")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return Request.of(method, urllib.parse.urlparse(target)._replace(scheme="", netloc="").geturl(), headers, body)


def _parsed_fields(text: str) -> dict[str, Any]:
    """Return `items(name,size),nextPageToken` as nested dictionaries; a slash equals parentheses."""
    tree: dict[str, Any] = {}
    stack, name = [tree], ""
    current = tree
    for letter in text + ",":
        if letter not in ",()/":
            name += letter
            continue
        if name:
            inner = current.setdefault(name.strip(), {})
            if letter == "(":
                stack.append(current := inner)
            elif letter == "/":
                current = inner
            name = ""
        if letter == ")":
            stack.pop()
        if letter in ",)":
            current = stack[-1]
    return tree


def _only(document: Any, tree: Mapping[str, Any]) -> Any:
    if not tree or "*" in tree:
        return document
    if isinstance(document, list):
        return [_only(item, tree) for item in document]
    return {name: _only(document[name], inner) for name, inner in tree.items() if name in document}
