"""Accelerators, and the slices that share wires: TPUs by their public names, GPUs as "2 x 8 x H200".

Peaks and bandwidths are the published ones (cloud.google.com/tpu/docs; NVIDIA's data sheets, dense bfloat16, and FP32
without tensor cores; one direction of one link for the wires). `hbm_in_bytes` is the memory that a program gets: on a
TPU by the compiler's message for a program far too large, on a GPU the three quarters that JAX takes when it starts.
"""

import dataclasses
import math
import re
from typing import Literal

GIB = 2**30
FLOAT32_PASSES = 6
"""Products in bfloat16 that a TPU forms a float32 one from, at the precision "highest" (`jax.lax.Precision`)."""
REACHED_SHARE_OF_PEAK = {"tpu": 0.53, "gpu": 0.4}
"""Share of the peak, by a model's own products with causal attention, that chip-hours are planned with before a
compile. The roofline's plan is 52 to 54 % of the peak for the 8B's steps; Llama 3 405B reports 38 to 43 % on 8,192 and
more H100 (arXiv:2407.21783, table 4)."""


@dataclasses.dataclass(frozen=True)
class Generation:
    """A kind of chip."""

    name: str
    """Name in topologies: "v4" in "v4:2x2x1"."""
    bfloat16_flops: float
    """Peak of products, FLOPs a second."""
    float32_flops: float
    """Peak of float32 products: on a TPU in `FLOAT32_PASSES`, on a GPU without its tensor cores."""
    hbm_in_bytes: int
    hbm_bytes_per_second: float
    link_bytes_per_second: float
    """Bandwidth of one direction of one wire between neighbours; an axis of a torus has two wires a chip."""
    dcn_bytes_per_second: float
    """A chip's share of its host's network, between slices or hosts of GPUs."""
    cores_in_the_name: int
    """Cores of a chip that the number in a slice's name counts: 2 (v4, v5p) or 1."""
    dimensions: int
    """Dimensions of the torus; GPUs of a host share a switch instead, and count as one."""
    chip_config_name: str | None = None
    """Configuration of the topology: v4 is used as megacore, one device a chip."""
    platform: Literal["tpu", "gpu"] = "tpu"

    def peak_flops(self, compute_dtype: str) -> float:
        """Return the peak of products in that dtype, FLOPs a second; see
        `runtime.model.computation.matmul_precision`."""
        return {"bfloat16": self.bfloat16_flops, "float32": self.float32_flops}[compute_dtype]


GENERATIONS = {
    generation.name: generation
    for generation in (
        Generation("v4", 275e12, 275e12 / FLOAT32_PASSES, int(30.75 * GIB), 1.228e12, 45e9, 6.25e9, 2, 3, "megacore"),
        Generation("v5e", 197e12, 197e12 / FLOAT32_PASSES, int(15.75 * GIB), 0.819e12, 45e9, 3.125e9, 1, 2),
        Generation("v5p", 459e12, 459e12 / FLOAT32_PASSES, int(95.73 * GIB), 2.765e12, 90e9, 6.25e9, 2, 3),
        Generation("v6e", 918e12, 918e12 / FLOAT32_PASSES, int(31.24 * GIB), 1.64e12, 90e9, 12.5e9, 1, 2),
    )
}
GPUS = {
    generation.name: generation
    for generation in (
        Generation("A100-80G", 312e12, 19.5e12, int(79.1 * GIB) * 3 // 4, 2.039e12, 300e9, 25e9, 1, 1, platform="gpu"),
        Generation("H100", 989e12, 67e12, int(79.1 * GIB) * 3 // 4, 3.35e12, 450e9, 50e9, 1, 1, platform="gpu"),
        Generation("H200", 989e12, 67e12, int(139.8 * GIB) * 3 // 4, 4.8e12, 450e9, 50e9, 1, 1, platform="gpu"),
    )
}
"""GPUs by Ray's names; the boards with NVLink (SXM). Memory is what CUDA reports, less than what the driver does."""
_PREFIXES = {"v4": "v4", "v5litepod": "v5e", "v5e": "v5e", "v5p": "v5p", "v6e": "v6e"}
_SIZES_3D = {
    4: (2, 2, 1), 8: (2, 2, 2), 16: (2, 2, 4), 32: (2, 4, 4), 64: (4, 4, 4), 128: (4, 4, 8), 256: (4, 8, 8),
    512: (8, 8, 8), 1024: (8, 8, 16), 2048: (8, 16, 16), 4096: (16, 16, 16), 6144: (16, 16, 24),
}  # fmt: skip
_SIZES_2D = {1: (1, 1), 4: (2, 2), 8: (2, 4), 16: (4, 4), 32: (4, 8), 64: (8, 8), 128: (8, 16), 256: (16, 16)}


@dataclasses.dataclass(frozen=True)
class Slice:
    """Chips that share one torus; or the GPUs of a gang of hosts, in a row."""

    generation: Generation
    sizes: tuple[int, ...]
    num_hosts: int = 1
    """Hosts of GPUs; 1 for a TPU slice."""

    @property
    def num_chips(self) -> int:
        return math.prod(self.sizes)

    @property
    def topology(self) -> str:
        if self.generation.platform == "gpu":
            return f"1x{self.num_hosts}x{self.num_chips // self.num_hosts}"
        return f"{self.generation.name}:{'x'.join(map(str, self.sizes))}"

    def axis_bytes_per_second(self, axis: int) -> float:
        """Return the bandwidth of a chip along one axis: both directions where the axis closes to a ring, else one."""
        size = self.sizes[axis]
        closes = size == 16 if self.generation.dimensions == 2 else min(self.sizes) >= 4 and size % 4 == 0
        return self.generation.link_bytes_per_second * (2 if closes else 1)


def slice_of(name: str) -> Slice:
    """Return the slice of a public name such as "v4-2048" or "8 x H200", or "4 x 8 x H200" for four hosts.

    Raises:
        ValueError: an unknown generation, or a size that is not sold as one torus.
    """
    if (gpus := re.fullmatch(r"(?:(\d+) x )?(\d+) x (.+)", name)) is not None:
        if gpus[3] not in GPUS:
            raise ValueError(f"GPU {gpus[3]!r} is none of {', '.join(GPUS)}; add its figures to runtime/cost/chips.py.")
        num_hosts = int(gpus[1] or 1)
        return Slice(GPUS[gpus[3]], (num_hosts * int(gpus[2]),), num_hosts)
    prefix, _, number = name.rpartition("-")
    if prefix not in _PREFIXES or not number.isdigit():
        raise ValueError(
            f"TPU slice {name!r}: the generation is none of {', '.join(_PREFIXES)}; write a slice as 'v4-2048'."
        )
    generation = GENERATIONS[_PREFIXES[prefix]]
    sizes = _SIZES_3D if generation.dimensions == 3 else _SIZES_2D
    num_chips = int(number) // generation.cores_in_the_name
    if num_chips not in sizes or int(number) % generation.cores_in_the_name:
        known = ", ".join(f"{prefix}-{chips * generation.cores_in_the_name}" for chips in sizes)
        raise ValueError(f"TPU slice {name!r} is not a known torus; use one of {known}.")
    return Slice(generation, sizes[num_chips])
