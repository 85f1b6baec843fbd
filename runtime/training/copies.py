"""Copies: whether what a mesh holds several times of the parameters is still the same everywhere, to the bit.

Replicas hold all of it, and every device what is too small to split. All of them take the same updates, so no rounding
can set them apart: only a device that computed or remembered wrongly. BLOOM-176B met that, for a reason that was never
found, and averaged its copies in every forward pass; here it is told, and certifies nothing.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool

from runtime.training.checkpoint_leaves import leaves_by_name
from runtime.training.digests import digest_of
from runtime.training.monitors import Alarm

MONITOR = "copies"


class Copies:
    """Those of one run since it began, or was resumed: from one copy, which made all of them the same."""

    def __init__(self, begin_step: int) -> None:
        self._same_step = begin_step
        self.are_apart = False
        """Whether they were found to differ; they do not come together again."""

    def observe(self, step: int, apart: Sequence[str]) -> list[Alarm]:
        """The alarm of the first comparison that found tensors `apart`."""
        if not apart:
            self._same_step = step
        if not apart or self.are_apart:
            return []
        self.are_apart = True
        tensors = f"{len(apart)} tensor{'s' if len(apart) > 1 else ''}"
        named = f"{', '.join(apart[:3])}{', ...' if len(apart) > 3 else ''}"
        message = (
            f"step {step}: devices that hold the same parameters do not hold the same bits, in {tensors} ({named}): "
            f"one of them has computed or remembered wrongly, after step {self._same_step}, where they were the same. "
            "Nothing was stopped or changed, and which of them is right cannot be known: stop the phase, have the "
            f"machines looked at, and go back to a checkpoint of step {self._same_step} or before; `certified` with "
            "the name of the phase lists them."
        )
        return [Alarm(MONITOR, step, float(len(apart)), 0.0, message)]


def begin_comparison(params: object) -> dict[str, Bool[Array, ""]]:
    """Starts to compare the copies that a mesh holds of each tensor, on the devices, without waiting.

    Every host must call it. What `finish_comparison` finds unlike is no rounding: copies take the same updates, so that
    only a device that computed or remembered wrongly can set them apart. Tensors that have one copy are left out.
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


def finish_comparison(begun: dict[str, Array]) -> list[str]:
    """Waits for what `begin_comparison` started; the tensors whose copies are not the same."""
    return [name for name, are_apart in jax.device_get(begun).items() if are_apart]


@functools.cache
def _comparison(mesh: Mesh | AbstractMesh, specs: tuple[PartitionSpec, ...]) -> Callable[..., tuple[Array, ...]]:
    def are_apart(*parts: Array) -> tuple[Array, ...]:
        found = []
        for part, spec in zip(parts, specs, strict=True):
            words = lax.bitcast_convert_type(digest_of(part), jnp.int32)  # some devices compare signed numbers alone
            copies = _axes_of_copies(mesh, spec)
            is_apart = jnp.any(lax.pmin(words, copies) != lax.pmax(words, copies))
            others = tuple(axis for axis in mesh.axis_names if axis not in copies)
            found.append(lax.pmax(is_apart.astype(jnp.int32), others) > 0)
        return tuple(found)

    whole = tuple(PartitionSpec() for _ in specs)
    return jax.jit(jax.shard_map(are_apart, mesh=mesh, in_specs=specs, out_specs=whole, check_vma=False))


def _axes_of_copies(mesh: Mesh | AbstractMesh, spec: PartitionSpec) -> tuple[str, ...]:
    """Those of more than one device that do not split the tensor."""
    splitting = {axis for part in spec if part is not None for axis in ((part,) if isinstance(part, str) else part)}
    return tuple(axis for axis, size in mesh.shape.items() if size > 1 and axis not in splitting)
