"""Interleavings: every order of the store operations of a few actors, each of which may be killed between any two.

An actor is an ordinary function of a store. For each of its moves it runs from its start: the answers to its operations
so far are replayed, and at the next operation it is suspended. So the state is the content of the store and each
actor's history of answers. Two orders that lead to one state are followed once. Actors must be deterministic given the
answers, so the caller replaces clocks, names and pauses.
"""

import enum
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import google_crc32c

from marin_dag.store.store import Entry, Store, StoreError

Content = frozenset[tuple[str, bytes]]
Actor = Callable[[Store], Any]
WRITES = frozenset({"create", "write", "delete"})


class Operation(NamedTuple):
    """A request to the store; `choose` sends none, and both answers are followed."""

    name: str
    path: str
    data: Any = None


class Answer(NamedTuple):
    """The result of an operation, or the error that it raised."""

    value: Any = None
    error: str = ""


class End(NamedTuple):
    """The end of an actor: its return value, or an unexpected error."""

    value: Any = None
    error: BaseException | None = None


class Suspended(BaseException):
    """Raised where an actor's history ends; a BaseException, so that no handler of errors catches it."""


class Mark(NamedTuple):
    """The last `forget` of an actor: the number of answers before it, and what the actor still knew."""

    num_answers: int
    known: str


NOTHING_FORGOTTEN = Mark(0, "")


class ReplayedStore(Store):
    """A store that answers from a history, then suspends the actor."""

    def __init__(self, history: tuple[Answer, ...], mark: Mark = NOTHING_FORGOTTEN) -> None:
        self.prefix = "memory://runs"
        self.pending: Operation | None = None
        self.mark = mark
        self._history = history
        self._num_answers = 0

    @property
    def is_on_new_ground(self) -> bool:
        """Whether the actor has had its last answer. The replay of its shorter history gave every earlier mark."""
        return self.pending is None and self._num_answers == len(self._history)

    def forget(self, known: str) -> None:
        """Declare that the actor's later moves depend on `known` alone, not on earlier answers."""
        self.mark = Mark(self._num_answers, known)

    def ask(self, name: str, path: str, data: Any = None) -> Any:
        """Return the answer to an operation."""
        if self.pending is not None:  # an actor's `finally` runs after the suspension
            raise Suspended
        if self._num_answers == len(self._history):
            self.pending = Operation(name, path, data)
            raise Suspended
        answer = self._history[self._num_answers]
        self._num_answers += 1
        if answer.error == "missing":
            raise FileNotFoundError(path)
        if answer.error:
            raise StoreError(f"{path}: {answer.error}", is_transient=True)
        return answer.value

    def choose(self, what: str) -> bool:
        """Return a choice; both values are followed."""
        return bool(self.ask("choose", what))

    def list(self, folder: str, starting_with: str = "") -> list[Entry]:
        return [Entry(path, size, 0.0) for path, size in self.ask("list", f"{folder}/{starting_with}")]

    def read(self, path: str) -> bytes:
        return bytes(self.ask("read", path))

    def create(self, path: str, data: bytes) -> bool:
        return bool(self.ask("create", path, data))

    def write(self, path: str, data: bytes) -> None:
        self.ask("write", path, data)

    def delete(self, path: str) -> None:
        self.ask("delete", path)

    def exists(self, path: str) -> bool:
        return bool(self.ask("exists", path))

    def blocks(self, path: str, start: int = 0) -> Iterator[bytes]:
        yield self.read(path)[start:]

    def copy(self, source: str, target: str) -> None:
        self.write(target, self.read(source))

    def settle(self, path: str) -> tuple[int, str]:
        return described(self.read(path))


class MemoryStore(ReplayedStore):
    """A store that answers at once, for an undisturbed run."""

    is_on_new_ground = False

    def __init__(self, content: Content) -> None:
        super().__init__(())
        self.content = content

    def ask(self, name: str, path: str, data: Any = None) -> Any:
        if name == "choose":
            return True
        self.content, answer = apply(self.content, Operation(name, path, data))
        if answer.error:
            raise FileNotFoundError(path)
        return answer.value


def described(data: bytes) -> tuple[int, str]:
    """Return size and CRC32C, as `Store.settle` does."""
    return len(data), google_crc32c.Checksum(data).digest().hex()


