"""copy [STEP...] --to DIR|gs://...: committed outputs to another prefix, verified there; and where a copy may go."""

import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from marin_dag.cli.session import (
    FAILED,
    NOTHING_WOULD_RUN,
    SELECTION,
    SOMETHING_WOULD_RUN,
    Command,
    Session,
)
from marin_dag.errors import UserError
from marin_dag.graph.graph import Selection
from marin_dag.graph.step import Step
from marin_dag.keep.copy.attachments import Attachments
from marin_dag.keep.copy.certified_copies import CertifiedStates
from marin_dag.keep.copy.copy_errors import DamagedSourceError
from marin_dag.keep.copy.copy_queue import CopyQueue
from marin_dag.keep.copy.copy_survey import READ_THREADS, keys_of, of_other_attempts
from marin_dag.keep.copy.copying import Copied, Copier
from marin_dag.ledger.records import COMMITS, Records, UnreadableRecordError
from marin_dag.quantities import counted, in_bytes
from marin_dag.run.interrupts import interrupt, signals_handled
from marin_dag.store.local import LocalStore
from marin_dag.store.prefix import open_store
from marin_dag.store.retry import patiently
from marin_dag.store.store import Store, StoreError

MAX_FINDINGS = 20
PROGRESS_SECONDS = 15.0
POLL_SECONDS = 0.2


def target_of(session: Session, option: str) -> Store:
    """The store that `option` gave; reaches it, and writes nothing.

    Raises:
        UserError: it cannot be reached, or is no second place.
    """
    session.refuse_twice(option)
    store, prefix = session.store, session.parsed.to if option == "--to" else session.parsed.copy_to
    if not prefix.strip():
        raise UserError(f"{option}: it is empty; name a folder or a bucket.")
    try:
        target = open_store(prefix)
    except StoreError as error:
        raise UserError(str(error).replace("--prefix", option)) from None
    here, there = _place(store), _place(target)
    if here == there:
        raise UserError(f"{option} {prefix}: the same prefix as --prefix; name another folder or bucket.")
    for inner, outer, said in (
        (there, here, "it lies inside --prefix"),
        (here, there, "--prefix lies inside it, which is"),
    ):
        if inner.startswith(f"{outer}/"):
            raise UserError(f"{option} {prefix}: {said} {store.prefix}; name a folder or bucket beside it.")
    try:
        target.list(COMMITS)
    except StoreError as error:
        raise UserError(f"nothing was started. {str(error).replace('--prefix', option)}") from None
    return target


def begun(copier: Copier, session: Session) -> Attachments:
    """What goes along with the copies, after a first word at the target; raises UserError where nothing can be
    written."""
    attachments = Attachments(copier, session.forks.folder)
    try:
        attachments.leave_word()
    except StoreError as error:
        raise UserError(f"nothing was started. {copier.said(error)}") from None
    return attachments


def _place(store: Store) -> str:
    """By which two prefixes are one: of a folder where links lead."""
    return str(Path(store.prefix).resolve()) if isinstance(store, LocalStore) else store.prefix


def still_to_copy(source: Store, target: Store, steps: Sequence[Step[Any]]) -> tuple[list[str], int, int]:
    """Keys that are committed and not at the target, how many there are at the source, and the bytes of the keys."""
    records = Records(source)
    keys = keys_of(steps, records.committed_keys())
    there = Records(target).committed_keys()
    left = [key for key in keys if key not in there]

    def size_of(key: str) -> int:
        try:
            record = records.find(key)
        except UnreadableRecordError:  # the copy will say so
            record = None
        return 0 if record is None else sum(entry.size_in_bytes for entry in record.manifest)

    with ThreadPoolExecutor(READ_THREADS) as pool:
        return left, len(keys), sum(pool.map(size_of, left))


def damage_said(error: DamagedSourceError, source: Store) -> list[str]:
    """Lines about what of an output is not as recorded, such as `verify` prints."""
    lines = [f"{error} in {source.url(error.folder)}"]
    lines += [f"  {finding.path} {finding.what}" for finding in error.findings[:MAX_FINDINGS]]
    if len(error.findings) > MAX_FINDINGS:
        lines.append(f"  and {len(error.findings) - MAX_FINDINGS} more")
    return lines


class _Lines:
    """Taken from any thread, printed by the one that waits."""

    def __init__(self) -> None:
        self._lines: SimpleQueue[str] = SimpleQueue()

    def say(self, text: str) -> None:
        """Takes what is to be printed."""
        self._lines.put(text)

    def print(self) -> None:
        """Prints what there is by now."""
        while not self._lines.empty():
            print(self._lines.get(), flush=True)


