"""Requests: what people ask of a step while it runs, and its replies. They stay, because they shaped a run.

A request and its reply are two objects, both create-only: `requests/<digest>/<time>-<random>.json` and
`….reply.json`, written by the attempt that handled it. Requests are advice: whether an output exists, and which bytes
it has, never depends on them.

Requests to a whole detached run (`stop`) lie under the run's name in place of a digest; Ray itself passes on the first.
"""

import datetime
import uuid
from collections.abc import Collection, Iterable, Mapping

from pydantic import BaseModel, ValidationError

from marin_dag.errors import UserError
from marin_dag.ledger.provenance import now, user_name
from marin_dag.store.redact import redact
from marin_dag.store.store import Store

REQUESTS = "requests"
REPLY = ".reply.json"
MAX_REASON_LENGTH = 1000
STOP, PUBLISH, END = "stop", "publish", "end"
"""The actions that the engine knows: every step takes STOP, a step with milestones may declare PUBLISH, and a detached
run that is stopping already takes END."""


class Request(BaseModel, frozen=True, extra="ignore"):
    """A request of a person to one step."""

    id: str
    """Unique within the step; sorts by time."""
    digest: str
    name: str
    action: str
    milestone: int | None = None
    author: str
    reason: str = ""
    sent: str
    fork: str = ""
    """The fork that starts from the milestone, if making a fork sent the request."""

    @property
    def text(self) -> str:
        """Who asked for what, and why."""
        at = "" if self.milestone is None else f" step {self.milestone:,}"
        because = f": {self.reason}" if self.reason else ""
        return f"{self.author} asked it to {self.action}{at}{because}"


class Reply(BaseModel, frozen=True, extra="ignore"):
    """The reply of an attempt to a request."""

    attempt: str
    text: str
    sent: str
    is_declined: bool = False
    """Whether the step will not do it; otherwise it has done it or will."""


class Requests:
    """The requests below one prefix."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.damaged: dict[str, str] = {}
        """Messages about unreadable requests, by path; an unreadable request hides no other."""

    def send(
        self, digest: str, name: str, action: str, *, milestone: int | None = None, reason: str = "", fork: str = ""
    ) -> Request:
        """Leave a request for the attempt that runs `digest`; for a milestone, also for later attempts."""
        # One printable line: terminals and pages show it as it is.
        reason = "".join(letter for letter in " ".join(reason.split()) if letter.isprintable())
        if len(reason) > MAX_REASON_LENGTH:
            raise UserError(
                f"--reason: {len(reason):,} characters is too long. Use at most {MAX_REASON_LENGTH:,} characters."
            )
        when = datetime.datetime.now(datetime.UTC)
        request = Request(
            id=f"{when:%Y%m%dT%H%M%S.%f}-{uuid.uuid4().hex[:8]}",
            digest=digest,
            name=name,
            action=action,
            milestone=milestone,
            author=user_name(),
            reason=redact(reason),
            sent=when.isoformat(timespec="seconds"),
            fork=fork,
        )
        self._store.create(_path(request), request.model_dump_json(indent=1).encode())
        return request

    def of(self, digest: str, *, known: Collection[str] = ()) -> list[Request]:
        """Return all requests to one step, oldest first, except those whose ids are `known`."""
        return self.of_all(f"{digest}/", known=known)

    def of_all(self, starting_with: str = "", *, known: Collection[str] = ()) -> list[Request]:
        """Return all requests to all steps, except those whose ids are `known`."""
        found = (self._read(path) for path in self._paths(starting_with) if _id(path) not in known)
        return [request for request in found if request is not None]

    def newest(self, most: int, *, known: Mapping[str, Request]) -> list[Request]:
        """Return the newest `most` requests to any step, newest first; read only those not in `known` (by id)."""
        paths = {_id(path): path for path in self._paths()}
        found = (known.get(id_) or self._read(paths[id_]) for id_ in sorted(paths, reverse=True)[:most])
        return [request for request in found if request is not None]

    def digests(self) -> frozenset[str]:
        """Return the digests of all steps that ever got a request."""
        return frozenset(entry.path.split("/")[1] for entry in self._store.list(REQUESTS))

    def ids(self) -> frozenset[str]:
        return frozenset(_id(path) for path in self._paths())

    def replied(self, digest: str) -> frozenset[str]:
        """Return the ids of the step's requests that have a reply."""
        entries = self._store.list(REQUESTS, f"{digest}/")
        return frozenset(_id(entry.path) for entry in entries if entry.path.endswith(REPLY))

    def reply_to(self, request: Request) -> Reply | None:
        """Return the reply; None if there is none or it cannot be read."""
        path = _path(request, REPLY)
        try:
            return Reply.model_validate_json(self._store.read(path))
        except FileNotFoundError:
            return None
        except ValidationError as error:
            self.damaged[path] = f"{self._store.url(path)}: not a reply ({error.error_count()} errors). Delete it."
            return None

    def reply(self, request: Request, attempt: str, text: str, *, is_declined: bool = False) -> None:
        """Write the reply to a request; the first reply stands."""
        reply = Reply(attempt=attempt, text=text, sent=now(), is_declined=is_declined)
        self._store.create(_path(request, REPLY), reply.model_dump_json(indent=1).encode())

    def wanted_milestones(self, digest: str) -> frozenset[int]:
        """Return the milestones that people asked the run `digest` to publish."""
        asked = (request.milestone for request in self.of(digest) if request.action == PUBLISH)
        return frozenset(milestone for milestone in asked if milestone is not None)

    def withdraw(self, fork: str) -> None:
        """Delete the requests that making `fork` sent and that have no reply."""
        for request in self.of_all():
            if request.fork == fork and self.reply_to(request) is None:
                self._store.delete(_path(request))

    def _paths(self, starting_with: str = "") -> Iterable[str]:
        entries = self._store.list(REQUESTS, starting_with)
        return (entry.path for entry in entries if not entry.path.endswith(REPLY))

    def _read(self, path: str) -> Request | None:
        try:
            return Request.model_validate_json(self._store.read(path))
        except FileNotFoundError:  # withdrawn since the listing
            return None
        except ValidationError as error:
            self.damaged[path] = (
                f"{self._store.url(path)}: not a request ({error.error_count()} errors). Delete it, and `tell` again."
            )
            return None


def _path(request: Request, ending: str = ".json") -> str:
    return f"{REQUESTS}/{request.digest}/{request.id}{ending}"


def _id(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(REPLY).removesuffix(".json")
