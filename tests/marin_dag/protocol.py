"""The protocol of commits, leases and epochs, in a world that interleaves real drivers and attempts.

The code of `marin_dag` runs unchanged. Replaced are its means: the store, clocks, pauses, random names, the threads of
heartbeats and checksums, the log file of an attempt, and requests of users to steps.

Bounds: a driver waits for another once and makes one attempt, then its user types Ctrl-C twice; a heartbeat that
stands still is watched twice. Within them all orders, kills and guesses about dead holders are followed.
"""

import argparse
import contextlib
import functools
import logging
import string
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from types import FrameType, SimpleNamespace
from typing import Any
from unittest import mock

from pydantic import BaseModel

from marin_dag.graph.step import Input, Step, StepContext, StepStopped, StopAt, step
from marin_dag.keep import collect
from marin_dag.keep.collect import Collector, Roots
from marin_dag.ledger import lease, records
from marin_dag.ledger.checked_json import checked_body
from marin_dag.ledger.epoch import CLAIM, LEASES, EpochState, parts
from marin_dag.ledger.lease import Held, Holder, Lease, Leases
from marin_dag.ledger.provenance import Provenance
from marin_dag.ledger.records import COMMITS, LABELS, Record
from marin_dag.run import attempt, retries
from marin_dag.run import driver as run
from marin_dag.run.attempt import run_attempt
from marin_dag.run.driver import Run
from marin_dag.run.local import backend as local_backend
from marin_dag.run.local.backend import LocalBackend, SequentialFanOut
from marin_dag.run.task import Task
from marin_dag.store import retry as transient
from marin_dag.store.store import Store, StoreError
from tests.marin_dag.interleavings import (
    Actor,
    Content,
    MemoryStore,
    Operation,
    Promise,
    Search,
    described,
    promise,
)

# A user who has waited long enough, or lost once, types Ctrl-C twice: otherwise two drivers that believe each other
# dead go on for ever.
POLLS_OF_ONE_DRIVER = 1
ATTEMPTS_OF_ONE_DRIVER = 1
SURVIVOR = "survivor"
"""The driver that comes last, without bounds."""
PROVENANCE = Provenance(git_commit=None, is_dirty=None, argv=(), host="", environment="")


