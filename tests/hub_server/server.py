"""Fake hub: the part of a Hugging Face hub that commits use, in memory, with faults.

The answers have the form that huggingface_hub 1.0 to 2.4 reads. Weights go through LFS; Xet storage is not served.
"""

import base64
import hashlib
import json
import re
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.threaded_server import ThreadedServer

REPO = r"(?P<repo>[^/]+/[^/]+)"
SEED_FILES = {".gitattributes": b"*.safetensors filter=lfs\n"}
DATE = "2026-01-01T00:00:00.000Z"
Answer = tuple[int, Any]


def git_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


class Repository:
    """Branches of commits, each with the files of its tree; LFS files are their objects."""

    def __init__(self, is_private: bool) -> None:
        self.is_private = is_private
        self.objects: dict[str, bytes] = {}
        self.commits: dict[str, dict[str, bytes]] = {}
        self.subjects: dict[str, str] = {}
        self.branches: dict[str, list[str]] = {"main": [self.add("initial commit", dict(SEED_FILES))]}
        self.titles: dict[str, list[str]] = {"main": ["initial commit"]}

    def add(self, title: str, files: dict[str, bytes]) -> str:
        commit = hashlib.sha1(f"{len(self.commits)} {title}".encode(), usedforsecurity=False).hexdigest()
        self.commits[commit], self.subjects[commit] = files, title
        return commit

    def files(self, revision: str) -> dict[str, bytes]:
        """Return the files of a branch or commit, without the hub's own."""
        found = self.commits[self.head(revision)]
        return {name: content for name, content in found.items() if name not in SEED_FILES}

    def head(self, revision: str) -> str:
        return self.branches[revision][-1] if revision in self.branches else revision


