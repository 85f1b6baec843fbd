"""Attempt: runs one step function, makes its output durable and commits it; the same code under every backend."""

import contextlib
import functools
import logging
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel

from marin_dag.code.audit import refuse_another_config, refuse_other_packages, watch_of
from marin_dag.errors import UserError, listed
from marin_dag.graph.inputs import Input, inputs_in
from marin_dag.ledger.damage import DamagedInputError, check_input_files, repair
from marin_dag.ledger.epoch import Epoch
from marin_dag.ledger.progress import Progress
from marin_dag.ledger.provenance import now
from marin_dag.ledger.records import Failure, FileEntry, Record, Records, attempt_path, first_lines, make_manifest
from marin_dag.ledger.requests import PUBLISH, Telling, Tellings
from marin_dag.ledger.work_code import write_work_code
from marin_dag.run.attempt_log import AttemptLog
from marin_dag.run.context import ALONE, Host, Parts, StepStopped
from marin_dag.run.hearing import Hearing
from marin_dag.run.parts import parts_of
from marin_dag.run.result_document import result_document
from marin_dag.run.shards import ShardMap
from marin_dag.run.task import Channel, FanOut, Meeting, Outcome, Task
from marin_dag.store.prefix import open_store
from marin_dag.store.redact import redact, remember_secrets, without_known_secrets
from marin_dag.store.retry import is_transient
from marin_dag.store.store import explain_os_error, limit_met

ItemT = TypeVar("ItemT")
MappedT = TypeVar("MappedT")


class NotReproducedError(UserError):
    """A step that was run again gave something else than the first time."""


SHOWN_FILES = 5


