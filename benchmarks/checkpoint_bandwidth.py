"""Claim: a checkpoint of a gigabyte is saved and restored at 0.7 of the speed of plain files, and of Orbax, at least.

Ours is `checkpoint.save` until the manifest is durable, the snapshot included, and `checkpoint.load` into arrays that
are ready, every checksum verified. Plain is `write` of the same arrays into one file and `fsync`, and `readinto` of new
arrays. Orbax (`.venv-peers`, see peers.txt) is its StandardCheckpointer with its defaults, until
`wait_until_finished`, in a process of its own that stays. All take turns on one disk, each with the same shapes; every
file is removed before the next save. Before a file is read it is dropped from the page cache by `posix_fadvise`, and
the kernel is asked by `mincore` whether it is gone: what is read comes from the disk. Medians over the turns.

    python benchmarks/checkpoint_bandwidth.py [--folder DIR]

The last line is JSON.
"""

import argparse
import ctypes
import json
import mmap
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import numpy as np

from benchmarks.verdict import conclude
from runtime.model.llama.config import LlamaConfig
from runtime.training import checkpoint
from runtime.training.checkpoint_reader import named_leaves
from runtime.training.state import TrainState, abstract_state

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / ".venv-peers" / "bin" / "python"
BAR = 0.7
BAR_TO_ORBAX = 0.7
ACTS = ("save", "restore")
PIECE_IN_BYTES = 2**24
RESIDENT_BAR = 0.01
MODEL = LlamaConfig(
    vocab_size=8192,
    hidden_size=768,
    intermediate_size=2048,
    num_hidden_layers=12,
    num_attention_heads=12,
    num_key_value_heads=4,
    head_dim=64,
    max_position_embeddings=1024,
)

ORBAX = """
import json, sys, time
import jax
import numpy as np
import orbax.checkpoint as ocp
path, leaves = sys.argv[1], json.loads(sys.argv[2])
rng = np.random.default_rng(0)
state = {name: jax.block_until_ready(jax.numpy.asarray(rng.integers(0, 2**16, shape).astype(dtype)))
         for name, (shape, dtype) in leaves.items()}
place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
like = {name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=place) for name, array in state.items()}
checkpointer = ocp.StandardCheckpointer()
print(json.dumps({"orbax": ocp.__version__, "jax": jax.__version__}), flush=True)
for line in sys.stdin:
    began = time.perf_counter()
    if line.strip() == "save":
        checkpointer.save(path, state)
        checkpointer.wait_until_finished()
    else:
        jax.block_until_ready(checkpointer.restore(path, like))
    print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)
"""


def random_state() -> TrainState:
    """Return parameters and moments without a pattern, so that nothing can be compressed."""
    rng = np.random.default_rng(0)

    def values(shape: jax.ShapeDtypeStruct) -> jax.Array:
        if shape.dtype == np.float32:
            return jax.numpy.asarray(rng.standard_normal(shape.shape, np.float32))
        return jax.numpy.asarray(rng.integers(0, 2**16, shape.shape).astype(shape.dtype))

    state: TrainState = jax.tree.map(values, abstract_state(MODEL))
    return jax.block_until_ready(state)


def plain_write(path: Path, arrays: list[np.ndarray]) -> None:
    with open(path, "wb", buffering=0) as file:
        for array in arrays:
            view = array.reshape(-1).view(np.uint8).data
            for start in range(0, len(view), PIECE_IN_BYTES):
                file.write(view[start : start + PIECE_IN_BYTES])
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def plain_read(path: Path, arrays: list[np.ndarray]) -> list[np.ndarray]:
    made = []
    with open(path, "rb", buffering=0) as file:
        for array in arrays:
            made.append(np.empty_like(array))
            view = made[-1].reshape(-1).view(np.uint8).data
            for start in range(0, len(view), PIECE_IN_BYTES):
                file.readinto(view[start : start + PIECE_IN_BYTES])
    return made


def drop_from_page_cache(folder: Path) -> None:
    """Drop every file below a folder from the page cache.

    Raises:
        RuntimeError: the kernel still holds more than a hundredth of their pages.
    """
    held = total = 0
    libc = ctypes.CDLL(None, use_errno=True)
    for path in (path for path in folder.rglob("*") if path.is_file() and path.stat().st_size):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            size = path.stat().st_size
            pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
            with mmap.mmap(
                file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
            ) as mapped:
                address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
                where = ctypes.c_void_p(pages.ctypes.data)
                if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), where):
                    raise OSError(ctypes.get_errno(), f"mincore of {path}")
            held, total = held + int((pages & 1).sum()), total + pages.size
    if held > RESIDENT_BAR * total:
        raise SystemExit(
            f"{held} of {total} pages below {folder} are still in the page cache; take a folder on a disk."
        )


