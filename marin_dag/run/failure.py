"""Failure: the record of an attempt that ended with an error."""

from marin_dag.ledger.damage import DamagedInputError
from marin_dag.ledger.provenance import now
from marin_dag.ledger.records import Failure, attempt_path, first_lines
from marin_dag.run.task import Task
from marin_dag.store.redact import redact
from marin_dag.store.retry import is_transient
from marin_dag.store.store import explain_os_error, limit_met


def failure_of(task: Task, error: BaseException) -> Failure:
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


def is_from_ray(error: BaseException) -> bool:
    """Return whether Ray raised the error: to cancel the task, or to end a worker that got SIGTERM."""
    return isinstance(error, KeyboardInterrupt) or hasattr(error, "ray_terminate_msg")