class _Report:
    """What becomes of each output, heard in the threads of the queue, and said by the thread that waits for them."""

    def __init__(
        self, session: Session, names: dict[str, str], copier: Copier, attachments: Attachments, lines: _Lines
    ) -> None:
        self._session, self._names, self.lines = session, names, lines
        self._copier, self._cures = copier, set[str]()
        self._attachments = attachments
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        """Of what became of the outputs."""
        self.size_in_bytes = 0
        """Of what was written."""
        self.failed: dict[str, None] = {}
        self.is_full = False
        """Whether the target has no room left."""
        self.has_states = False
        """Whether a certified state was copied."""

    def on_copied(self, copied: Copied) -> None:
        with self._lock:
            self.counts[copied.what] += 1
            self.size_in_bytes += copied.size_in_bytes
        if copied.what in ("copied", "mended", "there") and copied.record is not None:
            self._attachments.add(copied.record)
        name = self._names[copied.key]
        if copied.what in ("copied", "mended"):
            assert copied.record is not None
            size = sum(entry.size_in_bytes for entry in copied.record.manifest)
            files = f"{counted(len(copied.record.manifest), 'file')}, {in_bytes(size)}"
            there = copied.what == "copied" and copied.num_files < len(copied.record.manifest)
            known = f", {len(copied.record.manifest) - copied.num_files:,} of the files were there" if there else ""
            mended = f"{counted(copied.num_files, 'damaged file')} replaced at the target"
            what = f"copied{known}{rate(copied)}" if copied.what == "copied" else mended
            self.lines.say(f"{name}: {files}, {what}")
        elif copied.what == "anothers":
            same = "with the same files and result" if copied.is_same else "WITH OTHER FILES OR ANOTHER RESULT"
            self.lines.say(f"{name}: is there from another attempt, {same}; that one stays")
        elif copied.what == "gone":
            self.lines.say(f"{name}: was collected at the source meanwhile")

    def on_postponed(self, key: str, pause_seconds: float, error: Exception) -> None:
        self.lines.say(f"{self._names[key]}: tried again in {pause_seconds:g} s after: {self._copier.said(error)}")

    def on_failed(self, key: str, error: Exception) -> None:
        self.failed[key] = None
        name = self._names[key]
        step = name.partition("@")[0]
        if isinstance(error, DamagedSourceError):
            said = damage_said(error, self._session.store)
            again = self._session.line("--force", step, "--until", step, without=[*SELECTION, "--to", "--check"])
            said.append(f"to make them again, and replace what is damaged:  {again}")
        else:
            said = self._copier.said(error, told=self._cures).splitlines()
        self.lines.say("\n".join([f"{name}: not copied: {said[0]}", *said[1:]]))

    def on_full(self, keys: Collection[str], error: Exception) -> None:
        with self._lock:
            was_full, self.is_full = self.is_full, True
        self.failed |= dict.fromkeys(keys)
        if not was_full:
            self.lines.say(f"no room is left, and nothing more is tried: {self._copier.said(error)}")

    def print_state(self, text: str) -> None:
        """Says of a certified state that it was copied."""
        self.has_states = True
        print(text, flush=True)


def rate(copied: Copied) -> str:
    """How fast, where it took long enough to tell."""
    return f", {in_bytes(copied.size_in_bytes / copied.seconds)}/s" if copied.seconds >= 1 else ""


def _copy(session: Session) -> int:
    with signals_handled(interrupt):  # SIGTERM as Ctrl-C: what is there by then, and what goes on, is told
        return _copied(session)


