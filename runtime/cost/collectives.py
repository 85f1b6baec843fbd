"""The collectives of a compiled program, read off its scheduled text: bytes, axis, and whether work hides them.

A collective is hidden where the schedule has work between its start and its end: the compiler's fusions that carry one
along with a product (v5e), pairs of `-start` and `-done` with a product or a kernel between them (v4, GPUs), and chains
of `async-start`, `async-update` and `async-done` that hand one to the chip's sparse cores (v5p, v6e). All others hold
the chip up. Loop bodies are counted as often as they run.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from runtime.cost.program import Instruction, Program

CALLED_FOR_PRODUCTS = ("tpu_custom_call", "__cublas$", "__cudnn$", "__gpu$xla.gpu.triton")
"""Targets of custom calls that hold the chip's arithmetic units: Mosaic kernels of a TPU; libraries and Triton's."""
KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")
HANDS_OVER = ("async-start", "call-start", "custom-call-start", "fusion-start")
"""A computation to other cores of the chip. From jaxlib 0.11 on the name is that of what runs there."""
BETWEEN_SLICES = ("send",)  # an all-reduce over slices becomes pairs of send and recv, of which one is counted


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective operation of the program."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    """Of the whole array, on either side, whichever is larger."""
    array_bytes: int
    axes: tuple[str, ...]
    num_devices: int
    """That take part in one group."""
    times: int
    """How often it runs in one step."""
    is_hidden: bool

    @property
    def wire_bytes(self) -> int:
        """What each device sends in all, by the ring algorithm."""
        share = (self.num_devices - 1) / self.num_devices
        passes = {"all-reduce": 2.0}.get(self.kind, 1.0)
        if self.kind in ("collective-permute", *BETWEEN_SLICES):
            share = 1.0
        return round(self.array_bytes * share * passes) * self.times


def collectives(text: str, axis_sizes: Mapping[str, int]) -> list[Collective]:
    """Every collective of the scheduled program `text`, whose devices are numbered along `axis_sizes` in order."""
    if "is_scheduled=true" not in text.partition("\n")[0]:
        raise ValueError("the program is not scheduled; pass the text of a compiled program.")
    program = Program.read(text)
    walk = _Walk(program, axis_sizes)
    found = list(walk.through(program.entry, 1))
    for name, instructions in program.computations.items():
        if name not in walk.seen and any(map(_is_collective, instructions.values())):
            raise ValueError(f"{name}: a collective in it, and what calls it is not known; its runs cannot be counted.")
    return found


class _Walk:
    def __init__(self, program: Program, axis_sizes: Mapping[str, int]) -> None:
        self._program, self._axis_sizes = program, dict(axis_sizes)
        self.seen: set[str] = set()

    def through(self, name: str, times: int) -> Iterator[Collective]:
        instructions = self._instructions_of(name)
        for index, instruction in enumerate(instructions):
            match instruction.operation:
                case "while":
                    yield from self.through(instruction.computation("body"), times * self._program.trips(instruction))
                case "call":
                    yield from self.through(instruction.computation("to_apply"), times)
                case "conditional":
                    # Context parallelism: each device runs the branch of its stretch, and only kernels are in there.
                    if any(True for branch in instruction.branches for _ in self.through(branch, 1)):
                        raise ValueError(f"{instruction.name}: a collective in a branch; its runs cannot be counted.")
                case "fusion":
                    yield from self._in_fusion(instruction, instructions[index + 1 :], times)
                case operation if operation in HANDS_OVER:
                    if (handed := self._handed_to_a_sparse_core(instruction)) is not None:
                        is_hidden = self._has_work_until_done(instruction, instructions[index + 1 :])
                        yield self._collective(handed, times, is_hidden=is_hidden)
                case operation if operation in KINDS or operation in BETWEEN_SLICES:
                    yield self._collective(instruction, times, is_hidden=False)
                case operation if operation.removesuffix("-start") in KINDS:
                    following = instructions[index + 1 :]
                    yield self._collective(
                        instruction, times, is_hidden=self._has_work_before_the_end(instruction, following)
                    )

    def _in_fusion(self, fusion: Instruction, following: Sequence[Instruction], times: int) -> Iterator[Collective]:
        called = fusion.computation("calls")
        inner = self._instructions_of(called)
        if called.startswith("async_collective_fusion") or any("AsyncCollectiveDone" in item.rest for item in inner):
            return  # its start was counted
        is_started = any("AsyncCollectiveStart" in item.rest for item in inner)
        for item in inner:
            if _is_collective(item):
                yield self._collective(item, times, is_hidden=is_started and self._is_carried(item, following))

    def _is_carried(self, started: Instruction, following: Sequence[Instruction]) -> bool:
        """Whether some fusion with a product in it carries the collective of the same channel on."""
        channel = _channel(started)
        for fusion in following:
            if fusion.operation != "fusion":
                continue
            inner = self._instructions_of(fusion.computation("calls"))
            same = any(item.operation in KINDS and _channel(item) == channel for item in inner)
            if same and not any("AsyncCollectiveDone" in item.rest for item in inner):
                return self._is_work(fusion)
        return False

    def _handed_to_a_sparse_core(self, start: Instruction) -> Instruction | None:
        """The collective that runs there; None where it is something else, such as looking up rows of a table."""
        found = [item for name in start.called for item in self._in_calls(name)]
        if len(found) > 1:
            raise ValueError(
                f"{start.name}: {len(found)} collectives in one call; which of them work hides is not known."
            )
        return found[0] if found else None

    def _in_calls(self, computation: str) -> Iterator[Instruction]:
        for item in self._instructions_of(computation):
            inner = [found for name in item.called for found in self._in_calls(name)]
            if inner and item.operation in ("while", "conditional"):
                raise ValueError(f"{item.name}: a collective in a {item.operation} there; its runs cannot be counted.")
            yield from [item] if _is_collective(item) else inner

    def _has_work_until_done(self, start: Instruction, following: Sequence[Instruction]) -> bool:
        """A start without its operand only loads the program; the update that brings the operand lets it run."""
        runs = start
        found = False
        for instruction in following:
            if runs.name not in instruction.operands:
                found = found or self._is_work(instruction)
            elif instruction.operation.endswith("-done"):
                return found
            elif instruction.operation.endswith("-update"):
                runs, found = instruction, False
        raise ValueError(f"{start.name}: no -done in its computation; whether work hides it cannot be told.")

    def _has_work_before_the_end(self, start: Instruction, following: Sequence[Instruction]) -> bool:
        for instruction in following:
            if instruction.operation.endswith("-done") and start.name in instruction.operands:
                return False
            if self._is_work(instruction):
                return True
        return False

    def _is_work(self, instruction: Instruction) -> bool:
        if instruction.operation in ("convolution", "dot", "while"):
            return True
        if instruction.operation == "custom-call":
            return any(target in instruction.rest for target in CALLED_FOR_PRODUCTS)
        if instruction.operation == "conditional":
            return all(any(map(self._is_work, self._instructions_of(name))) for name in instruction.branches)
        return instruction.operation == "fusion" and any(
            self._is_work(inner) for inner in self._instructions_of(instruction.computation("calls"))
        )

    def _instructions_of(self, computation: str) -> list[Instruction]:
        self.seen.add(computation)
        return list(self._program.computations[computation].values())

    def _collective(self, instruction: Instruction, times: int, *, is_hidden: bool) -> Collective:
        kind = instruction.operation.removesuffix("-start")
        arrays = instruction.arrays
        is_started = instruction.operation.endswith("-start") and kind != "all-reduce"
        if is_started:  # operands and as many results side by side, and of a permute what it waits with
            arrays = [array for array in arrays if array.shape] or arrays
            sides = arrays[: len(arrays) // 2], arrays[len(arrays) // 2 :]
            arrays = max(sides, key=lambda side: sum(array.size_in_bytes for array in side))
        dtype, shape, largest = max(arrays, key=lambda array: array.size_in_bytes)
        if kind in BETWEEN_SLICES:
            return Collective(kind, dtype, shape, largest, ("replica",), 2, times, is_hidden)
        members = self._members(instruction)
        is_of_parts = kind == "reduce-scatter" and not is_started
        size = sum(array.size_in_bytes for array in arrays) * (len(members) if is_of_parts else 1)
        return Collective(kind, dtype, shape, size, self._axes(members), len(members), times, is_hidden)

    def _members(self, instruction: Instruction) -> list[int]:
        """Devices of the first group."""
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
        raise ValueError(f"{instruction.name}: which devices take part is not known of {rest[:200]!r}.")

    def _axes(self, members: list[int]) -> tuple[str, ...]:
        places = [_unravel(member, list(self._axis_sizes.values())) for member in members]
        return tuple(axis for index, axis in enumerate(self._axis_sizes) if len({place[index] for place in places}) > 1)


def _is_collective(instruction: Instruction) -> bool:
    return instruction.operation.removesuffix("-start") in KINDS or instruction.operation in BETWEEN_SLICES


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
    """Numbers 0.. of an array of `sizes`, transposed to `order`, in row-major order."""
    strides = [math.prod(sizes[index + 1 :]) for index in range(len(sizes))]
    moved = [(sizes[axis], strides[axis]) for axis in order]
    found = [0]
    for size, stride in moved:
        found = [base + position * stride for base in found for position in range(size)]
    return found
