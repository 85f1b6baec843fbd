"""Collectives of a compiled program, read from its scheduled text: bytes, axis, and how much work hides them.

A collective is hidden by the work that the schedule has between its start and its end: the products of the fusions that
carry it along or of the kernel that sends it (v5e), the work between a `-start` and its `-done` (v4, GPUs), or between
the `async-update` that brings the operand and the `async-done` on sparse cores (v5p, v6e). All others hold the chip up.
Loop bodies count as often as they run.

Work is the products alone (`products`), so other work would hide more. Collectives under way at once on different axes
each have all of the work. On a common axis they share the wires, and so the work, by the bytes that they send. A loop
hides nothing along an axis that the loop itself sends along, and of branches the one with the least work counts. Each
of these rules errs towards exposed.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from runtime.cost.products import Products, scattered_axis
from runtime.cost.program import Instruction, Program

KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")
HANDS_OVER = ("async-start", "call-start", "custom-call-start", "fusion-start")
"""Operations that hand a computation to other cores of the chip; from jaxlib 0.11 on named by what runs there."""
BETWEEN_SLICES = {"ALL_REDUCE": "all-reduce", "ALL_GATHER": "all-gather", "REDUCE_SCATTER": "reduce-scatter"}
"""Collective by the type of the send with which a chip hands its numbers to the host; a recv returns the result."""


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective operation of the program."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    """Shape of the whole array, on the larger side."""
    array_bytes: int
    axes: tuple[str, ...]
    num_devices: int
    """Devices of one group."""
    times: int
    """Runs in one step."""
    window_flops: int = 0
    """FLOPs of the work beside it, each time it runs; its share, where others on its axes are under way."""

    @property
    def is_hidden(self) -> bool:
        """Whether there is any work beside it."""
        return self.window_flops > 0

    @property
    def wire_bytes(self) -> int:
        """Bytes that each device sends in all runs, by the ring algorithm."""
        share = 1.0 if self.kind == "collective-permute" else (self.num_devices - 1) / self.num_devices
        passes = 2 if self.kind == "all-reduce" else 1
        return round(self.array_bytes * share * passes) * self.times


def collectives(text: str, axis_sizes: Mapping[str, int]) -> list[Collective]:
    """Return every collective of the scheduled program `text`, whose devices are numbered along `axis_sizes` in
    order."""
    if "is_scheduled=true" not in text.partition("\n")[0]:
        raise ValueError("the program is not scheduled; pass the text of a compiled program.")
    program = Program.read(text)
    walk = _Walk(program, axis_sizes)
    found = walk.through(program.entry, 1)
    for name, instructions in program.computations.items():
        if name not in walk.seen and any(map(_is_collective, instructions.values())):
            raise ValueError(f"{name}: has a collective, and its caller is unknown, so its runs cannot be counted.")
    return found


class _Walk:
    def __init__(self, program: Program, axis_sizes: Mapping[str, int]) -> None:
        self._program, self._axis_sizes = program, dict(axis_sizes)
        self._products = Products(program, of_branches=min)
        self.seen: set[str] = set()

    def through(self, name: str, times: int) -> list[Collective]:
        """Return the collectives of `times` runs of a computation."""
        instructions = self._instructions_of(name)
        inner: dict[int, list[Collective]] = {}
        found: list[tuple[Collective, Sequence[int]]] = []
        for index, instruction in enumerate(instructions):
            match instruction.operation:
                case "while":
                    trips = times * self._program.trips(instruction)
                    inner[index] = self.through(instruction.computation("body"), trips)
                case "call":
                    inner[index] = self.through(instruction.computation("to_apply"), times)
                case "conditional":
                    # Context parallelism: each device runs the branch of its part of the rows; it has only kernels.
                    if any(self.through(branch, 1) for branch in instruction.branches):
                        raise ValueError(f"{instruction.name}: a collective in a branch; its runs cannot be counted.")
                case "fusion":
                    found += self._in_fusion(instructions, index, times)
                case "custom-call" if (axis := scattered_axis(instruction)) is not None:
                    found.append((self._scattered_by_a_kernel(instruction, axis, times), (index,)))
                case operation if operation in HANDS_OVER:
                    if (handed := self._handed_to_a_sparse_core(instruction)) is not None:
                        found.append((self._collective(handed, times), _until_done(instructions, index)))
                case "send":
                    found.append((_between_slices(instruction, times), ()))
                case operation if operation in KINDS:
                    found.append((self._collective(instruction, times), ()))
                case operation if operation.removesuffix("-start") in KINDS:
                    found.append((self._collective(instruction, times), _until_done(instructions, index)))
        return [*itertools.chain(*inner.values()), *self._with_windows(name, found, inner)]

    def _with_windows(
        self, name: str, found: list[tuple[Collective, Sequence[int]]], inner: Mapping[int, list[Collective]]
    ) -> Iterator[Collective]:
        """Yield each collective of a computation with its share of the work at the positions beside it."""
        instructions = self._instructions_of(name)
        for item, beside in found:
            window = 0.0
            for index in beside:
                if not any(_share_wires(item, other) for other in inner.get(index, ())):
                    work = self._products.flops_of(name, instructions[index])
                    sharing = [other for other, theirs in found if index in theirs and _share_wires(item, other)]
                    window += work * item.wire_bytes / max(1, sum(other.wire_bytes for other in sharing))
            yield dataclasses.replace(item, window_flops=round(window))

    def _in_fusion(
        self, instructions: Sequence[Instruction], index: int, times: int
    ) -> Iterator[tuple[Collective, Sequence[int]]]:
        """Yield those that start or run in a fusion, and the positions of the fusions that carry them on."""
        called = instructions[index].computation("calls")
        inner = self._instructions_of(called)
        if called.startswith("async_collective_fusion") or any("AsyncCollectiveDone" in item.rest for item in inner):
            return  # its start was counted
        is_started = any("AsyncCollectiveStart" in item.rest for item in inner)
        for item in inner:
            if _is_collective(item):
                carriers = list(self._carriers(item, instructions, index)) if is_started else []
                yield self._collective(item, times), carriers

    def _carriers(self, started: Instruction, instructions: Sequence[Instruction], index: int) -> Iterator[int]:
        for following in range(index + 1, len(instructions)):
            if instructions[following].operation == "fusion":
                inner = self._instructions_of(instructions[following].computation("calls"))
                if any(item.operation in KINDS and _channel(item) == _channel(started) for item in inner):
                    if any("AsyncCollectiveDone" in item.rest for item in inner):
                        return
                    yield following

    def _handed_to_a_sparse_core(self, start: Instruction) -> Instruction | None:
        """Return the collective that runs there; None for other work, such as looking up rows of a table."""
        found = [item for name in start.called for item in self._in_calls(name)]
        if len(found) > 1:
            raise ValueError(f"{start.name}: has {len(found)} collectives in one call, so their windows are unknown.")
        return found[0] if found else None

    def _in_calls(self, computation: str) -> Iterator[Instruction]:
        for item in self._instructions_of(computation):
            inner = [found for name in item.called for found in self._in_calls(name)]
            if inner and item.operation in ("while", "conditional"):
                raise ValueError(f"{item.name}: a collective in a {item.operation} there; its runs cannot be counted.")
            yield from [item] if _is_collective(item) else inner

    def _instructions_of(self, computation: str) -> list[Instruction]:
        self.seen.add(computation)
        return list(self._program.computations[computation].values())

    def _collective(self, instruction: Instruction, times: int) -> Collective:
        kind = instruction.operation.removesuffix("-start")
        arrays = instruction.arrays
        is_started = instruction.operation.endswith("-start") and kind != "all-reduce"
        if is_started:  # operands and as many results side by side, and of a permute what it waits with
            arrays = [array for array in arrays if array.shape] or arrays
            sides = arrays[: len(arrays) // 2], arrays[len(arrays) // 2 :]
            arrays = max(sides, key=lambda side: sum(array.size_in_bytes for array in side))
        dtype, shape, _ = max(arrays, key=lambda array: array.size_in_bytes)
        members = self._members(instruction)
        is_of_parts = kind == "reduce-scatter" and not is_started
        size = sum(array.size_in_bytes for array in arrays) * (len(members) if is_of_parts else 1)
        return Collective(kind, dtype, shape, size, self._axes(members), len(members), times)

    def _scattered_by_a_kernel(self, kernel: Instruction, axis: str, times: int) -> Collective:
        """Return the collective of a kernel that sends parts round a ring beside its products
        (`scattered_product_tpu`)."""
        (dtype, (part, columns), size), num_devices = kernel.arrays[0], self._axis_sizes[axis]
        return Collective(
            "reduce-scatter", dtype, (num_devices * part, columns), num_devices * size, (axis,), num_devices, times
        )

    def _members(self, instruction: Instruction) -> list[int]:
        rest = instruction.attributes
        if (pairs := re.search(r"source_target_pairs=\{\{(\d+),(\d+)\}", rest)) is not None:
            return [int(pairs[1]), int(pairs[2])]
        if (listed := re.search(r"replica_groups=\{\{([\d,]+)\}", rest)) is not None:
            return _numbers(listed[1])
        if (iota := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", rest)) is not None:
            groups, sizes = _numbers(iota[1]), _numbers(iota[2])
            order = _numbers(iota[3]) if iota[3] else list(range(len(sizes)))
            return _iota(sizes, order)[: groups[-1]]
        if (named := re.search(r"replica_groups=mesh\[([^\]]*)\] \{((?:'\w+',?)*)\}", rest)) is not None:
            mesh = [(name, int(size)) for name, size in re.findall(r"'(\w+)'=(\d+)", named[1])]
            within = [index for index, (name, _) in enumerate(mesh) if f"'{name}'" in named[2]]
            others = [index for index in range(len(mesh)) if index not in within]
            sizes = [size for _, size in mesh]
            return _iota(sizes, others + within)[: math.prod(sizes[index] for index in within)]
        if "replica_groups={}" in rest:
            return list(range(math.prod(self._axis_sizes.values())))
        raise ValueError(f"{instruction.name}: the devices of the group are not in {rest[:200]!r}.")

    def _axes(self, members: list[int]) -> tuple[str, ...]:
        places = [_unravel(member, list(self._axis_sizes.values())) for member in members]
        return tuple(axis for index, axis in enumerate(self._axis_sizes) if len({place[index] for place in places}) > 1)


def _is_collective(instruction: Instruction) -> bool:
    return instruction.operation.removesuffix("-start") in KINDS or instruction.operation == "send"


def _until_done(instructions: Sequence[Instruction], start: int) -> range:
    """Return positions beside a start; a start without operand only loads the program, and its update runs it."""
    runs = start
    for index in range(start + 1, len(instructions)):
        if instructions[runs].name in instructions[index].operands:
            if instructions[index].operation.endswith("-done"):
                return range(runs + 1, index)
            if instructions[index].operation.endswith("-update"):
                runs = index
    raise ValueError(f"{instructions[start].name}: no -done in its computation, so its window is unknown.")


def _between_slices(send: Instruction, times: int) -> Collective:
    """Return a collective that the hosts carry out over their network: a send and a recv, for any number of slices."""
    slices = re.search(r'_xla_megascale_target="\{([\d,]+)\}x', send.attributes)
    what = re.search(r'_xla_megascale_transfer_type="(\w+)"', send.attributes)
    if slices is None or what is None or what[1] not in BETWEEN_SLICES:
        raise ValueError(f"{send.name}: the transfer and its slices are not in {send.attributes[:400]!r}.")
    kind, num_slices = BETWEEN_SLICES[what[1]], len(_numbers(slices[1]))
    dtype, shape, size = send.arrays[0]
    parts = num_slices if kind == "all-gather" else 1  # of which a chip sends its own
    whole = shape if parts == 1 else (parts, *shape)
    return Collective(kind, dtype, whole, parts * size, ("replica",), num_slices, times)


def _share_wires(one: Collective, other: Collective) -> bool:
    """Return whether both use a common axis; model and context axes lie on the wires of an unknown data axis."""
    axes = set(one.axes), set(other.axes)
    return bool(axes[0] & axes[1] or {"model", "context"} & (axes[0] | axes[1]))


def _channel(instruction: Instruction) -> str | None:
    found = re.search(r"channel_id=(\d+)", instruction.rest)
    return None if found is None else found[1]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def _unravel(index: int, sizes: list[int]) -> list[int]:
    place = []
    for size in reversed(sizes):
        index, position = divmod(index, size)
        place.append(position)
    return place[::-1]


def _iota(sizes: list[int], order: list[int]) -> list[int]:
    """Return the numbers 0.. of an array of `sizes`, transposed to `order`, in row-major order."""
    strides = [math.prod(sizes[index + 1 :]) for index in range(len(sizes))]
    moved = [(sizes[axis], strides[axis]) for axis in order]
    found = [0]
    for size, stride in moved:
        found = [base + position * stride for base in found for position in range(size)]
    return found