class World:
    """The machine that an actor sees while it is replayed."""

    def __init__(self, name: str, store: Store) -> None:
        self.name, self.store = name, store
        self.num_names = 0
        self.seconds = 0.0
        self.num_polls = 0
        self.num_acquires = 0
        self.is_watching = False
        self.leases: list[Leases] = []
        self.run: Run | None = None

    def new_name(self) -> str:
        self.num_names += 1
        return f"{self.name}{self.num_names}"

    def forget(self, *known: object) -> None:
        """Declare that the actor's later moves depend on these fields alone."""
        if not self.store.is_on_new_ground:  # type: ignore[attr-defined]
            return
        facts: list[object] = [known, self.num_names, self.seconds, self.num_polls, self.num_acquires, _driver_stands()]
        facts += [(item._seen, [_fields(held) for held in item._held]) for item in self.leases]
        if self.run is not None:
            run = self.run
            facts += [{**vars(node), "step": "", "lease": _fields(node.lease)} for node in run._nodes.values()]
            facts += [sorted(run._committed), sorted(run.failures), run._is_stopping]
            backend = {name: value for name, value in vars(run.backend).items() if name != "_listener"}
            facts += [value for _, value in sorted(backend.items()) if not callable(value)]
        text = repr(facts)
        assert " at 0x" not in text, f"an address differs in each replay, so nothing would be forgotten: {text}"
        self.store.forget(text)  # type: ignore[attr-defined]

    def time(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += 10.0
        self.num_polls += 1
        if self.num_polls > POLLS_OF_ONE_DRIVER and self.name != SURVIVOR:
            raise KeyboardInterrupt

    def clock(self) -> float:
        """Return the time; while a heartbeat is watched, follow both that its holder is alive and that it is dead."""
        if self.is_watching and self.store.choose("is the other one silent for long?"):  # type: ignore[attr-defined]
            self.seconds += 1000.0
        return self.seconds

    def beat(self) -> None:
        for held in [item for leases in self.leases for item in leases._held]:
            held.beat()


current = World("", MemoryStore(frozenset()))


class _OneByOne:
    def __init__(self, num_threads: int) -> None: ...
    def __enter__(self) -> "_OneByOne":
        return self

    def __exit__(self, *raised: object) -> None: ...
    def map(self, function: Any, items: Any) -> list[Any]:
        return [function(item) for item in items]


class _Silent:
    def begin(self, names: list[str]) -> None: ...
    def say(self, text: str) -> None: ...
    def event(self, name: str, what: str, detail: str) -> None: ...
    def complain(self, text: str) -> None: ...
    def began(self, name: str, moment: float) -> None: ...
    def progress(self, name: str, progress: object) -> None: ...
    def __enter__(self) -> "_Silent":
        return self

    def __exit__(self, *raised: object) -> None: ...


class _Deaf:
    def report(self, key: str, progress: object) -> None: ...
    def published(self, key: str) -> None: ...
    def say(self, text: str) -> None: ...
    def stop_requested(self) -> bool:
        return False


class _NoRequests:
    old: frozenset[str] = frozenset()
    is_asked_to_end = False

    def __init__(self, *arguments: object, **keywords: object) -> None: ...
    def start(self) -> None: ...
    def stop_waiting_steps(self, *arguments: object, **keywords: object) -> None: ...

    def wanted_milestones(self, digest: str) -> frozenset[int]:
        return frozenset()

    def request_milestones(self, *arguments: object) -> bool:
        return True

    def stop_of(self, digest: str) -> None: ...
    def stop(self) -> None: ...
    def close(self, **answers: str) -> None: ...


class _NoLog(_Silent):
    def __init__(self, *arguments: object) -> None: ...


class _WorldLeases(Leases):
    def __init__(self, store: Store) -> None:
        super().__init__(store, clock=lambda: current.clock())
        current.leases.append(self)

    def _start_heartbeats(self) -> None: ...

    def acquire(self, *arguments: Any, **options: Any) -> Lease | Held:
        current.num_acquires += 1
        current.forget()
        is_tired = current.name != SURVIVOR and current.num_names > ATTEMPTS_OF_ONE_DRIVER
        if current.run is not None and is_tired:
            raise KeyboardInterrupt
        got = super().acquire(*arguments, **options)
        current.forget("acquired", _fields(got) if isinstance(got, Lease) else got)
        return got

    def release(self, digest: str, epoch: int, *, has_committed: bool) -> None:
        current.forget("release", epoch, has_committed)
        super().release(digest, epoch, has_committed=has_committed)

    def _alive(self, digest: str, state: EpochState) -> Held | None:
        current.is_watching = (digest, state.number) in self._seen
        try:
            return super()._alive(digest, state)
        finally:
            current.is_watching = False


def _driver_stands() -> list[object]:
    """Return where in `Run` an actor is, with the variables that it may still read."""
    found: list[object] = [repr(sys.exc_info()[1])]
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == run.__file__:
            here = frame.f_locals
            outcome, got = here.get("outcome"), here.get("got")
            found += [frame.f_code.co_name, frame.f_lineno, here.get("lost"), repr(here.get("error"))]
            found += [None if outcome is None else (outcome.status, outcome.failure)]
            found += [_fields(got) if isinstance(got, Lease) else got]
        frame = frame.f_back
    return found


def _fields(lease: Lease | None) -> list[object]:
    return [] if lease is None else [lease.digest, lease.epoch, lease.is_lost, lease._num_beats, lease._renewed]


def _forgetting(act: Callable[[Store, str, int], None]) -> Callable[[Store, str, int], None]:
    """Wrap a function on an epoch: it depends on the number of the epoch alone."""

    def acting(store: Store, digest: str, number: int) -> None:
        caller = sys._getframe(1)
        where = caller.f_code.co_name, caller.f_lineno, caller.f_locals.get("has_committed")
        current.forget(act.__name__, number, where)
        act(store, digest, number)
        current.forget(act.__name__, number, where, "done")

    return acting


def _claimant(name: str) -> Holder:
    current.forget("claims", sys._getframe(1).f_locals["epoch"])
    return Holder(name=name, host=f"machine of {current.name}", pid=1, process="", since="")


def in_world(name: str, store: Store, actor: Actor) -> Any:
    """Run one actor in a world of its own."""
    global current
    current = World(name, store)
    return actor(store)


@contextlib.contextmanager
def replaced_machine() -> Iterator[None]:
    """Let the modules of the protocol see the current world, for a block."""
    clock = SimpleNamespace(
        time=lambda: current.time(), monotonic=lambda: current.monotonic(), sleep=lambda s: current.sleep(s)
    )
    names = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=current.new_name()))
    replacements: list[tuple[Any, str, Any]] = [
        (attempt, "open_store", lambda prefix: current.store),
        (attempt, "AttemptLog", _NoLog),
        (attempt, "child_output_in_place", contextlib.nullcontext),
        (attempt, "AttemptRequests", _NoRequests),
        (attempt, "Requests", _NoRequests),
        (attempt, "now", lambda: ""),
        (lease, "now", lambda: ""),
        (collect, "Leases", _WorldLeases),
        (lease, "time", clock),
        (lease, "uuid", names),
        (lease, "carry_out", _forgetting(lease.carry_out)),
        (lease, "seal", _forgetting(lease.seal)),
        (lease, "this_process", _claimant),
        (local_backend, "time", clock),
        (records, "ThreadPoolExecutor", _OneByOne),
        (run, "Leases", _WorldLeases),
        (run, "DriverRequests", _NoRequests),
        (run, "SourceArchive", lambda store, steps: SimpleNamespace(keep=lambda: None)),
        (run, "collect_provenance", lambda store: PROVENANCE),
        (run, "new_attempt", lambda: f"20200101-000000-{zlib.crc32(current.new_name().encode()):08x}"),
        (run, "time", clock),
        (retries, "time", clock),
        (transient, "PAUSES_SECONDS", (0.0,)),
    ]
    with contextlib.ExitStack() as stack:
        for module, name, value in replacements:
            stack.enter_context(mock.patch.object(module, name, value))
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


