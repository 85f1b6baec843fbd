"""A driver as a process of its own, for tests that kill it: python toy_driver.py PREFIX BACKEND SECONDS MARKS.

With FILE_LIMIT set, no file of its may grow beyond so many bytes; with LARGE, one step writes a large one;
with LARGE_BY, by the library of that name.
"""

import itertools
import os
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marin_dag.errors import UserError
from marin_dag.graph.step import Step
from marin_dag.run.driver import Run
from marin_dag.run.live import display_for
from marin_dag.run.local.backend import LocalBackend
from marin_dag.run.ray.backend import RayBackend
from marin_dag.store.local import LocalStore
from marin_dag.store.prefix import open_store
from tests.marin_dag.toy_steps import (
    CountConfig,
    JoinConfig,
    ShardsConfig,
    WriteByConfig,
    WriteConfig,
    count,
    join,
    squares,
    write,
    write_by,
)


def graph(seconds: float, marks: str) -> list[Step[Any]]:
    """Return a step of each kind that can be killed: plain, with inputs, of shards, a run and a branch of it."""
    a, b = (write(name, WriteConfig(text=name * 3, marks=marks)) for name in "ab")
    both = join("both", JoinConfig(texts=(a, b), marks=marks))
    shards = squares("squares", ShardsConfig(num_shards=4, seconds=seconds, marks=marks))
    main = count("main", CountConfig(stride=2, until_step=12, seconds=seconds, marks=marks))
    branch = count("branch", CountConfig(stride=7, until_step=8, start=main.at(step=5), seconds=seconds, marks=marks))
    return [a, b, both, shards, main, branch]


def watch_writes(dies_before: int | None, log: Path | None = None) -> None:
    """Log each store write of this process, and kill it before one of them, which no exception handler can see."""
    numbers = itertools.count()

    def watched(name: str, operation: Any) -> Any:
        def wrapped(store: LocalStore, path: str, *arguments: Any, **options: Any) -> Any:
            if next(numbers) == dies_before:
                os.kill(os.getpid(), signal.SIGKILL)
            if log is not None:
                with log.open("a") as file:
                    file.write(f"{name} {path}\n")
            return operation(store, path, *arguments, **options)

        return wrapped

    for name in ("create", "write", "write_blocks", "delete", "copy", "make_folder", "settle"):
        setattr(LocalStore, name, watched(name, getattr(LocalStore, name)))


def main(arguments: Sequence[str]) -> int:
    prefix, backend, seconds, marks = arguments
    steps = graph(float(seconds), marks)
    if "FILE_LIMIT" in os.environ:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(os.environ["FILE_LIMIT"]), resource.RLIM_INFINITY))
    if "LARGE" in os.environ:
        steps.append(write("large", WriteConfig(text="x" * 100_000)))
    if "LARGE_BY" in os.environ:
        library = os.environ["LARGE_BY"]
        steps.append(write_by(f"large-{library}", WriteByConfig(library=library, num_values=100_000)))
    run = Run(
        steps,
        open_store(prefix),
        RayBackend("toy") if backend == "ray" else LocalBackend(),
        display_for(stream_is_terminal=False),
        command="python toy_driver.py",
        back_off_seconds=0.01,
    )
    try:
        return run.run()
    except UserError as error:  # as the command line does
        print(error)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
