"""Attempt: runs one step function, makes its output durable and commits it, under every backend."""

import contextlib
import functools
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel

from marin_dag.code.audit import CodeWatch
from marin_dag.graph.context import ALONE, Host, Parts, StepStopped
from marin_dag.graph.inputs import Input
from marin_dag.identity.code_identity import check_packages
from marin_dag.identity.identity import check_config
from marin_dag.ledger.damage import check_input_files, repair_first_output
from marin_dag.ledger.epoch import Epoch
from marin_dag.ledger.marks import marked_as_forced
from marin_dag.ledger.output_warning import OutputWarning, output_warning
from marin_dag.ledger.progress import Progress
from marin_dag.ledger.provenance import now
from marin_dag.ledger.records import FileEntry, Record, Records, attempt_path, first_lines, make_manifest
from marin_dag.ledger.requests import PUBLISH, Request, Requests
from marin_dag.ledger.work_files import write_work_code
from marin_dag.record_key import key_of
from marin_dag.run.attempt_log import AttemptLog, child_output_in_place, remember_secrets, step_logger
from marin_dag.run.input_files import InputFiles, inputs_in
from marin_dag.run.parts import parts_of
from marin_dag.run.request_polling import AttemptRequests
from marin_dag.run.result_document import result_document
from marin_dag.run.shards import ShardMap
from marin_dag.run.task import Channel, FanOut, Outcome, Task
from marin_dag.run.usage import UNCOVERED_FIX, UncoveredError, Usage, uncovered_text
from marin_dag.store.prefix import open_store
from marin_dag.store.redact import without_known_secrets