class Nothing(BaseModel, frozen=True, extra="forbid"):
    pass


class Leg(BaseModel, frozen=True, extra="forbid"):
    until_step: StopAt[int]


class Made(BaseModel, frozen=True, extra="forbid"):
    number: int


def put(context: StepContext, file: str, text: str) -> None:
    store = current.store
    store.write(f"{context.output_path.removeprefix(f'{store.prefix}/')}/{file}", text.encode())


@step()
def plain(config: Nothing, context: StepContext) -> Made:
    """Write one file, after a heartbeat; stop if asked."""
    current.forget(context.attempt, context.lease_epoch)
    current.beat()
    current.forget(context.attempt, context.lease_epoch)
    if context.stop_requested():
        raise StepStopped("asked to")
    put(context, "file", "the same of every attempt")
    return Made(number=1)


@step()
def quiet(config: Nothing, context: StepContext) -> Made:
    """Write one file, without a heartbeat."""
    current.forget(context.attempt, context.lease_epoch)
    put(context, "file", "the same of every attempt")
    return Made(number=1)


@step()
def legs(config: Leg, context: StepContext) -> Made:
    """Publish two milestones."""
    current.forget(context.attempt, context.lease_epoch)
    done = context.milestones()
    for at in range(max(done, default=0) + 1, config.until_step + 1):
        put(context, f"{at}/file", f"state at {at}")
        context.publish(at, str(at), Made(number=at))
    return Made(number=config.until_step)


QUIET = quiet("quiet", Nothing())
PLAIN = plain("plain", Nothing())
TWO_LEGS = legs("legs", Leg(until_step=2))


def driver_of(*steps: Step[Any]) -> Actor:
    """Return a driver with its attempts in its own process."""

    def drive(store: Store) -> int:
        run = Run(steps, store, LocalBackend(), _Silent(), command="", back_off_seconds=1.0)  # type: ignore[arg-type]
        current.run = run
        try:
            return run.run()
        except StoreError:  # before any step started: one message to the user
            return 1

    return drive


def attempt_of(item: Step[Any], epoch: int) -> str:
    """Run one attempt as a worker does; return its status."""
    name = f"{current.name}-{epoch}"
    task = Task(
        prefix="memory://runs",
        name=item.name,
        kind=item.kind,
        digest=item.digest,
        milestone=item.until,
        identity=item.identity,
        config=item.config,
        resources=item.resources,
        attempt=name,
        lease_epoch=epoch,
        provenance=PROVENANCE,
    )
    return run_attempt(task, _Deaf(), SequentialFanOut(), capture_prints=False).status