def seconds_of(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def judged(speed: dict[str, float]) -> dict[str, object]:
    """Return the ratios of GB/s to plain files and to Orbax, of both acts, and whether all reach the bars."""
    ratios = {act: speed[f"{act} ours"] / speed[f"{act} plain"] for act in ACTS}
    to_orbax = {act: speed[f"{act} ours"] / speed[f"{act} orbax"] for act in ACTS}
    return {
        "ratio": round(min(ratios.values()), 3),
        "bar": BAR,
        "ratio_to_orbax": round(min(to_orbax.values()), 3),
        "bar_to_orbax": BAR_TO_ORBAX,
        "holds": all(ratios[act] >= BAR and to_orbax[act] >= BAR_TO_ORBAX for act in ACTS),
        **{f"{act}_ratio": round(ratio, 3) for act, ratio in ratios.items()},
        **{f"{act}_ratio_to_orbax": round(ratio, 3) for act, ratio in to_orbax.items()},
    }


class Orbax:
    """The process of the peer."""

    def __init__(self, path: Path, leaves: dict[str, tuple[list[int], str]]) -> None:
        if not PEERS.exists():
            raise SystemExit(
                f"{PEERS} is missing; make it with `uv venv .venv-peers` and install benchmarks/peers.txt."
            )
        command = [str(PEERS), "-c", ORBAX, str(path), json.dumps(leaves)]
        environment = os.environ | {"JAX_PLATFORMS": "cpu"}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self.versions = self._answer()

    def seconds_to(self, act: str) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{act}\n")
        self._process.stdin.flush()
        return float(self._answer()["seconds"])

    def _answer(self) -> dict:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("Orbax's process died; run its program by hand to see why.")
        answer: dict = json.loads(line)
        return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--folder", help="on the disk to be measured; a new folder is made in it and removed")
    arguments = parser.parse_args()
    state = random_state()
    leaves = named_leaves(state)
    arrays = [np.asarray(leaf.array) for leaf in leaves]
    size = sum(array.nbytes for array in arrays)
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        folder = Path(temporary)
        orbax = Orbax(folder / "orbax", {leaf.name: (list(leaf.shape), leaf.dtype) for leaf in leaves})
        plain, ours = folder / "plain", folder / "ours"
        saves: dict[str, Callable[[], float]] = {
            "plain": lambda: seconds_of(lambda: plain_write(plain / "arrays", arrays)),
            "ours": lambda: seconds_of(lambda: checkpoint.save(f"{ours}/checkpoint", state, {"step": 0}).wait()),
            "orbax": lambda: orbax.seconds_to("save"),
        }
        restores: dict[str, Callable[[], float]] = {
            "plain": lambda: seconds_of(lambda: plain_read(plain / "arrays", arrays)),
            "ours": lambda: seconds_of(lambda: jax.block_until_ready(checkpoint.load(f"{ours}/checkpoint", state))),
            "orbax": lambda: orbax.seconds_to("restore"),
        }
        for turn in range(arguments.turns + 1):  # the first one opens what is opened once, and does not count
            line = []
            for name in saves:
                shutil.rmtree(folder / name, ignore_errors=True)
                if name != "orbax":
                    (folder / name).mkdir()
                os.sync()
                taken = {"save": saves[name]()}
                drop_from_page_cache(folder / name)
                taken["restore"] = restores[name]()
                for act, value in taken.items():
                    seconds.setdefault(f"{act} {name}", []).extend([value] * bool(turn))
                line.append(f"{name} {size / taken['save'] / 1e9:.2f} and {size / taken['restore'] / 1e9:.2f}")
                shutil.rmtree(folder / name)
            print(f"turn {turn}: saved and restored at {', '.join(line)} GB/s", flush=True)
    speed = {name: size / statistics.median(values) / 1e9 for name, values in seconds.items()}
    conclude(
        {
            "claim": "1 GB is saved and restored at 0.7 of the speed of plain files, and of Orbax, at least",
            "ours": round(speed["save ours"], 3),
            "reference": round(speed["save plain"], 3),
            **judged(speed),
            "unit": "GB/s",
            "size_in_bytes": size,
            "speed": {name: round(value, 3) for name, value in speed.items()},
            "page_cache": "dropped by posix_fadvise before each restore, checked by mincore",
            "load": round(os.getloadavg()[0], 1),
            "versions": {**orbax.versions, "jax": jax.__version__},
            "device": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        }
    )


if __name__ == "__main__":
    main()
