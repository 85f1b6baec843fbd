"""Replay: compares the parameters of training steps taken twice, by the digests in the event logs.

A step is taken again where a killed run resumes from its last checkpoint, and where a user repeats a run
(`--force PHASE`). `python -m runtime.training.replay FOLDER [FOLDER ...]` compares the attempts.
"""

import argparse
import sys
from collections.abc import Iterable
from typing import NamedTuple

import fsspec

from runtime.tracking.events import is_of_first_host, read_events


class Logged(NamedTuple):
    """The digests of one attempt at one step."""

    step: int
    whole: str
    tensors: dict[str, str]
    log: str
    trajectory: str = ""
    """Digest of the phase; only attempts with the same one are compared. "" where the caller chose the attempts."""
    phase: str = ""


class Difference(NamedTuple):
    """Two attempts with different parameters at a step."""

    step: int
    tensors: tuple[str, ...]
    logs: tuple[str, str]
    phase: str = ""

    def __str__(self) -> str:
        first, second = self.logs
        where = f"{self.phase}, step {self.step}" if self.phase else f"step {self.step}"
        return f"{where}: {', '.join(self.tensors)} differ between {first} and {second}"


def logged_digests(folders: Iterable[str]) -> list[Logged]:
    """Return every digest in the event logs of a phase's work folder, or everywhere below a prefix.

    Only the logs of the first host count: those of other hosts are copies, and no second attempt.
    """
    found = []
    for folder in folders:
        files, path = fsspec.core.url_to_fs(folder.rstrip("/"))
        is_work = files.exists(f"{path}/events")
        logs = files.glob(f"{path}/events/*.jsonl" if is_work else f"{path}/**/events/*.jsonl")
        for log in sorted(filter(is_of_first_host, logs)):
            url = str(files.unstrip_protocol(log)) if "://" in folder else str(log)
            trajectory = phase = ""
            for event in read_events(url):
                if event["event"] == "phase":
                    phase, trajectory = event["name"], "" if is_work else event["digest"]
                if event["event"] == "digest":
                    found.append(Logged(event["step"], event["digest"], event["tensors"], url, trajectory, phase))
    return found


def compare(logged: Iterable[Logged]) -> tuple[int, list[Difference]]:
    """Compare each digest with the first one of its step; return the number of pairs, and those that differ."""
    first: dict[tuple[str, int], Logged] = {}
    num_compared, differences = 0, []
    for digest in logged:
        known = first.setdefault((digest.trajectory, digest.step), digest)
        if known is digest:
            continue
        num_compared += 1
        if known.whole != digest.whole:
            names = sorted(known.tensors.keys() | digest.tensors.keys())
            other = tuple(name for name in names if known.tensors.get(name) != digest.tensors.get(name))
            differences.append(Difference(digest.step, other, (known.log, digest.log), digest.phase))
    return num_compared, sorted(differences, key=lambda found: (found.phase, found.step))


def main(arguments: list[str] | None = None) -> int:
    """Print the comparison; return 0 if all are equal, 1 if some differ, 2 if there is nothing to compare."""
    parser = argparse.ArgumentParser(prog="python -m runtime.training.replay", description=__doc__)
    parser.add_argument(
        "folder", nargs="+", help="a prefix, below which attempts at the same phase are compared, or work folders"
    )
    folders = parser.parse_args(arguments).folder
    opened = {folder: fsspec.core.url_to_fs(folder.rstrip("/")) for folder in folders}
    if missing := [folder for folder, (files, path) in opened.items() if not files.isdir(path)]:
        fix = "give the --prefix of a run, or the work folders of phases (PREFIX/work/DIGEST)."
        print(f"{', '.join(missing)}: there is no such folder; {fix}", file=sys.stderr)
        return 2
    logged = logged_digests(folders)
    num_compared, differences = compare(logged)
    if not num_compared:
        print(
            f"nothing to compare: {len(logged)} digests, no two of the same step. Train a phase again (--force PHASE), "
            "or give the folder of a second run."
        )
        return 2
    for difference in differences:
        print(difference)
    print(f"{num_compared} digests compared, {len(differences)} differ")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