def apply(content: Content, operation: Operation) -> tuple[Content, Answer]:
    """Apply an operation to the content of a correct store; return the new content and the answer."""
    name, path, data = operation
    files = dict(content)
    if name == "list":
        return content, Answer(tuple(sorted((p, len(d)) for p, d in files.items() if p.startswith(path))))
    if name == "read":
        return content, Answer(files[path]) if path in files else Answer(error="missing")
    if name == "exists":
        return content, Answer(path in files)
    if name == "create" and path in files:
        return content, Answer(False)
    if name == "delete":
        files.pop(path, None)
    else:
        files[path] = data
    return frozenset(files.items()), Answer(True)


class Place(NamedTuple):
    """The place of an actor: a history of answers that leads there, and its next move."""

    history: tuple[Answer, ...]
    following: Operation | End
    mark: Mark


class State(NamedTuple):
    """A state of the search; `places` has the number of each actor's place, None if it was killed or has ended."""

    content: int
    places: tuple[int | None, ...]
    num_faults: int


class Move(NamedTuple):
    """A move of one actor: the content and its place afterwards, and the number of faults."""

    content: int
    place: int | None
    num_faults: int
    what: str


class Promise(enum.Enum):
    """A promise of the commit protocol."""

    WHOLE = "a record has all its files, unchanged"
    LABELLED = "a label leads to each record"
    IMMUTABLE = "records and labels are created once, and never changed or deleted"
    FENCED = "an older epoch publishes nothing once a newer one has begun"
    OTHER = "any other"


class BrokenError(AssertionError):
    """A promise is broken."""

    def __init__(self, promise: Promise, detail: str) -> None:
        super().__init__(f"{detail}, but {promise.value}")
        self.promise = promise


def promise(promise: Promise, is_held: bool, detail: str) -> None:
    """Raise BrokenError if a promise is not held."""
    if not is_held:
        raise BrokenError(promise, detail)


class Violation(AssertionError):  # noqa: N818 -- reads better in the report of a test
    """An order of moves that breaks a promise."""

    def __init__(self, error: AssertionError, moves: list[str]) -> None:
        super().__init__("\n".join([str(error), *moves]))
        self.promise = error.promise if isinstance(error, BrokenError) else Promise.OTHER
        self.moves = moves


