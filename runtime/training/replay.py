"""Replay: whether updates that were made twice left the same parameters, by the digests in the event logs.

An update is made again where a killed run resumes behind its last checkpoint, and where somebody repeats a run to see
whether it repeats (`--force PHASE`). `python -m runtime.training.replay FOLDER [FOLDER ...]` compares the attempts.
"""

import argparse
import sys
from collections.abc import Iterable
from typing import NamedTuple

import fsspec

from runtime.tracking.events import read_events
from runtime.tracking.log_names import is_of_first_host


class Logged(NamedTuple):
    """The digests that one attempt logged at one step."""

    step: int
    whole: str
    tensors: dict[str, str]
    log: str
    trajectory: str = ""
    """Only attempts at one trajectory are compared; "" where the caller has chosen what is."""
    phase: str = ""


class Difference(NamedTuple):
    """Two attempts that reached a step with other parameters."""

    step: int
    tensors: tuple[str, ...]
    logs: tuple[str, str]
    phase: str = ""

    def __str__(self) -> str:
        first, second = self.logs
        where = f"{self.phase}, step {self.step}" if self.phase else f"step {self.step}"
        return f"{where}: {', '.join(self.tensors)} differ between {first} and {second}"


class Replay(NamedTuple):
    """`num_compared` counts pairs of digests of one step; `differences` is in order of phases and steps."""

    num_compared: int
    differences: tuple[Difference, ...]


def logged_digests(folders: Iterable[str]) -> list[Logged]:
    """Every digest in the event logs of the attempts: in a phase's work folder, or everywhere below a prefix.

    Of several hosts the first one's: the digests of the others are copies of its own, and no update made again.
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


def _is_missing(folder: str) -> bool:
    files, path = fsspec.core.url_to_fs(folder.rstrip("/"))
    return not files.isdir(path)


def compare(logged: Iterable[Logged]) -> Replay:
    """Compares each digest with the first one that was logged for its step."""
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
    return Replay(num_compared, tuple(sorted(differences, key=lambda found: (found.phase, found.step))))


def main(arguments: list[str] | None = None) -> int:
    """Prints what was found; 0: all equal, 1: something differs, 2: nothing was made twice, or there is no folder."""
    parser = argparse.ArgumentParser(prog="python -m runtime.training.replay", description=__doc__)
    parser.add_argument(
        "folder", nargs="+", help="a prefix, below which attempts at one trajectory are compared; or work folders"
    )
    folders = parser.parse_args(arguments).folder
    if missing := list(filter(_is_missing, folders)):
        cure = "give the --prefix of a run, or the work folders of phases (PREFIX/work/DIGEST)."
        print(f"{', '.join(missing)}: there is no such folder; {cure}", file=sys.stderr)
        return 2
    logged = logged_digests(folders)
    found = compare(logged)
    if not found.num_compared:
        print(
            f"nothing to compare: {len(logged)} digests, no two of one step; "
            "train a phase a second time (--force PHASE), or give the folder of a second run."
        )
        return 2
    for difference in found.differences:
        print(difference)
    print(f"{found.num_compared} digests compared, {len(found.differences)} differ")
    return 1 if found.differences else 0


if __name__ == "__main__":
    sys.exit(main())
