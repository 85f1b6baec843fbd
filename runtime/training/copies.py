"""Copies: a monitor that compares, bit for bit, the copies of parameters that a mesh holds.

All copies take the same training steps, so only a device that computes or remembers wrongly can separate them.
BLOOM-176B met such a fault, never found its cause, and averaged its copies in every forward pass.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool

from runtime.model.model import leaves_by_name
from runtime.training.digests import digest_of
from runtime.training.monitors import Alarm

MONITOR = "copies"


class Copies:
    """The copies of one attempt, all equal at `begin_step`, where one checkpoint or one program made them."""

    def __init__(self, begin_step: int) -> None:
        self._same_step = begin_step
        self.are_apart = False
        """Whether a comparison found them to differ; copies do not converge again."""

    def observe(self, step: int, apart: Sequence[str]) -> list[Alarm]:
        """Return the alarm of the first comparison that finds tensors `apart`."""
        if not apart:
            self._same_step = step
        if not apart or self.are_apart:
            return []
        self.are_apart = True
        tensors = f"{len(apart)} tensor{'s' if len(apart) > 1 else ''}"
        named = ", ".join([*apart[:3], *(["..."] if len(apart) > 3 else [])])
        message = (
            f"step {step}: copies of the same parameters differ between devices, in {tensors} ({named}). A device has "
            f"computed or remembered wrongly after step {self._same_step}, where the copies were equal. Training "
            "continues, and the right copy is unknown: stop the phase, have the machines checked, and start again "
            f"from a checkpoint of step {self._same_step} or earlier (`checkpoints PHASE --good` lists them)."
        )
        return [Alarm(MONITOR, step, float(len(apart)), 0.0, message)]


def begin_comparison(params: object) -> dict[str, Bool[Array, ""]]:
    """Start to compare the copies of each tensor on the devices, without waiting; every host must call it.

    Tensors with a single copy are left out.
    """
    copied = {
        name: leaf
        for name, leaf in leaves_by_name(params).items()
        if isinstance(leaf.sharding, NamedSharding) and _axes_of_copies(leaf.sharding.mesh, leaf.sharding.spec)
    }
    if not copied:
        return {}
    (mesh,) = {leaf.sharding.mesh for leaf in copied.values()}
    specs = tuple(leaf.sharding.spec for leaf in copied.values())
    return dict(zip(copied, _comparison(mesh, specs)(*copied.values()), strict=True))


def finish_comparison(started: dict[str, Array]) -> list[str]:
    """Wait for `begin_comparison`, and return the tensors whose copies differ."""
    return [name for name, are_apart in jax.device_get(started).items() if are_apart]


@functools.cache
def _comparison(mesh: Mesh | AbstractMesh, specs: tuple[PartitionSpec, ...]) -> Callable[..., tuple[Array, ...]]:
    def are_apart(*parts: Array) -> tuple[Array, ...]:
        found = []
        for part, spec in zip(parts, specs, strict=True):
            words = lax.bitcast_convert_type(digest_of(part), jnp.int32)  # some devices compare signed integers only
            copies = _axes_of_copies(mesh, spec)
            is_apart = jnp.any(lax.pmin(words, copies) != lax.pmax(words, copies))
            others = tuple(axis for axis in mesh.axis_names if axis not in copies)
            found.append(lax.pmax(is_apart.astype(jnp.int32), others) > 0)
        return tuple(found)

    whole = tuple(PartitionSpec() for _ in specs)
    return jax.jit(jax.shard_map(are_apart, mesh=mesh, in_specs=specs, out_specs=whole, check_vma=False))


def _axes_of_copies(mesh: Mesh | AbstractMesh, spec: PartitionSpec) -> tuple[str, ...]:
    """Return the axes of several devices that do not split the tensor."""
    splitting = {axis for part in spec if part is not None for axis in ((part,) if isinstance(part, str) else part)}
    return tuple(axis for axis, size in mesh.shape.items() if size > 1 and axis not in splitting)
