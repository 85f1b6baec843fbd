"""Bundles of a TPU kernel's final schedule, and the vector memory that the compiler gave it.

A core issues one bundle a cycle if nothing stalls. libtpu writes the schedule of each kernel to a folder, if an option
set before it is loaded says so; the memory is in the text of the compiled program. docs/explanation/tpu.md quotes both.
"""

import os
import re
from pathlib import Path
from typing import NamedTuple

from runtime.kernels.block_sizes import MIB, SCOPED_VMEM_IN_BYTES, SplashBlocks

_PASS = "final_bundles"
_CALL = re.compile(
    r'^ *(?:ROOT )?%(\S+) = [^\n]*custom_call_target="tpu_custom_call".*?'
    r'"used_scoped_memory_configs":\[\{[^]]*?"size":"(\d+)"',
    re.MULTILINE | re.DOTALL,  # the metadata of a call may take lines of their own
)
_SCHEDULED = re.compile(r"non empty scheduled bundles: (\d+)")


class Schedule(NamedTuple):
    """A grid step of a kernel, including the work of its first and last steps."""

    bundles: int
    vmem_in_bytes: int


def write_schedules(folder: str) -> None:
    """Make libtpu, which this process must not have loaded yet, write to `folder` what `schedules_of` reads."""
    options = f"--xla_jf_dump_to={folder}", "--xla_jf_dump_llo_text", f"--xla_jf_dump_llo_pass_label_regex={_PASS}"
    os.environ["LIBTPU_INIT_ARGS"] = " ".join([os.environ.get("LIBTPU_INIT_ARGS", ""), *options]).strip()


def schedules_of(folder: Path, program: str, passes: tuple[str, ...]) -> list[Schedule]:
    """Return the schedules of a compiled program's kernels, whose names JAX puts into longer ones.

    Raises:
        LookupError: there is not one kernel of each, or not one schedule of it in `folder`.
    """
    found = []
    calls = _CALL.findall(program)
    for one in passes:
        mine = [(name, int(size)) for name, size in calls if one in name]
        paths = [path for name, _ in mine for path in folder.glob(f"*-{name}-*-schedule-analysis_{_PASS}.txt")]
        lines = [_SCHEDULED.search(path.read_text()) for path in paths]
        if len(mine) != 1 or len(lines) != 1 or lines[0] is None:
            raise LookupError(
                f"{len(mine)} kernels {one} in the program, with {len(lines)} schedules in {folder}; there must "
                "be one of each, with a line `non empty scheduled bundles`."
            )
        found.append(Schedule(int(lines[0][1]), mine[0][1]))
    return found


def figures_of_splash(generation: str, blocks: SplashBlocks, num_rows: int, schedules: list[Schedule]) -> str:
    """Return the text of a row: bundles of one head over `num_rows` tokens, and the larger memory of both passes."""
    forward, backward = schedules
    bundles = (
        forward.bundles * _steps(num_rows, blocks.query, blocks.key),
        backward.bundles * _steps(num_rows, blocks.query_backward, blocks.key_backward),
    )
    most = max(forward.vmem_in_bytes, backward.vmem_in_bytes)
    return (
        f"fwd {bundles[0] / 1000:.0f}k, bwd {bundles[1] / 1000:.0f}k bundles; "
        f"{most / MIB:.1f} of {SCOPED_VMEM_IN_BYTES[generation] // MIB} MiB"
    )


def _steps(num_rows: int, query: int, key: int) -> int:
    """Return the grid steps over a head that are not wholly above the diagonal."""
    return sum(-(-end // key) for end in range(query, num_rows + 1, query))