def _copied(session: Session) -> int:
    if session.parsed.dry_run and session.parsed.check:
        raise UserError("copy --check --dry-run: to compare what is there is to read it all; leave one of the two out.")
    if session.parsed.to is None:
        raise UserError("copy: say where to: --to DIR, --to gs://bucket/folder or --to s3://bucket/folder.")
    target = target_of(session, "--to")
    steps = _selected(session)
    left, num_there, size = still_to_copy(session.store, target, steps)
    if not num_there:
        what = " ".join(["copy", *session.parsed.names])
        raise UserError(
            f"{what}: nothing of it is committed in {session.store.prefix}; run it first, or give its --prefix."
        )
    names = keys_of(steps, Records(session.store).committed_keys())
    states = CertifiedStates(session.store, target, steps)
    if session.parsed.dry_run:
        certified = states.left()
        for name in (*(names[key] for key in left), *(f"{state.name}, certified" for state in certified)):
            print(f"{name}: not there yet")
        print(f"{counted(len(left), 'output')} to copy, {in_bytes(size)}; {num_there - len(left):,} are there already")
        return SOMETHING_WOULD_RUN if left or certified else NOTHING_WOULD_RUN
    lines = _Lines()
    copier = Copier(session.store, target, say=lines.say, check=session.parsed.check)
    attachments = begun(copier, session)
    report = _Report(session, names, copier, attachments, lines)
    try:
        to_do = list(names) if session.parsed.check else [*left, *of_other_attempts(copier, names, attachments.know)]
        report.counts["there"] = len(names) - len(to_do)
        _carry_out(copier, report, to_do, size)
        there = _tell_missed(session, target, report, names)
        problems = [] if report.is_full else attachments.copy([key for key in names if key in there])
        if not report.is_full:
            problems += states.copy(copier, report.print_state)
    except KeyboardInterrupt:
        num_copied = report.counts["copied"]
        num_there = len(names) - len(left) + num_copied
        print(
            f"{counted(num_copied, 'output')} copied by now: {num_there:,} of {len(names):,} are in {target.prefix}, "
            f"and stay; to go on:  {session.line('copy', *session.parsed.names)}",
            flush=True,
        )
        raise
    finally:
        copier.close()
    for problem in problems:
        print(problem)
    return _concluded(session, target, report, len(names), bool(problems))


def _tell_missed(session: Session, target: Store, report: _Report, names: dict[str, str]) -> frozenset[str]:
    """Counts as failed what was not to be found when its turn came, and is committed for all that: `gc` takes records
    away for a moment, and may put them back. Returns what is at the target."""
    here, there = patiently(Records(session.store).committed_keys), patiently(Records(target).committed_keys)
    for key, name in names.items():
        if key in here and key not in there and key not in report.failed:
            report.failed[key] = None
            report.counts["gone"] -= 1
            print(f"{name}: not copied: its record was gone for a moment, and is there again")
    return there


def _carry_out(copier: Copier, report: _Report, keys: Sequence[str], size: int) -> None:
    queue = CopyQueue(copier, report)
    for key in keys:
        queue.add(key)
    queue.end()
    queue.start()
    begun = last = time.monotonic()
    try:
        while not queue.is_over(POLL_SECONDS):
            report.lines.print()
            now = time.monotonic()
            if now - last >= PROGRESS_SECONDS:
                last = now
                speed = copier.bytes_done / (now - begun)
                print(f"  {in_bytes(copier.bytes_done)} of {in_bytes(size)}, {in_bytes(speed)}/s")
    except KeyboardInterrupt:
        queue.cancel()
        while not queue.is_over(POLL_SECONDS):
            pass
        raise
    finally:
        report.lines.print()


def _concluded(session: Session, target: Store, report: _Report, num_outputs: int, has_problems: bool) -> int:
    counts = report.counts
    num_new, num_mended, num_there = counts["copied"], counts["mended"], counts["there"] + counts["anothers"]
    num_outputs -= counts["gone"]
    if report.failed:
        again = session.line("copy", *session.parsed.names)
        print(f"{len(report.failed):,} of {counted(num_outputs, 'output')} not copied; then:  {again}")
    elif not num_new and not num_mended:
        more = "more " if report.has_states else ""
        outputs = f"{counted(num_there, 'output')}, {'all ' if num_there != 1 else ''}"
        print(f"nothing {more}to copy: {outputs}in {target.prefix}")
    else:
        mended = f", {num_mended:,} mended" if num_mended else ""
        were = "was" if num_there == 1 else "were"
        written = f"{in_bytes(report.size_in_bytes)} written"
        print(
            f"{counted(num_new, 'output')} copied{mended}, {written}; {num_there:,} {were} there: "
            f"all {num_outputs:,} are in {target.prefix}"
        )
    return FAILED if report.failed or has_problems else NOTHING_WOULD_RUN


def _selected(session: Session) -> list[Step[Any]]:
    graph, selection = session.graph(), session.selection()
    if session.parsed.names:
        if selection != Selection():
            raise UserError("copy: name steps, or select them with --only, --until and --from; not both.")
        named = {name for text in session.parsed.names for name in graph.matching(text, "copy")}
    else:
        named = set(selection.names(graph))
    return [step for step in graph.steps if step.name in named]


def _add_arguments(parser: Any) -> None:
    parser.add_argument(
        "--check", action="store_true", help="(copy) compare what is there already, and replace what is damaged"
    )


COMMAND = Command(
    "copy",
    "[STEP...] --to DIR|gs://...",
    "committed outputs to another prefix, each verified there",
    _copy,
    0,
    1_000,
    _add_arguments,
    options=("--set", "--to", "--dry-run", "--only", "--until", "--from"),
)