def holder_of(item: Step[Any]) -> Actor:
    """Return an actor that acquires, makes one attempt and releases: the part where drivers meet."""

    def hold(store: Store) -> str:
        leases = _WorldLeases(store)
        try:
            got = leases.acquire(item.digest, item.name, lambda: None)
            if isinstance(got, Held):
                got = leases.acquire(item.digest, item.name, lambda: None)
            if isinstance(got, Held):
                return "waits"
            current.forget(got.epoch)
            status = attempt_of(item, got.epoch)
            current.forget(got.epoch, status)
            got.release(has_committed=status == "done")
        except StoreError:
            return "stumbles"
        return status

    return hold


def claimed(item: Step[Any]) -> dict[str, bytes]:
    """Return a store in which another process has claimed the first epoch of `item`."""
    holder = Holder(name=item.name, host="machine of D", pid=1, process="", since="")
    return {f"{LEASES}/{item.digest}/00000001.{CLAIM}": holder.model_dump_json().encode()}


def worker_of(item: Step[Any]) -> Actor:
    """Return the attempt of the first epoch, on a machine of its own."""
    return lambda store: attempt_of(item, 1)


def giver_of(item: Step[Any]) -> Actor:
    """Return the driver of that attempt, which believes it dead, releases the lease and starts again."""

    def give(store: Store) -> str:
        with contextlib.suppress(StoreError):  # as a driver does: a lease expires
            _WorldLeases(store).release(item.digest, 1, has_committed=False)
        current.forget("given up")
        return str(holder_of(item)(store))

    return give


def looks_private(actor: str, operation: Operation, files: Mapping[str, bytes]) -> bool:
    """Return whether the order of an operation makes no difference.

    That is so for an attempt's own files, which no other actor reads before the record exists, and for records and
    labels that exist, which never change (see `check_change`).
    """
    name, path, _ = operation
    if name == "choose" or path.startswith(("outputs/", "failures/")):
        return True
    return name != "list" and path in files and path.startswith((f"{COMMITS}/", f"{LABELS}/"))


def check_outputs(content: Content) -> None:
    """Check that readers see complete outputs, each with its label."""
    files = dict(content)
    for path, data in files.items():
        if not path.startswith(f"{COMMITS}/"):
            continue
        record = Record.model_validate_json(checked_body(data))
        assert path == f"{COMMITS}/{record.key}.json", f"{path} holds the record of {record.key}"
        promise(Promise.LABELLED, f"{LABELS}/{record.name}/{record.key}" in files, f"{path} has no label")
        promise(Promise.WHOLE, bool(record.manifest), f"{path} has no files")
        for entry in record.manifest:
            there = files.get(f"{record.output_path}/{entry.path}")
            is_whole = there is not None and described(there) == (entry.size_in_bytes, entry.crc32c)
            promise(Promise.WHOLE, is_whole, f"{path}: {entry.path} is missing or torn")


def check_change(actor: str, operation: Operation, before: Content, after: Content) -> None:
    """Check that records are created once, never changed, and never by an older epoch."""
    path = operation.path
    old, new = dict(before).get(path), dict(after).get(path)
    is_new_or_free = old is None or not path.startswith((f"{LABELS}/", f"{COMMITS}/"))
    promise(Promise.IMMUTABLE, is_new_or_free, f"{actor}: {operation.name} {path}")
    if not path.startswith(f"{COMMITS}/"):
        return
    assert new is not None
    record = Record.model_validate_json(checked_body(new))
    of_lease = f"{LEASES}/{record.digest}/"
    newest = max((parts(name)[1] for name, _ in before if name.startswith(of_lease)), default=0)
    mine = record.provenance.lease_epoch
    promise(Promise.FENCED, newest <= mine, f"{actor} of epoch {mine} publishes {path} in epoch {newest}")


class EndCheck:
    """Checks that after any end one undisturbed driver completes everything."""

    def __init__(self, *steps: Step[Any]) -> None:
        self._steps = steps
        self._wanted = {f"{COMMITS}/{item.key}.json" for item in steps}
        self._seen: set[Content] = set()

    def returned(self, actor: str, value: object, content: Content) -> None:
        """Check that an actor that returns 0 has made everything."""
        if value == 0:
            assert self._wanted <= dict(content).keys(), f"{actor} returned 0, and a record is missing"

    def __call__(self, content: Content) -> None:
        if content in self._seen:
            return
        self._seen.add(content)
        store = MemoryStore(content)
        code = in_world(SURVIVOR, store, driver_of(*self._steps))
        assert code == 0, "the next run does not complete"
        check_outputs(store.content)
        assert self._wanted <= dict(store.content).keys()
        before = dict(content)
        changed = [path for path, data in store.content if path.startswith(COMMITS) and before.get(path, data) != data]
        assert not changed, f"the next run changed {changed}"


