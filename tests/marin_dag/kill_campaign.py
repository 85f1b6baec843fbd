"""Campaign that kills drivers and workers at random moments, over a store that fails one request in twenty.

Runs are started on a prefix one after another until one completes. Then its outputs are compared with those of an
undisturbed run, and the next prefix follows. Workers whose driver was killed go on: they are the zombies.
"""

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from marin_dag.ledger import provenance
from marin_dag.ledger.records import Records
from marin_dag.run import driver as run
from marin_dag.run.live import display_for
from marin_dag.store import retry as transient
from marin_dag.store.prefix import open_store
from tests.gcs_server.control import GcsControl, GcsServerProcess
from tests.gcs_server.faults import Fault
from tests.marin_dag.fleets import Fleet
from tests.marin_dag.toy_driver import graph

BUCKET = "campaign"
PAUSE_SECONDS = 0.01
SECONDS_OF_A_PART = 0.02
MEAN_SECONDS_BETWEEN_KILLS = 0.7
SHARE_KILLED_IN_MID_STEP = 0.75
"""The others are killed at any time, often while they start, which takes long on Ray."""
RUNS_OF_ONE_PREFIX = 200


class Tally(NamedTuple):
    """Numbers of a campaign."""

    drivers_killed: int
    workers_killed: int
    prefixes: int
    runs: int
    requests: int
    faults: int
    seconds: float


def campaign(
    folder: Path, kills: int, seed: int, *, fleet: Fleet, with_server: bool, say: Callable[[str], None]
) -> Tally:
    """Kill this often; raise AssertionError if a promise is broken."""
    draws = random.Random(seed)
    started = time.monotonic()
    with _prefixes(folder, seed, with_server=with_server) as (prefix_of, control), fleet:
        undisturbed = _start(fleet, prefix_of("undisturbed"), folder / "undisturbed")
        code = os.waitstatus_to_exitcode(os.waitpid(undisturbed, 0)[1])
        assert code == 0, f"the undisturbed run ended with {code}"
        expected = _made(prefix_of("undisturbed"), folder)
        assert len(expected["files"]) == 8, "a step is missing"
        num_drivers = num_workers = num_prefixes = num_runs = 0
        while num_drivers + num_workers < kills:
            prefix, meeting = prefix_of(str(num_prefixes)), folder / f"meeting-{num_prefixes}"
            for _ in range(RUNS_OF_ONE_PREFIX):
                num_runs += 1
                left = kills - num_drivers - num_workers
                killed, killed_workers, code = _disturbed(fleet, prefix, meeting, draws, left)
                num_drivers, num_workers = num_drivers + killed, num_workers + killed_workers
                assert code in (0, -signal.SIGKILL) or killed_workers, f"{prefix}: an undisturbed run ended with {code}"
                if code == 0:
                    break
            else:
                raise AssertionError(f"{prefix}: not done after {RUNS_OF_ONE_PREFIX} runs")
            while fleet.workers(meeting):
                time.sleep(0.02)
            made = _made(prefix, folder)
            assert made == expected, f"{prefix}: outputs differ from the undisturbed run: {_difference(made, expected)}"
            num_prefixes += 1
            say(f"{num_drivers + num_workers} kills, {num_prefixes} prefixes")
        asked = control.requests() if control else []
        faults = sum(bool(request["fault"]) for request in asked)
    seconds = round(time.monotonic() - started, 1)
    return Tally(num_drivers, num_workers, num_prefixes, num_runs, len(asked), faults, seconds)


@contextlib.contextmanager
def _prefixes(
    folder: Path, seed: int, *, with_server: bool
) -> Iterator[tuple[Callable[[str], str], GcsControl | None]]:
    if not with_server:
        yield lambda name: str(folder / "runs" / name), None
        return
    import marin_dag.store.gcs  # noqa: F401 -- once, before the forks

    with GcsServerProcess(buckets=[BUCKET]) as server:
        os.environ.update(server.environment())
        for number, (kind, share) in enumerate((("status", 2), ("lost_reply", 1), ("reset", 1), ("truncated", 1))):
            server.add_fault(Fault(kind, probability=share / 100, seed=seed + number))  # type: ignore[arg-type]
        yield lambda name: f"gs://{BUCKET}/{name}", server


def _disturbed(fleet: Fleet, prefix: str, meeting: Path, draws: random.Random, most: int) -> tuple[int, int, int]:
    """Start one run and kill until it ends; return the drivers and workers killed, and the exit code."""
    pid = _start(fleet, prefix, meeting)
    num_workers = 0
    while True:
        pause = draws.expovariate(1 / MEAN_SECONDS_BETWEEN_KILLS)
        begins = float("inf") if draws.random() < SHARE_KILLED_IN_MID_STEP else time.monotonic()
        while time.monotonic() < begins + pause or num_workers >= most:
            if begins == float("inf") and fleet.workers(meeting):
                begins = time.monotonic()
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return 0, num_workers, os.waitstatus_to_exitcode(status)
            time.sleep(0.005)
        victims = fleet.workers(meeting)
        if victims and draws.random() < 0.5:
            with contextlib.suppress(ProcessLookupError):
                os.kill(draws.choice(victims), signal.SIGKILL)
                num_workers += 1
            continue
        os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return int(code == -signal.SIGKILL), num_workers, code


def _start(fleet: Fleet, prefix: str, meeting: Path) -> int:
    """Start a driver in a child process; return its pid."""
    child = os.fork()
    if child:
        return child
    try:
        meeting.mkdir(parents=True, exist_ok=True)
        sys.stdout = sys.stderr = (meeting / "output.txt").open("a", buffering=1)
        _hurry()
        steps = graph(SECONDS_OF_A_PART, "")
        backend = fleet.backend(meeting)
        os._exit(
            run.Run(
                steps, open_store(prefix), backend, display_for(stream_is_terminal=False), command="",
                back_off_seconds=PAUSE_SECONDS,
            ).run()
        )  # fmt: skip
    except BaseException as error:
        print(repr(error))
        os._exit(99)


def _hurry() -> None:
    """Shorten pauses, and leave out git and the list of packages, which take most of a run."""
    from marin_dag.store import gcs

    gcs.RETRY = gcs.RETRY.with_delay(initial=PAUSE_SECONDS, maximum=PAUSE_SECONDS)
    transient.PAUSES_SECONDS = (PAUSE_SECONDS,) * 5
    run.ELSEWHERE_POLL_SECONDS = 0.1
    provenance.installed_packages = dict
    provenance._git = lambda folder, *arguments: None


def _made(prefix: str, folder: Path) -> Any:
    """Return the results and the bytes of all outputs, read by a child process."""
    answer = folder / "made.json"
    child = os.fork()
    if child == 0:
        try:
            _hurry()
            store = open_store(prefix)
            records = Records(store)
            found: dict[str, Any] = {}
            for key in sorted(transient.patiently(records.committed_keys)):
                record = transient.patiently(lambda key=key: records.get(key))
                paths = [(entry.path, f"{record.output_path}/{entry.path}") for entry in record.manifest]
                files = {path: transient.patiently(lambda at=at: store.read(at)).hex() for path, at in paths}
                found[key] = {"result": record.result, "files": files}
            answer.write_text(json.dumps({"files": found}))
            os._exit(0)
        finally:
            os._exit(99)
    assert os.waitpid(child, 0)[1] == 0, f"{prefix}: its outputs cannot be read"
    return json.loads(answer.read_text())


def _difference(made: Any, expected: Any) -> str:
    here, there = made["files"], expected["files"]
    return ", ".join(sorted(key for key in {*here, *there} if here.get(key) != there.get(key)))
