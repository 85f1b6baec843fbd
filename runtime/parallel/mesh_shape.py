"""Mesh shape: devices along each axis of a mesh, from plain figures of the machines. No JAX, for plans.

Plan, compiler, roofline and run all use `Machines.layout`, so that they cannot disagree.
"""

import contextlib
import dataclasses
import math
from typing import NamedTuple

PARAMETERS_SHARE = 0.6
"""Largest share of a device's memory for the parameters of an evaluated model; activations and cache take the rest."""


class MeshShape(NamedTuple):
    """Devices along each axis; `data` is the product of the three data axes."""

    replica: int = 1
    data: int = 1
    model: int = 1
    context: int = 1

    @property
    def copy_size(self) -> int:
        """Devices that share one copy of the parameters."""
        return self.data * self.model * self.context

    @property
    def batch_parts(self) -> int:
        return self.replica * self.data

    def check_batch(self, global_batch_size: int, sequence_length: int, num_microbatches: int = 1) -> None:
        """Raise ValueError where a batch does not divide over the mesh."""
        shares, context, model = self.batch_parts, self.context, self.model
        if global_batch_size % shares:
            raise ValueError(
                f"global_batch_size is {global_batch_size:,}, which does not divide over the {shares:,} parts of the "
                f"mesh that take sequences (model_parallel {model}, context_parallel {context}); use a multiple of "
                f"{shares:,}."
            )
        sequences = global_batch_size // shares
        if num_microbatches < 1 or sequences % num_microbatches:
            able = ", ".join(str(number) for number in range(1, sequences + 1) if sequences % number == 0)
            raise ValueError(
                f"num_microbatches is {num_microbatches}, and each part of the mesh takes {sequences:,} sequences of a "
                f"batch of {global_batch_size:,}; use one of {able}."
            )
        if sequence_length % context:
            raise ValueError(
                f"sequence_length is {sequence_length:,}, which does not divide into context_parallel {context} equal "
                "parts; use a divisor of it."
            )
        tokens = sequences // num_microbatches * (sequence_length // context)
        if tokens % model:
            raise ValueError(
                f"each part of the mesh takes {tokens:,} tokens at a time (num_microbatches {num_microbatches}, "
                f"context_parallel {context}), which do not divide over model_parallel {model}; use sizes that do."
            )


class MeshLayout(NamedTuple):
    """A mesh on its machines. Along a torus axis, devices are numbered by (replica, data, model and context)."""

    shape: MeshShape
    data: tuple[int, ...]
    """Data devices along each axis of the torus."""
    inner_cut: int
    """Axis that model and context, neighbours, are cut from."""
    replica_cut: int
    """Axis that the replicas within a slice are cut from: each has a contiguous part of it."""

    @property
    def copy_axes(self) -> tuple[int, ...]:
        """Sizes of the axes that split one copy of the parameters."""
        return *self.data, self.shape.context, self.shape.model


@dataclasses.dataclass(frozen=True)
class Machines:
    """Slices, each with a torus of its own; all GPUs or cores of a gang count as one slice, in a row."""

    sizes: tuple[int, ...]
    """Devices along each axis of a slice's torus, or in the row, host by host."""
    num_slices: int = 1
    num_hosts: int = 1
    """Hosts of a row, with a network between them. Hosts of a TPU slice share its torus, and count as 1."""
    cores_hold_copies: bool = False
    """Whether cores of one host share a memory (CPUs), so that each computes with whole parameters."""

    @property
    def num_devices(self) -> int:
        return math.prod(self.sizes) * self.num_slices

    def layout(self, *, replica: int = 1, model: int = 1, context: int = 1) -> MeshLayout:
        """Return the layout with `replica` copies of the parameters in each slice or gang; data gets the rest.

        Raises:
            ValueError: the devices cannot be shared like that.
        """
        inner = model * context
        copies = replica
        if self.cores_hold_copies:
            cores = self.sizes[0] // self.num_hosts
            copies *= cores // inner if cores % inner == 0 else 1
            if self.num_hosts % replica:
                raise ValueError(
                    f"replica_parallel is {replica}, which does not divide the number of hosts, {self.num_hosts}. "
                    "Each core of a host has a copy already: omit replica_parallel, or ask for as many hosts."
                )
        elif self.num_hosts % replica and replica % self.num_hosts:
            raise ValueError(
                f"replica_parallel is {replica}, and there are {self.num_hosts} hosts, so a copy of the parameters "
                "would start inside a host. Use a divisor of the hosts, or a multiple."
            )
        laid = [
            (inner_cut, replica_cut, left)
            for inner_cut, inner_left in _cuts(self.sizes, inner)
            for replica_cut, left in _cuts(inner_left, copies)
        ]
        if not laid:
            raise ValueError(_no_cut(self.sizes, inner, copies))
        inner_cut, replica_cut, left = laid[0]
        shape = MeshShape(self.num_slices * copies, math.prod(left), model, context)
        return MeshLayout(shape, left, inner_cut, replica_cut)

    def layout_with_copies(self, num_bytes: int, memory_in_bytes: int | None) -> MeshLayout:
        """Return the layout for programs without gradients, with the most copies of the parameters that fit in a slice.

        Where no copy fits, all devices of a slice share one.

        Args:
            num_bytes: size of the parameters as they are stored.
            memory_in_bytes: memory of a device; None for CPUs, which hold any model.
        """
        by_slice = math.prod(self.sizes)
        for sharers in range(1, by_slice):
            if by_slice % sharers == 0 and num_bytes / sharers <= PARAMETERS_SHARE * (memory_in_bytes or math.inf):
                with contextlib.suppress(ValueError):  # no axis of the torus has such parts
                    return self.layout_of_copies(sharers)
        return self.layout_of_copies(by_slice)

    def layout_of_copies(self, devices_of_a_copy: int) -> MeshLayout:
        """Return the layout for programs without gradients, where whole copies send each other nothing.

        Raises:
            ValueError: no axis of the torus can be cut into such parts.
        """
        if devices_of_a_copy > 1:
            return self.layout(replica=math.prod(self.sizes) // devices_of_a_copy)
        return MeshLayout(MeshShape(replica=self.num_devices), (1,) * len(self.sizes), 0, 0)


def _cuts(sizes: tuple[int, ...], number: int) -> list[tuple[int, tuple[int, ...]]]:
    """Return the axes that `number` divides, each with the sizes that are then left.

    The last comes first, so that data keeps the whole ring of the first axis, where the largest sums go.
    """
    return [
        (cut, tuple(size // number if axis == cut else size for axis, size in enumerate(sizes)))
        for cut in reversed(range(len(sizes)))
        if sizes[cut] % number == 0
    ]


def _no_cut(sizes: tuple[int, ...], inner: int, copies: int) -> str:
    """Return the error for the cut that fails: model and context, or the replicas of what they leave."""
    name, number, of, left = "replica_parallel", copies, "", [left for _, left in _cuts(sizes, inner)]
    if not left:
        name, number, left = "model_parallel x context_parallel", inner, [sizes]
    elif inner > 1:
        of = f" beside model_parallel x context_parallel = {inner}"
    if len(sizes) == 1:
        return f"{name} is {number}, which does not divide the {sizes[0]} devices{of}; use sizes that do."
    able = [str(size) for size in range(1, max(sizes) + 1) if any(_cuts(each, size) for each in left)]
    torus = "x".join(map(str, sizes))
    return f"{name} is {number}, which divides no axis of a torus of {torus} chips{of}; use one of {', '.join(able)}."