def search(actors: Mapping[str, Actor], *steps: Step[Any], **options: Any) -> Search:
    """Return the search over all interleavings of `actors`, with every check."""
    at_end = EndCheck(*steps)
    return Search(
        actors,
        is_private=options.pop("is_private", looks_private),
        on_content=check_outputs,
        on_change=check_change,
        on_return=at_end.returned,
        on_end=at_end,
        around=in_world,
        **options,
    )


class ReadsOne(BaseModel, frozen=True, extra="forbid"):
    source: Input[Made]


@step()
def reads(config: ReadsOne, context: StepContext) -> Made:
    """Read the output of `quiet`; raise AssertionError if a file is gone."""
    store = current.store
    try:
        store.read(f"{config.source.path.removeprefix(f'{store.prefix}/')}/file")
    except FileNotFoundError:
        raise AssertionError("a step reads a committed output, and its file is gone") from None
    put(context, "file", "read")
    return Made(number=2)


READS = reads("reads", ReadsOne(source=QUIET))  # type: ignore[arg-type]


def collector_of(item: Step[Any]) -> Actor:
    """Return a collector that deletes the output of `item`, which it found before the start."""

    def collect(store: Store) -> str:
        made = MemoryStore(made_content(item))
        ((garbage),) = [
            found
            for found in Collector(made, Roots(frozenset(), frozenset({item.name})), older_than_seconds=0).find()
            if found.key == item.key
        ]
        assert garbage.files
        try:
            return Collector(store, Roots(frozenset(), frozenset()), older_than_seconds=0).delete([garbage])[0]
        except StoreError:
            return "stumbles"

    return collect


@functools.cache
def made_content(item: Step[Any]) -> Content:
    """Return a store in which `item` is finished."""
    global current
    before = current
    store = MemoryStore(frozenset())
    assert in_world(SURVIVOR, store, driver_of(item)) == 0
    current = before
    return store.content


def search_beside_gc(**options: Any) -> Search:
    """Return the search over a driver and a collector of its input."""
    survived: set[Content] = set()

    def check_end(content: Content) -> None:
        for path, data in content:
            assert not (path.startswith("failures/") and b"its file is gone" in data), data.decode()
        if content not in survived:
            survived.add(content)
            store = MemoryStore(content)
            assert in_world(SURVIVOR, store, driver_of(QUIET, READS)) == 0, "the next run does not complete"
            check_outputs(store.content)

    return Search(
        {"gc": collector_of(QUIET), "driver": driver_of(READS)},
        content=dict(made_content(QUIET)),
        is_private=lambda actor, operation, files: operation.name == "choose" or f"/{READS.name}-" in operation.path,
        on_content=check_outputs,
        on_end=check_end,
        around=in_world,
        **options,
    )


def main() -> None:
    """Run searches that take too long for the suite: python -m tests.marin_dag.protocol."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--drivers", type=int, default=3)
    parser.add_argument("--faults", type=int, default=0, help="operations that fail or lose their reply")
    parser.add_argument("--step", choices=[QUIET.name, PLAIN.name, TWO_LEGS.name], default=TWO_LEGS.name)
    parsed = parser.parse_args()
    (item,) = (item for item in (QUIET, PLAIN, TWO_LEGS) if item.name == parsed.step)
    started = time.monotonic()
    with replaced_machine():
        drivers = {name: driver_of(item) for name in string.ascii_uppercase[: parsed.drivers]}
        found = search(drivers, item, num_faults=parsed.faults)
        num_states = found.run()
    print(
        f"{parsed.drivers} drivers of {item.name!r}, each killed before or after any of its operations, with up to "
        f"{parsed.faults} faults: {num_states:,} states, {len(found.contents):,} contents of the store, "
        f"no promise broken, in {time.monotonic() - started:.0f} s"
    )


if __name__ == "__main__":
    main()