ItemT = TypeVar("ItemT")
MappedT = TypeVar("MappedT")


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
        self.log = step_logger(task.name)
        self._task = task
        self._channel = channel
        self._fan_out = fan_out
        self._store = open_store(task.prefix)
        self._records = Records(self._store)
        self.input_files = InputFiles(self._store)
        self._epoch = Epoch(self._store, task.digest, task.lease_epoch)
        self._started = now()
        self.usage = Usage((task.config,), self._store.prefix, time.time())
        self._uncovered: tuple[str, ...] = ()
        self._shard_files: list[FileEntry] = []
        self._mapped: set[str] = set()
        self._published_folders: set[str] = set()
        self._output = attempt_path(task.name, task.digest, task.attempt)
        self._published: set[int] = set()
        self._computed_with: dict[str, str] = {}
        self._output_warnings: list[OutputWarning] = []
        self.polled_requests = AttemptRequests(
            Requests(self._store), task.digest, task.attempt, self.log, old=task.old_requests
        )
        self.repaired: tuple[str, ...] = ()
        """Files of the first output that this attempt, a forced one, has replaced."""
        self._kind = kind = task.kind
        code = task.identity["code"]
        self._code = CodeWatch(
            task.name, kind.function, (task.config,), code["fingerprint"], code["definitions"], self.log
        )
        self.log_path = f"{self._output}.log" if host.index == 0 else f"{self._output}.host{host.index}.log"
        """Relative to the prefix."""
        self.output_path = self._store.make_folder(self._output)
        # A forced attempt proves nothing if it takes over the work of the first one.
        self._work = f"{self._output}.work" if task.is_forced else f"work/{task.digest}"

    @functools.cached_property
    def work_path(self) -> str:
        """See StepContext. Made at the first use: many steps keep nothing to resume from."""
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
    ) -> list[MappedT]:
        if name in self._mapped:
            raise ValueError(
                f"{self.name}: context.map(name={name!r}) is called twice, and the second call would take over the "
                "shards of the first. Give each call its own name."
            )
        self._mapped.add(name)
        folder = f"{self._work}/shards/{name}"
        shards = ShardMap(
            store=self._store,
            records_folder=folder,
            lease_epoch=self.lease_epoch,
            output_path=self._output,
            name=name,
            function=function,
            items=list(items),
            log=self.log,
            inputs=self.input_files.outputs,
            usage=self.usage,
        )
        results, files = shards.run(self._fan_out, in_flight, self.stop_requested, self.progress, on_finished)
        self._shard_files += files
        return results

    def progress(self, done: int, total: int, unit: str, *, begin: float = 0, **figures: float) -> None:
        self._code.glance()
        if self.host.index == 0:
            # Plain numbers: the driver has not imported the library of an array.
            plain = {name: float(value) for name, value in figures.items()}
            self._channel.report(self._task.key, Progress(int(done), int(total), unit, plain, float(begin)))

    def computed_with(self, **how: str) -> None:
        self._computed_with |= how

    def warn(self, text: str) -> None:
        self.log.warning("%s", text)
        if self.host.index == 0:
            self._channel.say(f"{self.name}: {text}")

    def warn_about_output(self, text: str, *, samples: Iterable[str] = (), file: str = "") -> None:
        warning = output_warning(text, samples, file)
        if warning not in self._output_warnings:
            self._output_warnings.append(warning)
            self.log.warning("%s", "\n".join(warning.lines(self.output_path)))

    def publish(self, milestone: int, folder: str, result: BaseModel) -> None:
        if self._task.milestone is None and not self._kind.parts:
            raise TypeError(
                f"{self.name}: publish() needs a StopAt field in the config, for milestones, or @step(parts=True), for "
                "parts. Return the result instead."
            )
        self._published_folders.add(folder)
        self._published.add(milestone)
        if self.host.index > 0:
            return
        self.check_code()
        self.input_files.check()
        key = key_of(self.digest, milestone)
        if not self._task.is_forced or self._records.find(key) is not None:
            self._commit(milestone, f"{self._output}/{folder}", result, ())
            self._channel.published(key)

    def milestones(self) -> dict[int, Input[Any]]:
        found = {
            milestone: Input(
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
        self.input_files.add_inputs(found.values())
        return found

    def parts(self, growing: Input[Any], *, after: int = 0) -> Parts:
        found = parts_of(growing, self._store, after=after)
        self.input_files.add_inputs([*found.parts.values(), *([] if found.whole is None else [found.whole])])
        return found

    def _may_see(self, milestone: int) -> bool:
        if self._task.is_forced:  # its own end is committed: with it there would be nothing to do
            start = getattr(self._task.config, self._kind.continues or "", None)
            return isinstance(start, Input) and start.digest == self.digest and milestone <= (start.milestone or 0)
        known = self._task.known_milestones
        return known is None or milestone in known or milestone in self._published

    def stop_requested(self) -> bool:
        return bool(self.stop_reason())

    def stop_reason(self) -> str:
        if self._channel.stop_requested():
            return "the driver asked to stop"
        # The other hosts of a gang learn of it from host 0, when they agree on where to stop.
        request = self._stop_request()
        return "" if request is None else request.text

    def requests(self) -> Sequence[Request]:
        requests = self.polled_requests.others() if self.host.index == 0 else ()
        refused = [request for request in requests if self._task.is_forced and request.action == PUBLISH]
        for request in refused:
            self.decline(request, "a forced step only compares its output, and publishes nothing new")
        return [request for request in requests if request not in refused]

    def reply(self, request: Request, text: str) -> None:
        self.polled_requests.reply(request, text)

    def decline(self, request: Request, text: str) -> None:
        self.polled_requests.reply(request, text, is_declined=True)

    def stopped(self, stop: StepStopped) -> Outcome:
        """Reply to pending requests and return the outcome of an attempt that stopped as asked."""
        at = first_lines(stop).partition("\n")[0] if str(stop).strip() else ""
        is_requested = self._stop_request() is not None
        self.polled_requests.close(to_stop=f"stopped {at}".strip(), to_others="it stopped before that")
        return Outcome(self._task, "stopped", stopped_at=at, is_requested_stop=is_requested)

    def _stop_request(self) -> Request | None:
        return self.polled_requests.stop() if self.host.index == 0 else None

    def check_inputs(self) -> None:
        """Raise DamagedInputError if files of the inputs are missing.

        An attempt that resumes from a later state does not read the input that its run started from.
        """
        config = self._task.config
        if self._kind.continues is not None and self._has_later_state():
            config = config.model_copy(update={self._kind.continues: None})
        check_input_files(self._records, config)

    def _has_later_state(self) -> bool:
        """Return whether the run has a state after this step's start and not past its stop."""
        kind, config = self._kind, self._task.config
        files = [entry.path.removeprefix(f"{self._work}/") for entry in self._store.list(self._work)]
        saved = kind.resumes_at(files) if kind.resumes_at is not None else ()
        start = getattr(config, kind.continues or "")
        # The input of a later phase is a state of its own run, which the phase reads unless there is a newer state.
        begin = start.milestone or 0 if isinstance(start, Input) and start.digest == self.digest else -1
        return any(begin < at <= getattr(config, kind.stop_field or "") for at in (*saved, *self.milestones()))

    def check_code(self) -> None:
        """Raise CodeChangedError if this process may run other code than what was planned."""
        self._code.check()

    def check_constants(self) -> None:
        """Warn of constants that a recipe has set in modules of the step; raise UncoveredError if its kind says so."""
        self.usage.note_constants(self._code.definitions)
        if self.usage.constants:
            self._check_usage()

    def finish(self, result: BaseModel) -> Record:
        """Commit the output, unless the function published its last milestone itself, and return the record."""
        if self._task.milestone is not None and (not self._task.is_forced or self._task.milestone in self._published):
            published = self._records.find(self._task.key)
            if published is not None:
                return published
        return self._commit(self._task.milestone, self._output, result, self._shard_files)

    def _check_usage(self) -> None:
        """Warn of what the function used and the digest does not cover; raise UncoveredError if its kind says so."""
        found = self.usage.uncovered(self._kind.function, (self._task.config,))
        new = [line for line in found if line not in self._uncovered]
        self._uncovered = found
        if found and self._kind.refuses_uncovered:
            raise UncoveredError(f"{self.name}: {uncovered_text(found)}. {UNCOVERED_FIX}")
        if new:
            self.warn(f"{uncovered_text(new)}. {UNCOVERED_FIX}")

    def _commit(self, milestone: int | None, folder: str, result: BaseModel, expected: Iterable[FileEntry]) -> Record:
        task = self._task
        self._check_usage()
        data = result_document(self.name, self._kind.result_type, result, self._store.prefix)
        # A milestone is an output of its own. A resumed attempt has no earlier milestones in its folder, and must leave
        # the same bytes as an undisturbed one.
        excluded = frozenset(self._published_folders) if folder == self._output else frozenset[str]()
        manifest = make_manifest(self._store, folder, tuple(expected), excluded=excluded)
        key = key_of(task.digest, milestone)
        if task.is_forced:
            first = self._records.get(key)
            others = self._records.milestones(self.digest).values()
            repaired = repair_first_output(self._store, first, folder, manifest, data, others)
            for path in repaired:
                self.log.warning("%s/%s: differed from its record, replaced", self._store.url(first.output_path), path)
            self.repaired += repaired
            return first
        record = Record(
            key=key,
            digest=task.digest,
            milestone=milestone,
            name=task.name,
            kind=task.kind.name,
            identity=without_known_secrets(task.identity),
            result=data,
            output_path=folder,
            attempt=task.attempt,
            manifest=manifest,
            warnings=tuple(self._output_warnings),
            provenance=task.provenance.model_copy(
                update={
                    "host": socket.gethostname(),
                    "started": self._started,
                    "finished": now(),
                    "resources": str(task.resources),
                    "lease_epoch": self.lease_epoch,
                    "computed_with": dict(self._computed_with),
                    "uncovered": self._uncovered,
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
                "has the same bytes" if same else "differs: this step is not deterministic",
            )
        return winner


def run_attempt(
    task: Task,
    channel: Channel,
    fan_out: FanOut,
    *,
    capture_prints: bool,
    host: Host = ALONE,
    wait_for_hosts: Callable[[], None] = lambda: None,
) -> Outcome:
    """Run the step function and commit its output. Every ending but a kill or an interrupt is an Outcome.

    Args:
        channel: messages to and from the driver.
        fan_out: runs the shards of `context.map`.
        capture_prints: whether standard output and error go to the log of the attempt, with those of child processes.
        host: the host, among several.
        wait_for_hosts: called when the function has returned; on host 0, returns when it has on all hosts.
    """
    remember_secrets(task.config)
    context = AttemptContext(task, channel, fan_out, host)
    store = open_store(task.prefix)
    with AttemptLog(store, context.log_path, context.log) as log, contextlib.ExitStack() as prints:
        prints.enter_context(log.capturing_prints() if capture_prints else child_output_in_place())
        prints.callback(context.polled_requests.close)
        context.log.info("attempt %s on %s pid %d, %s", task.attempt, socket.gethostname(), os.getpid(), task.resources)
        try:
            if task.is_forced and host.index == 0:
                prints.enter_context(marked_as_forced(store, task.key))
            check_packages(task.name, task.identity)
            check_config(task.name, task.kind.function, task.config, task.kind.continues, task.identity)
            context.check_code()
            context.check_constants()
            if host.index == 0:
                context.check_inputs()
            if host.num_hosts == 1 and channel.stop_requested():  # while the task waited for its resources
                return Outcome(task, "stopped")
            with context.input_files.watching(), context.usage.recording():
                context.input_files.add_inputs(inputs_in(task.config))
                result = task.kind.function(task.config, context)
            context.check_code()
            wait_for_hosts()
            if host.index > 0:
                return Outcome(task, "done")
            record = context.finish(result)
            context.polled_requests.close(to_stop="it was finished", to_others="it was finished before that")
        except StepStopped as stop:
            context.log.info("stopped as asked: %s", stop)
            return context.stopped(stop)
        except BaseException as error:  # also `sys.exit` in a step, which would end the driver or the worker
            # To cancel the task, or to end a worker that got SIGTERM.
            if isinstance(error, KeyboardInterrupt) or hasattr(error, "ray_terminate_msg"):
                raise
            context.log.exception("failed")
            failure = task.failure_of(error).model_copy(update={"log_path": context.log_path})
            return Outcome(task, "failed", failure=failure)
        context.log.info("committed %s: %d files", record.key, len(record.manifest))
        return Outcome(task, "done", record=record, repaired=context.repaired)