class Search:
    """A search over all states, depth first.

    Args:
        actors: by name.
        num_faults: number of operations that may fail: not done, or done but the reply lost.
        with_kills: whether each actor may be killed before each of its operations.
        is_private: returns, for an actor, its operation and the files, whether the order of the operation and of later
            moves of other actors makes no difference. Such orders are not followed.
        content: the content of the store at the start.
        on_content: checks each content that is reached.
        on_change: checks each change: the actor, the operation, the content before and after.
        on_return: checks each actor that has ended: its name, return value, and the content.
        on_end: checks each content in which no actor is left.
    """

    def __init__(
        self,
        actors: Mapping[str, Actor],
        *,
        num_faults: int = 0,
        with_kills: bool = True,
        is_private: Callable[[str, Operation, Mapping[str, bytes]], bool] = lambda actor, operation, files: False,
        content: Mapping[str, bytes] | None = None,
        on_content: Callable[[Content], None] = lambda content: None,
        on_change: Callable[[str, Operation, Content, Content], None] = lambda actor, operation, before, after: None,
        on_return: Callable[[str, Any, Content], None] = lambda actor, value, content: None,
        on_end: Callable[[Content], None] = lambda content: None,
        around: Callable[[str, Store, Actor], Any] = lambda name, store, actor: actor(store),
    ) -> None:
        self.names = tuple(actors)
        self.actors = tuple(actors.values())
        self.num_replays = 0
        self._with_kills, self._is_private, self._around = with_kills, is_private, around
        self._on_content, self._on_change, self._on_return, self._on_end = on_content, on_change, on_return, on_end
        self.contents: list[Content] = []
        """All contents of the store that were reached."""
        self._files: list[dict[str, bytes]] = []
        self._content_numbers: dict[Content, int] = {}
        self._places: list[Place] = []
        self._place_numbers: dict[tuple[int, str, tuple[Answer, ...]], int] = {}
        self._answers: dict[tuple[int, Answer], int] = {}
        # Both are independent of the other actors, and are needed thousands of times.
        self._is_private_at = functools.cache(self._looks_private)
        self._moves_from = functools.cache(self._found_moves)
        self._parents: dict[State, tuple[State, str] | None] = {}
        beginning: tuple[int | None, ...] = tuple(self._place(index, ()) for index in range(len(actors)))
        self._start = State(self._number(frozenset((content or {}).items())), beginning, num_faults)

    def run(self) -> int:
        """Follow all orders; return the number of states.

        Raises:
            Violation: an order of moves breaks a promise.
        """
        self._parents[self._start] = None
        pending = [self._start]
        while pending:
            state = pending.pop()
            try:
                for following, what in self._followers(state):
                    if following not in self._parents:
                        self._parents[following] = (state, what)
                        pending.append(following)
            except AssertionError as error:
                raise Violation(error, self._path_to(state)) from error
        return len(self._parents)

    def _followers(self, state: State) -> Iterator[tuple[State, str]]:
        running = [(index, place) for index, place in enumerate(state.places) if place is not None]
        if not running:
            self._on_end(self.contents[state.content])
            return
        private = [where for where in running if self._is_private_at(*where, state.content)]
        for index, place in private[:1] or running:
            for move in self._moves_from(index, place, state.content, state.num_faults > 0):
                places = (*state.places[:index], move.place, *state.places[index + 1 :])
                yield State(move.content, places, state.num_faults - move.num_faults), move.what

    def _next_operation(self, place: int) -> Operation:
        following = self._places[place].following
        assert isinstance(following, Operation)
        return following

    def _looks_private(self, index: int, place: int, content: int) -> bool:
        return self._is_private(self.names[index], self._next_operation(place), self._files[content])

    def _found_moves(self, index: int, place: int, number: int, may_fail: bool) -> list[Move]:
        """Return all moves of an actor from its place."""
        content, name, operation = self.contents[number], self.names[index], self._next_operation(place)
        moves = [Move(number, None, 0, f"{name} is killed before {_shown(operation)}")] if self._with_kills else []

        def answered(content: Content, answer: Answer, what: str, num_faults: int = 0) -> None:
            moves.append(Move(*self._answered(index, place, content, answer), num_faults, f"{name} {what}"))

        if operation.name == "choose":
            for value in (False, True):
                answered(content, Answer(value), f"{operation.path}: {value}")
            return moves
        after, answer = apply(content, operation)
        if after != content:
            self._on_change(name, operation, content, after)
        answered(after, answer, _shown(operation))
        if may_fail:
            failed = Answer(error="503")
            answered(content, failed, f"{_shown(operation)}: 503", 1)
            if operation.name in WRITES and after != content:
                answered(after, failed, f"{_shown(operation)}: reply lost", 1)
        return moves

    def _answered(self, index: int, before: int, content: Content, answer: Answer) -> tuple[int, int | None]:
        """Return the numbers of the content and of the actor's place after the answer."""
        place = self._answers.get((before, answer))
        if place is None:
            at = self._places[before]
            place = self._place(index, (*at.history, answer), at.mark)
            self._answers[before, answer] = place
        end = self._places[place].following
        if isinstance(end, Operation):
            return self._number(content), place
        if end.error is not None:
            raise AssertionError(f"{self.names[index]} ended with {end.error!r}")
        self._on_return(self.names[index], end.value, content)
        return self._number(content), None

    def _place(self, index: int, history: tuple[Answer, ...], mark: Mark = NOTHING_FORGOTTEN) -> int:
        following, mark = self._replayed(index, history, mark)
        key = (index, mark.known, history[mark.num_answers :])
        number = self._place_numbers.setdefault(key, len(self._places))
        if number == len(self._places):
            self._places.append(Place(history, following, mark))
        assert self._places[number].following == following, "two histories that count as one continue differently"
        return number

    def _number(self, content: Content) -> int:
        number = self._content_numbers.setdefault(content, len(self.contents))
        if number == len(self.contents):
            self.contents.append(content)
            self._files.append(dict(content))
            self._on_content(content)
        return number

    def _replayed(self, index: int, history: tuple[Answer, ...], mark: Mark) -> tuple[Operation | End, Mark]:
        self.num_replays += 1
        store = ReplayedStore(history, mark)
        try:
            end = End(self._around(self.names[index], store, self.actors[index]))
        except (Suspended, Exception) as error:
            end = End(error=error)
        return store.pending or end, store.mark

    def _path_to(self, state: State) -> list[str]:
        steps = []
        reached = self._parents[state]
        while reached is not None:
            steps.append(f"  {reached[1]}")
            reached = self._parents[reached[0]]
        return steps[::-1]


def _shown(operation: Operation) -> str:
    return f"{operation.name} {operation.path}"