class AttemptContext:
    """The StepContext of a running attempt."""

    def __init__(self, task: Task, channel: Channel, fan_out: FanOut, host: Host = ALONE) -> None:
        self.name = task.name
        self.digest = task.digest
        self.attempt = task.attempt
        self.lease_epoch = task.lease_epoch
        self.resources = task.resources
        self.host = host
        self.notice_seconds = task.notice_seconds
        self.wanted_milestones = task.wanted_milestones
        self.log = logging.getLogger(f"step.{task.name}")
        self._task = task
        self._channel = channel
        self._fan_out = fan_out
        self._store = open_store(task.prefix)
        self._records = Records(self._store)
        self._epoch = Epoch(self._store, task.digest, task.lease_epoch)
        self._started = now()
        self._shard_files: list[FileEntry] = []
        self._mapped: set[str] = set()
        self._published_folders: set[str] = set()
        self._output = attempt_path(task.name, task.digest, task.attempt)
        self._published: set[int] = set()
        self._computed_with: dict[str, str] = {}
        self.hearing = Hearing(Tellings(self._store), task.digest, task.attempt, self.log, old=task.old_tellings)
        self.repaired: tuple[str, ...] = ()
        """Of the first output, where this attempt is forced."""
        self._kind = kind = task.kind.load()
        self._code = watch_of(task.name, kind, task.config, task.identity, self.log)
        self.log_path = f"{self._output}.log" if host.index == 0 else f"{self._output}.host{host.index}.log"
        """Relative to the prefix."""
        self.output_path = self._store.make_folder(self._output)
        # What is forced proves nothing if it takes over the work of the first time.
        self._work = f"{self._output}.work" if task.is_forced else f"work/{task.digest}"

    @functools.cached_property
    def work_path(self) -> str:
        """See StepContext. Made when it is first asked for: many steps have nothing to resume from."""
        if self._task.identity["code"]["policy"] == "versioned" and not self._task.is_forced:
            write_work_code(self._store, self._work, self._task.identity, self._kind.resumes_at)
        return self._store.make_folder(self._work, is_durable=True)

    def map(
        self,
        function: Callable[[ItemT, str], MappedT],
        items: Iterable[ItemT],
        *,
        in_flight: int,
        name: str = "shards",
        on_finished: Callable[[int, MappedT], None] | None = None,
        on_counted: Callable[[int, int], None] | None = None,
    ) -> list[MappedT]:
        """See StepContext."""
        if name in self._mapped:
            raise ValueError(
                f"{self.name}: context.map(name={name!r}) twice; the second would be given the shards of the first. "
                "Give each its own name=."
            )
        self._mapped.add(name)
        shards = ShardMap(
            self._store,
            f"{self._work}/shards/{name}",
            self.lease_epoch,
            self._output,
            name,
            function,
            list(items),
            self.log,
        )
        results, files = shards.run(
            self._fan_out,
            in_flight,
            self.stop_requested,
            on_counted or (lambda done, total: self.progress(done, total, name)),
            on_finished or (lambda index, result: None),
        )
        self._shard_files += files
        return results

    def progress(self, done: int, total: int, unit: str, *, begin: float = 0, **figures: float) -> None:
        """See StepContext."""
        self._code.glance()
        if self.host.index == 0:
            # Plain numbers: the driver has not loaded what an array is of, and shows and writes whatever comes.
            plain = {name: float(value) for name, value in figures.items()}
            self._channel.report(self._task.key, Progress(int(done), int(total), unit, plain, float(begin)))

    def computed_with(self, **how: str) -> None:
        """See StepContext."""
        self._computed_with |= how

    def remark(self, text: str) -> None:
        """See StepContext."""
        self.log.warning("%s", text)
        if self.host.index == 0:
            self._channel.remark(f"{self.name}: {text}")

    def publish(self, milestone: int, folder: str, result: BaseModel) -> None:
        """See StepContext."""
        if self._task.milestone is None and not self._kind.parts:
            raise TypeError(
                f"{self.name}: only a kind with a StopAt field has milestones, and one with parts=True parts; return "
                "the result instead."
            )
        self._published_folders.add(folder)
        self._published.add(milestone)
        if self.host.index > 0:
            return
        self.check_code()
        if not self._task.is_forced or self._records.find(f"{self.digest}@{milestone}") is not None:
            self._commit(milestone, f"{self._output}/{folder}", result, ())
            self._channel.published(f"{self.digest}@{milestone}")

    def milestones(self) -> dict[int, Input[Any]]:
        """See StepContext."""
        return {
            milestone: Input(
                None,
                milestone=milestone,
                name=self.name,
                digest=self.digest,
                path=self._store.url(record.output_path),
                result=self._kind.result_type.model_validate(record.result),
                computed_with=record.provenance.computed_with,
            )
            for milestone, record in sorted(self._records.milestones(self.digest).items())
            if self._may_see(milestone)
        }

    def parts(self, growing: Input[Any], *, after: int = 0) -> Parts:
        """See StepContext."""
        return parts_of(growing, self._store, after=after)

    def _may_see(self, milestone: int) -> bool:
        if self._task.is_forced:  # else it would find its own end, and have nothing to do
            start = None if self._kind.continues is None else getattr(self._task.config, self._kind.continues)
            return isinstance(start, Input) and start.digest == self.digest and milestone <= (start.milestone or 0)
        known = self._task.known_milestones
        return known is None or milestone in known or milestone in self._published

    def stop_requested(self) -> bool:
        """See StepContext."""
        return bool(self.stop_reason())

    def stop_reason(self) -> str:
        """See StepContext."""
        if self._channel.stop_requested():
            return "the driver asked to stop"
        # The other hosts of a gang hear it from host 0, as they agree on where to stop.
        told = self.hearing.stop() if self.host.index == 0 else None
        return "" if told is None else told.said

    def told(self) -> Sequence[Telling]:
        """See StepContext."""
        told = self.hearing.others() if self.host.index == 0 else ()
        if not self._task.is_forced:
            return told
        for telling in told:
            if telling.word == PUBLISH:
                self.refuse(telling, "it is run again to see whether it gives the same, and publishes nothing new")
        return [telling for telling in told if telling.word != PUBLISH]

    def answer(self, telling: Telling, said: str) -> None:
        """See StepContext."""
        self.hearing.answer(telling, said)

    def refuse(self, telling: Telling, said: str) -> None:
        """See StepContext."""
        self.hearing.answer(telling, said, is_refused=True)

    def check_inputs(self) -> None:
        """Raises DamagedInputError if files are missing of what this attempt reads.

        One that goes on from a state behind where its input ends reads nothing of that input.
        """
        config = self._task.config
        if self._kind.continues is not None and self._has_state():
            config = config.model_copy(update={self._kind.continues: None})
        inputs = {item.key: item.name for _, item in inputs_in(config) if not item.is_growing}
        check_input_files(self._records, inputs)

    def _has_state(self) -> bool:
        files = [entry.path.removeprefix(f"{self._work}/") for entry in self._store.list(self._work)]
        saved = self._kind.resumes_at(files) if self._kind.resumes_at is not None else ()
        until = getattr(self._task.config, self._kind.stop_field) if self._kind.stop_field is not None else 0
        start = getattr(self._task.config, self._kind.continues) if self._kind.continues is not None else None
        # The input of a later leg is a state of its own trajectory, and the one that it reads unless there is a newer.
        begun = start.milestone or 0 if isinstance(start, Input) and start.digest == self.digest else -1
        return any(begun < at <= until for at in (*saved, *self.milestones()))

    def check_code(self) -> None:
        """Raises CodeChangedError if this process may run another code than the one that was planned."""
        self._code.check()

    def finish(self, result: BaseModel) -> Record:
        """Commits what the step function left, unless it published its last milestone itself."""
        if self._task.milestone is not None and (not self._task.is_forced or self._task.milestone in self._published):
            published = self._records.find(self._task.key)
            if published is not None:
                return published
        return self._commit(self._task.milestone, self._output, result, self._shard_files)

    def _commit(self, milestone: int | None, folder: str, result: BaseModel, expected: Iterable[FileEntry]) -> Record:
        task = self._task
        data = result_document(self.name, self._kind.result_type, result, self._store.prefix)
        # A milestone is an output of its own. An attempt that resumed has not got the earlier ones in its folder, and
        # must still leave the same bytes as one that was never disturbed.
        excluded = frozenset(self._published_folders) if folder == self._output else frozenset[str]()
        manifest = make_manifest(self._store, folder, tuple(expected), excluded=excluded)
        key = task.digest if milestone is None else f"{task.digest}@{milestone}"
        if task.is_forced:
            return self._compared(self._records.get(key), folder, manifest, data)
        record = Record(
            key=key,
            digest=task.digest,
            milestone=milestone,
            name=task.name,
            kind=task.kind.load().name,
            identity=without_known_secrets(task.identity),
            result=data,
            output_path=folder,
            attempt=task.attempt,
            manifest=manifest,
            provenance=task.provenance.model_copy(
                update={
                    "host": socket.gethostname(),
                    "started": self._started,
                    "finished": now(),
                    "resources": str(task.resources),
                    "lease_epoch": self.lease_epoch,
                    "computed_with": dict(self._computed_with),
                }
            ),
        )
        winner = self._epoch.commit(record)
        if winner.attempt != task.attempt:
            same = winner.manifest == manifest and winner.result == data
            self.log.log(
                logging.INFO if same else logging.WARNING,
                "attempt %s committed first; its output %s",
                winner.attempt,
                "is the same, byte for byte" if same else "differs: this step is not deterministic",
            )
        return winner

    def _compared(self, first: Record, folder: str, manifest: tuple[FileEntry, ...], result: Any) -> Record:
        """The record of the first time, which stays in force; raises NotReproducedError if this time differs.

        If it does not, what has been damaged of the first output since is replaced.
        """
        where = "" if first.milestone is None else f" at {first.milestone}"
        differing = sorted({entry.path for entry in set(manifest) ^ set(first.manifest)})
        found = []
        if differing:
            found.append(f"other files{where}: {listed(differing, SHOWN_FILES)}")
        if first.result != result:
            found.append(f"another result{where}: {result}, and the first time {first.result}")
        if found:
            raise NotReproducedError(
                f"run again, it gave {'; and '.join(found)}. It is not deterministic: something that shapes the output "
                f"is not in the step's identity. The first output stays in force: {self._store.url(first.output_path)} "
                f"(this one is {self._store.url(self._output)})."
            )
        repaired = repair(self._store, first, folder, self._records.milestones(self.digest).values())
        for path in repaired:
            self.log.warning("%s: was not as recorded, and is replaced", self._store.url(f"{first.output_path}/{path}"))
        self.repaired += repaired
        return first


