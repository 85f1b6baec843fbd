"""Tellings: what people tell a step while it runs, and what it answers. They stay, for they shaped a run.

Two objects a telling, both create-only: `told/<digest>/<when>-<random>.json`, and the answer of the attempt that heard
it, `….answer.json`. They are advice: whether an output exists, and which bytes it has, never rests on them.

What is told to a whole detached run (`stop`) lies under its name in place of a digest; Ray passes on the first of it.
"""

import datetime
import uuid
from collections.abc import Collection, Iterable, Mapping

from pydantic import BaseModel, ValidationError

from marin_dag.errors import UserError
from marin_dag.ledger.provenance import now, user_name
from marin_dag.store.redact import redact
from marin_dag.store.store import Store

TOLD = "told"
ANSWER = ".answer.json"
MAX_REASON_LENGTH = 1000
STOP, PUBLISH, END = "stop", "publish", "end"
"""The words that the engine itself knows: every step hears the first, those of a trajectory may hear the second, and a
detached run that was told to stop before the third."""


class Telling(BaseModel, frozen=True, extra="ignore"):
    """One word of one person to one step."""

    id: str
    """Unique within the step, and in the order of time."""
    digest: str
    name: str
    """What the step was called by whoever told it."""
    word: str
    milestone: int | None = None
    """The step of the trajectory that the word is about."""
    author: str
    reason: str = ""
    told: str
    fork: str = ""
    """The fork that starts from the milestone, where it was the making of one that told the step."""

    @property
    def said(self) -> str:
        """Who told what and why, as a person says it."""
        at = "" if self.milestone is None else f" step {self.milestone:,}"
        because = f": {self.reason}" if self.reason else ""
        return f"{self.author} told it to {self.word}{at}{because}"


class Answer(BaseModel, frozen=True, extra="ignore"):
    """What became of a telling."""

    attempt: str
    said: str
    answered: str
    is_refused: bool = False
    """Whether what was asked will not be; else it is done, or promised."""


class Tellings:
    """Those of one prefix."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.damaged: dict[str, str] = {}
        """What was found and is no telling, with what to do, by its path: it hides no other."""

    def tell(
        self, digest: str, name: str, word: str, *, milestone: int | None = None, reason: str = "", fork: str = ""
    ) -> Telling:
        """Tells whoever is at work on `digest`, now or, of a milestone to publish, later.

        Raises:
            UserError: the reason is too long to be read.
        """
        reason = "".join(
            letter for letter in " ".join(reason.split()) if letter.isprintable()
        )  # it is shown in one line
        if len(reason) > MAX_REASON_LENGTH:
            raise UserError(f"--reason: {len(reason):,} characters; use at most {MAX_REASON_LENGTH:,}.")
        when = datetime.datetime.now(datetime.UTC)
        telling = Telling(
            id=f"{when:%Y%m%dT%H%M%S.%f}-{uuid.uuid4().hex[:8]}",
            digest=digest,
            name=name,
            word=word,
            milestone=milestone,
            author=user_name(),
            reason=redact(reason),
            told=when.isoformat(timespec="seconds"),
            fork=fork,
        )
        self._store.create(_path(telling), telling.model_dump_json(indent=1).encode())
        return telling

    def of(self, digest: str, *, known: Collection[str] = ()) -> list[Telling]:
        """All that the step was ever told, oldest first, but those whose ids are `known`."""
        paths = (entry.path for entry in self._store.list(TOLD, f"{digest}/") if not entry.path.endswith(ANSWER))
        return self._all(path for path in paths if _id(path) not in known)

    def of_all(self, *, known: Collection[str] = ()) -> list[Telling]:
        """The same of all steps."""
        paths = (entry.path for entry in self._store.list(TOLD) if not entry.path.endswith(ANSWER))
        return self._all(path for path in paths if _id(path) not in known)

    def newest(self, most: int, *, known: Mapping[str, Telling]) -> list[Telling]:
        """The last ones told to any step, newest first; only what is not `known` by its id is read."""
        paths = {_id(entry.path): entry.path for entry in self._store.list(TOLD) if not entry.path.endswith(ANSWER)}
        found = (known.get(id_) or self._read(paths[id_]) for id_ in sorted(paths, reverse=True)[:most])
        return [telling for telling in found if telling is not None]

    def digests(self) -> frozenset[str]:
        """Of the steps that were ever told anything."""
        return frozenset(entry.path.split("/")[1] for entry in self._store.list(TOLD))

    def ids(self) -> frozenset[str]:
        """Of all that any step was ever told."""
        return frozenset(_id(entry.path) for entry in self._store.list(TOLD) if not entry.path.endswith(ANSWER))

    def answered(self, digest: str) -> frozenset[str]:
        """The ids of those that have an answer."""
        paths = (entry.path for entry in self._store.list(TOLD, f"{digest}/") if entry.path.endswith(ANSWER))
        return frozenset(_id(path) for path in paths)

    def answer_of(self, telling: Telling) -> Answer | None:
        """None while there is none that can be read."""
        path = _path(telling, ANSWER)
        try:
            return Answer.model_validate_json(self._store.read(path))
        except FileNotFoundError:
            return None
        except ValidationError as error:
            self.damaged[path] = f"{self._store.url(path)}: no answer ({error.error_count()} errors); delete it"
            return None

    def answer(self, telling: Telling, attempt: str, said: str, *, is_refused: bool = False) -> None:
        """Keeps what became of it; the first answer stands."""
        answer = Answer(attempt=attempt, said=said, answered=now(), is_refused=is_refused)
        self._store.create(_path(telling, ANSWER), answer.model_dump_json(indent=1).encode())

    def to_publish(self, digest: str) -> frozenset[int]:
        """The milestones that any attempt at the trajectory is to publish when it comes by."""
        told = (telling.milestone for telling in self.of(digest) if telling.word == PUBLISH)
        return frozenset(milestone for milestone in told if milestone is not None)

    def forget(self, fork: str) -> None:
        """Takes back what the making of a fork told and nobody has answered."""
        for telling in self.of_all():
            if telling.fork == fork and self.answer_of(telling) is None:
                self._store.delete(_path(telling))

    def _all(self, paths: Iterable[str]) -> list[Telling]:
        found = (self._read(path) for path in paths)
        return [telling for telling in found if telling is not None]

    def _read(self, path: str) -> Telling | None:
        try:
            return Telling.model_validate_json(self._store.read(path))
        except FileNotFoundError:  # taken back since the listing
            return None
        except ValidationError as error:
            self.damaged[path] = (
                f"{self._store.url(path)}: no telling ({error.error_count()} errors); delete it, and `tell` again"
            )
            return None


def _path(telling: Telling, ending: str = ".json") -> str:
    return f"{TOLD}/{telling.digest}/{telling.id}{ending}"


def _id(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(ANSWER).removesuffix(".json")
