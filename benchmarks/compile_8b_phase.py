"""Claim: a phase of the 8B compiles for its real slices in 6 minutes and 4 GiB here, fits there, and hides its wires.

Every program of the main line's phases (the train steps, and the evaluation steps that follow them) is compiled afresh,
one after the other, each by the process that `--dry-run --compile` starts; nothing is taken from its cache or left in
it. Seconds are of the whole process, from its start to its answer; host memory is its peak. Bars, of each program: 360
seconds and 4 GiB of this machine, no more memory a chip than its compiler allows, no fault; and of each train step less
than 10 % of its roofline's time on collectives that nothing hides. Seconds depend on what else runs: the load is
printed. The last line is JSON; exit code 1 where a bar does not hold.

    make .venv-libtpu/ready
    python benchmarks/compile_8b_phase.py      two minutes on two idle cores
    ... --phase phoenix --step eval            one program: less than a minute
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.verdict import conclude
from pipelines.compile_programs import request_of
from pipelines.corpus import eight_b_corpus
from pipelines.scales import EIGHT_B
from pipelines.tootsie import phases
from runtime.cost.chips import GIB, slice_of
from runtime.cost.compiler import NoCompilerError, key_of, outcome_of
from runtime.cost.faults import faults
from runtime.cost.request import CompileRequest, DoesNotFit, Outcome
from runtime.cost.roofline import roofline_of

SECONDS_BAR, HOST_BYTES_BAR, EXPOSED_BAR = 360.0, 4 * GIB, 0.10


def programs(names: list[str], steps: list[Literal["train", "eval"]]) -> dict[CompileRequest, list[str]]:
    """Return each program of these phases once, with the phases that run it."""
    main_line = phases(EIGHT_B, eight_b_corpus(EIGHT_B))
    found: dict[CompileRequest, list[str]] = {}
    for step in steps:
        for name in names or list(main_line):
            if name not in main_line:
                raise SystemExit(f"--phase {name}: the main line is {', '.join(main_line)}.")
            found.setdefault(request_of(main_line[name], step), []).append(name)
    return found


def measured(request: CompileRequest, outcome: Outcome, seconds: float) -> dict[str, Any]:
    """Return the figures of one compile against the bars."""
    if isinstance(outcome, DoesNotFit):
        return {"seconds": round(seconds, 1), "does_not_fit": outcome.message, "holds": False}
    limit = slice_of(request.slice).generation.hbm_in_bytes
    roofline, found = roofline_of(request, outcome), faults(request, outcome)
    holds = (
        seconds < SECONDS_BAR
        and outcome.host_memory_in_bytes < HOST_BYTES_BAR
        and outcome.peak_memory_in_bytes <= limit
        and (request.step == "eval" or roofline.exposed_share < EXPOSED_BAR)
        and not found
    )
    return {
        "seconds": round(seconds, 1),
        "host_gib": round(outcome.host_memory_in_bytes / GIB, 2),
        "chip_gib": round(outcome.peak_memory_in_bytes / GIB, 2),
        "chip_gib_allowed": round(limit / GIB, 2),
        "exposed_share": round(roofline.exposed_share, 4),
        "flops_found_share": round(roofline.found_share, 4),
        "roofline_seconds": round(roofline.step_seconds, 3),
        "tokens_per_second": round(roofline.tokens_per_second),
        "faults": found,
        "holds": holds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phase", action="append", default=[], help="only this one; may be given several times")
    parser.add_argument("--step", action="append", default=[], choices=("train", "eval"), help="only this one")
    arguments = parser.parse_args()
    wanted = programs(arguments.phase, arguments.step or ["train", "eval"])
    try:
        key_of(next(iter(wanted)))
    except NoCompilerError as error:
        raise SystemExit(str(error)) from error
    results = {}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["MARIN_DAG_CACHE"] = cache
        for request, users in wanted.items():
            began = time.monotonic()
            outcome, was_known = outcome_of(request)
            assert not was_known
            name = f"{', '.join(users)}: {request.step}"
            results[name] = measured(request, outcome, time.monotonic() - began)
            print(name, json.dumps(results[name]), flush=True)
    line = {
        "claim": "each program of the 8B's main phases compiles in 6 minutes and 4 GiB of host memory, fits its chips, "
        "and exposes less than 10 % of a train step",
        "programs": results,
        "bars": {"seconds": SECONDS_BAR, "host_gib": HOST_BYTES_BAR / GIB, "exposed_share": EXPOSED_BAR},
        "holds": all(result["holds"] for result in results.values()),
        "is_whole": not (arguments.phase or arguments.step),
        "load": round(os.getloadavg()[0], 1),
        "device": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
    }
    conclude(line)


if __name__ == "__main__":
    main()