class HubServer(ThreadedServer):
    """A hub. Each write needs `token`."""

    def __init__(self, token: str) -> None:
        server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        server.daemon_threads = True
        super().__init__(server, "fake hub", poll_seconds=0.01)
        self.token = token
        self.headers: list[dict[str, str]] = []
        self.repositories: dict[str, Repository] = {}
        self.on_request: Callable[[str, bool], None] = lambda request, is_applied: None
        """Called before a request is applied, and before its answer is sent."""
        self._lock = threading.Lock()

    def answer(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        with self._lock:
            if method == "PUT" and path.startswith("/lfs/"):
                return self._store(path, body)
            is_write = method != "GET"
            if is_write and headers.get("authorization") != f"Bearer {self.token}":
                return 401, {"error": "Invalid username or password."}
            for wanted, pattern, action in ROUTES:
                if method == wanted and (found := re.fullmatch(pattern, path)) is not None:
                    named = found.groupdict()
                    if "repo" in named and named["repo"] not in self.repositories:
                        return 404, "RepoNotFound"
                    return action(self, body, **named)
        return 404, "RepoNotFound"

    def _create(self, body: bytes) -> Answer:
        asked = json.loads(body)
        repo = f"{asked['organization']}/{asked['name']}"
        if repo in self.repositories:
            return 409, {"error": "You already created this model repo", "url": f"{self.url}/{repo}"}
        self.repositories[repo] = Repository(asked.get("visibility") == "private")
        return 200, {"url": f"{self.url}/{repo}"}

    def _info(self, body: bytes, repo: str) -> Answer:
        return 200, {"id": repo, "sha": self.repositories[repo].head("main"), "siblings": []}

    def _refs(self, body: bytes, repo: str) -> Answer:
        branches = self.repositories[repo].branches
        found = [
            {"name": name, "ref": f"refs/heads/{name}", "targetCommit": commits[-1]}
            for name, commits in branches.items()
        ]
        return 200, {"branches": found, "converts": [], "tags": []}

    def _tree(self, body: bytes, repo: str, revision: str) -> Answer:
        found = self.repositories[repo]
        return 200, [_described(found, name, content) for name, content in found.commits[found.head(revision)].items()]

    def _commits(self, body: bytes, repo: str, revision: str) -> Answer:
        found = self.repositories[repo]
        return 200, [
            {"id": commit, "title": found.subjects[commit], "message": "", "date": DATE, "authors": []}
            for commit in reversed(found.branches[revision])
        ]

    def _branch(self, body: bytes, repo: str, revision: str) -> Answer:
        found = self.repositories[repo]
        if revision in found.branches:
            return 409, {"error": f"Reference already exists: refs/heads/{revision}"}
        found.branches[revision] = [found.head(json.loads(body or b"{}").get("startingPoint") or "main")]
        found.titles[revision] = []
        return 200, {}

    def _valid(self, body: bytes) -> Answer:
        return 200, {"errors": [], "warnings": []}

    def _preupload(self, body: bytes, repo: str, revision: str) -> Answer:
        found = self.repositories[repo]
        present = found.commits[found.head(revision)]
        files = []
        for file in json.loads(body)["files"]:
            content = present.get(file["path"])
            files.append(
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                    "oid": None if content is None else git_id(content),
                }
            )
        return 200, {"files": files}

    def _batch(self, body: bytes, repo: str) -> Answer:
        objects = []
        for each in json.loads(body)["objects"]:
            entry = {"oid": each["oid"], "size": each["size"]}
            if each["oid"] not in self.repositories[repo].objects:
                entry["actions"] = {"upload": {"href": f"{self.url}/lfs/{repo}/{each['oid']}"}}
            objects.append(entry)
        return 200, {"transfer": "basic", "objects": objects}

    def _store(self, path: str, body: bytes) -> Answer:
        repo, _, oid = path.removeprefix("/lfs/").rpartition("/")
        if hashlib.sha256(body).hexdigest() != oid:
            return 400, {"error": "the content has another SHA-256"}
        self.repositories[repo].objects[oid] = body
        return 200, {}

    def _commit(self, body: bytes, repo: str, revision: str) -> Answer:
        found = self.repositories[repo]
        header, *operations = [json.loads(line) for line in body.splitlines()]
        if header["value"].get("parentCommit") not in (None, found.head(revision)):
            return 412, {"error": "A commit has happened since. Please refresh and try again."}
        files = dict(found.commits[found.head(revision)])
        for operation in operations:
            value = operation["value"]
            match operation["key"]:
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = found.objects[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
                case other:
                    raise AssertionError(other)
        commit = found.add(header["value"]["summary"], files)
        found.branches[revision].append(commit)
        found.titles[revision].append(header["value"]["summary"])
        return 200, {"commitUrl": f"{self.url}/{repo}/commit/{commit}", "commitOid": commit}


ROUTES: tuple[tuple[str, str, Callable[..., Answer]], ...] = (
    ("POST", "/api/repos/create", HubServer._create),
    ("GET", rf"/api/models/{REPO}", HubServer._info),
    ("GET", rf"/api/models/{REPO}/refs", HubServer._refs),
    ("GET", rf"/api/models/{REPO}/tree/(?P<revision>[^/]+)", HubServer._tree),
    ("GET", rf"/api/models/{REPO}/commits/(?P<revision>[^/]+)", HubServer._commits),
    ("POST", rf"/api/models/{REPO}/branch/(?P<revision>[^/]+)", HubServer._branch),
    ("POST", "/api/validate-yaml", HubServer._valid),
    ("POST", rf"/api/models/{REPO}/preupload/(?P<revision>[^/]+)", HubServer._preupload),
    ("POST", rf"/{REPO}\.git/info/lfs/objects/batch", HubServer._batch),
    ("POST", rf"/api/models/{REPO}/commit/(?P<revision>[^/]+)", HubServer._commit),
)


def _described(repository: Repository, name: str, content: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": git_id(content)}
    oid = hashlib.sha256(content).hexdigest()
    if oid in repository.objects:
        entry |= {"oid": git_id(oid.encode()), "lfs": {"oid": oid, "size": len(content), "pointerSize": 134}}
    return entry


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # of a client that was killed
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits 40 ms between its head and its body
    hub: HubServer

    def log_message(self, format: str, *arguments: Any) -> None:  # keep the output of tests short
        pass

    def do_GET(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def do_PUT(self) -> None:
        self._handle()

    def _handle(self) -> None:
        body = self._body()
        path = unquote(urlsplit(self.path).path)
        request = f"{self.command} {path}"
        self.hub.requests.append(request)
        self.hub.headers.append({name.lower(): value for name, value in self.headers.items()})
        fault = self.hub.faults.strike(request)
        if fault is not None and fault.kind == "reset":
            self.close_connection = True
            return
        if fault is not None and fault.kind == "status":
            self._send(fault.status, json.loads(fault.document or '{"error": "planned"}'))
            return
        self.hub.on_request(request, False)
        status, document = self.hub.answer(self.command, path, body, self.hub.headers[-1])
        self.hub.on_request(request, True)
        if fault is not None and fault.kind == "lost_reply":
            self.close_connection = True
            return
        self._send(status, document)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _send(self, status: int, document: Any) -> None:
        is_code = isinstance(document, str)
        content = b"{}" if is_code else json.dumps(document).encode()
        self.send_response(status)
        if is_code:
            self.send_header("X-Error-Code", document)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
