"""Kill tests of runs, compared with an undisturbed run; each prints its numbers at the end.

    python -m tests.marin_dag.kill_everywhere FOLDER                    before each of its writes in turn
    python -m tests.marin_dag.kill_everywhere FOLDER --one-of-each-kind     before one write of each kind
    python -m tests.marin_dag.kill_everywhere --kills 200 --server      drivers and workers, at random moments
    python -m tests.marin_dag.kill_everywhere --kills 200 --ray         the same, of steps on a Ray cluster

The runs are forks of one process, since starting an interpreter for each would take minutes.
"""

import argparse
import contextlib
import datetime
import json
import os
import re
import signal
import sys
import tempfile
from pathlib import Path

from marin_dag.ledger import provenance
from marin_dag.ledger.records import Records
from marin_dag.store.local import LocalStore
from tests.marin_dag.fleets import ForkedFleet, RayFleet
from tests.marin_dag.kill_campaign import campaign
from tests.marin_dag.toy_driver import main, watch_writes


def in_child(prefix: Path, write: int | None, log: Path | None = None) -> int:
    """Run in a child that is killed before its write number `write`; return the wait status.

    The child logs the kind of each write to `log`.
    """
    child = os.fork()
    if child == 0:
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 -- for as long as the child lives
        try:
            watch_writes(write, log)
            os._exit(main([str(prefix), "local", "0", ""]))
        except BaseException:
            os._exit(99)
    return os.waitpid(child, 0)[1]


def committed_bytes(prefix: Path) -> dict[str, object]:
    """Return the result and the bytes of each file of all outputs, by key."""
    records = Records(LocalStore(str(prefix)))
    found: dict[str, object] = {}
    for key in sorted(records.committed_keys()):
        record = records.get(key)
        folder = prefix / record.output_path
        found[key] = (record.result, {entry.path: (folder / entry.path).read_bytes() for entry in record.manifest})
    return found


def one_of_each_kind(writes: list[str]) -> list[int]:
    """Return the numbers of the writes to kill before: of each kind the one whose turn it is today."""
    numbers: dict[str, list[int]] = {}
    for number, kind in enumerate(writes):
        # Names of steps, digests, attempts and numbers do not make a kind.
        numbers.setdefault(re.sub(r"(?<=/)[^/@.]*[0-9-][^/@.]*|(?<=labels/)[^/]*|[0-9]+", "", kind), []).append(number)
    today = datetime.date.today().toordinal()
    return [same[today % len(same)] for same in numbers.values()]


def before_writes(base: Path, *, of_each_kind: bool) -> int:
    """Kill a run before each of its writes in turn, or before one of each kind; return the number of kills."""
    provenance.installed_packages()  # once for all forks
    provenance._git = lambda folder, *arguments: None
    assert in_child(base / "undisturbed", None, base / "writes") == 0
    expected = committed_bytes(base / "undisturbed")
    writes = (base / "writes").read_text().splitlines()
    chosen = one_of_each_kind(writes) if of_each_kind else range(len(writes))
    for write in chosen:
        prefix = base / str(write)
        status = in_child(prefix, write)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
        assert in_child(prefix, None) == 0, f"killed before write {write}, the next run failed"
        assert committed_bytes(prefix) == expected, f"killed before write {write}, the next run made other bytes"
    return len(chosen)


def main_of_the_campaign() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--one-of-each-kind", action="store_true", help="the turn changes with the day")
    parser.add_argument("--server", action="store_true", help="over a fake Cloud Storage with 5%% failing requests")
    parser.add_argument("--ray", action="store_true", help="steps are tasks of a Ray cluster on this machine")
    parser.add_argument("--seed", type=int, default=0)
    parsed = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = parsed.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if not parsed.kills:
            print(before_writes(folder, of_each_kind=parsed.one_of_each_kind))
            return
        fleet = RayFleet() if parsed.ray else ForkedFleet()
        tally = campaign(folder, parsed.kills, parsed.seed, fleet=fleet, with_server=parsed.server, say=_say)
        print(json.dumps(tally._asdict()))


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main_of_the_campaign()
