"""Replay: whether updates that were made twice left the same parameters, by the digests in the event logs.

An update is made again where a killed run resumes behind its last checkpoint, and where somebody repeats a run to see
whether it repeats. `python -m runtime.training.replay WORK [WORK ...]` compares all attempts in the work folders.
"""

import argparse
import sys
from collections.abc import Iterable
from typing import NamedTuple

import fsspec

from runtime.tracking.events import read_events


class Logged(NamedTuple):
    """The digests that one attempt logged at one step."""

    step: int
    whole: str
    tensors: dict[str, str]
    log: str


class Difference(NamedTuple):
    """Two attempts that reached a step with other parameters."""

    step: int
    tensors: tuple[str, ...]
    logs: tuple[str, str]

    def __str__(self) -> str:
        first, second = self.logs
        return f"step {self.step}: {', '.join(self.tensors)} differ between {first} and {second}"


class Replay(NamedTuple):
    """`num_compared` counts pairs of digests of one step; `differences` is in order of steps."""

    num_compared: int
    differences: tuple[Difference, ...]


def logged_digests(work_folders: Iterable[str]) -> list[Logged]:
    """Every digest in the event logs of the attempts below these work folders."""
    found = []
    for folder in work_folders:
        files, path = fsspec.core.url_to_fs(f"{folder.rstrip('/')}/events")
        for log in sorted(files.glob(f"{path}/*.jsonl")):
            url = str(files.unstrip_protocol(log)) if "://" in folder else str(log)
            found += [
                Logged(event["step"], event["digest"], event["tensors"], url)
                for event in read_events(url)
                if event["event"] == "digest"
            ]
    return found


def compare(logged: Iterable[Logged]) -> Replay:
    """Compares each digest with the first one that was logged for its step."""
    first: dict[int, Logged] = {}
    num_compared, differences = 0, []
    for digest in logged:
        known = first.setdefault(digest.step, digest)
        if known is digest:
            continue
        num_compared += 1
        if known.whole != digest.whole:
            names = sorted(known.tensors.keys() | digest.tensors.keys())
            other = tuple(name for name in names if known.tensors.get(name) != digest.tensors.get(name))
            differences.append(Difference(digest.step, other, (known.log, digest.log)))
    return Replay(num_compared, tuple(sorted(differences)))


def main(arguments: list[str] | None = None) -> int:
    """Prints what was found; 0: all equal, 1: something differs, 2: nothing was made twice."""
    parser = argparse.ArgumentParser(prog="python -m runtime.training.replay", description=__doc__)
    parser.add_argument("work", nargs="+", help="a phase's work folder: PREFIX/work/DIGEST")
    logged = logged_digests(parser.parse_args(arguments).work)
    found = compare(logged)
    if not found.num_compared:
        print(
            f"nothing to compare: {len(logged)} digests, no two of one step; "
            "give the work folder of a second run, or set digest_every_steps below checkpoint_every_steps."
        )
        return 2
    for difference in found.differences:
        print(difference)
    print(f"{found.num_compared} digests compared, {len(found.differences)} differ")
    return 1 if found.differences else 0


if __name__ == "__main__":
    sys.exit(main())