def run_attempt(
    task: Task,
    channel: Channel,
    fan_out: FanOut,
    *,
    capture_prints: bool,
    host: Host = ALONE,
    meeting: Meeting | None = None,
) -> Outcome:
    """Runs the step function and commits its output. Every ending but a kill or an interrupt is an Outcome.

    On one of several hosts, host 0 commits when the function has returned on all that meet at `meeting`.
    """
    remember_secrets(task.config)
    context = AttemptContext(task, channel, fan_out, host)
    store = open_store(task.prefix)
    with AttemptLog(store, context.log_path, context.log) as log, contextlib.ExitStack() as prints:
        if capture_prints:
            prints.enter_context(contextlib.redirect_stdout(log))
            prints.enter_context(contextlib.redirect_stderr(log))
        prints.callback(context.hearing.close)
        context.log.info("attempt %s on %s pid %d, %s", task.attempt, socket.gethostname(), os.getpid(), task.resources)
        try:
            refuse_other_packages(task.name, task.identity)
            refuse_another_config(task.name, task.kind.load(), task.config, task.identity)
            context.check_code()
            if host.index == 0:
                context.check_inputs()
            if host.num_hosts == 1 and channel.stop_requested():  # while this waited for its resources
                return Outcome(task, "stopped")
            result = task.kind.load().function(task.config, context)
            context.check_code()
            if meeting is not None:
                meeting.all_returned()
            if host.index > 0:
                return Outcome(task, "done")
            record = context.finish(result)
            context.hearing.close(stopped="it had done all", unheard="it had done all before it came to that")
        except StepStopped as stop:
            context.log.info("stopped as asked: %s", stop)
            said = first_lines(stop).partition("\n")[0] if str(stop).strip() else ""
            told = context.hearing.stop() if host.index == 0 else None
            context.hearing.close(stopped=f"stopped {said}".strip(), unheard="it stopped before it came to that")
            return Outcome(task, "stopped", stopped_at=said, is_told_to_stop=told is not None)
        except BaseException as error:  # `sys.exit` in a step, too: it would end the driver, or a worker without a word
            if _is_of_the_worker(error):
                raise
            context.log.exception("failed")
            failure = failure_of(task, error).model_copy(update={"log_path": context.log_path})
            return Outcome(task, "failed", failure=failure)
        context.log.info("committed %s: %d files", record.key, len(record.manifest))
        return Outcome(task, "done", record=record, repaired=context.repaired)


def _is_of_the_worker(error: BaseException) -> bool:
    """Whether it is not of the step: Ray cancels by the one, and ends a worker that was sent SIGTERM by the other."""
    return isinstance(error, KeyboardInterrupt) or hasattr(error, "ray_terminate_msg")


def failure_of(task: Task, error: BaseException) -> Failure:
    """`error` as the record of a failed attempt."""
    explained, limit = None, limit_met(error)
    if limit is not None:
        explained = explain_os_error(limit, str(limit.filename or attempt_path(task.name, task.digest, task.attempt)))
    return Failure(
        key=task.key,
        name=task.name,
        attempt=task.attempt,
        error_type=type(error).__qualname__,
        error=first_lines(error) if explained is None else redact(explained),
        log_path=f"{attempt_path(task.name, task.digest, task.attempt)}.log",
        is_transient=is_transient(error),
        finished=now(),
        steps_to_force=error.steps_to_force if isinstance(error, DamagedInputError) else (),
    )
