"""Program: a compiled program as XLA prints it, computations of instructions."""

import dataclasses
import math
import re
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%([\w.\-]+) = (.*?) ([a-z][a-z\-]*)\((.*)$")
_NAME = re.compile(r"%([\w.\-]+)")
_ARRAY = re.compile(r"\b(pred|[a-z]+([0-9]+)(?:e[0-9]+m[0-9]+[a-z0-9]*)?)\[([0-9,]*)\]")
_INTEGER = re.compile(r"-?[0-9]+")
_CALLED = re.compile(r"\b(?:body|condition|to_apply|calls|true_computation|false_computation)=%([\w.\-]+)")
_LISTED = re.compile(r"\b(?:branch_computations|called_computations)=\{([^}]*)\}")


class ArrayType(NamedTuple):
    """Type of an array that an instruction returns, itself or in a tuple."""

    dtype: str
    shape: tuple[int, ...]
    size_in_bytes: int


@dataclasses.dataclass(frozen=True)
class Instruction:
    """A line of a computation."""

    name: str
    type_: str
    operation: str
    rest: str
    """Operands and attributes, as printed after the operation's parenthesis."""
    is_root: bool

    @cached_property
    def operands(self) -> list[str]:
        return _NAME.findall(self.rest[: self._end_of_operands])

    @cached_property
    def arrays(self) -> list[ArrayType]:
        """Its results: one array, or those of a tuple."""
        return list(_arrays(self.type_))

    @cached_property
    def attributes(self) -> str:
        return self.rest[self._end_of_operands :]

    @cached_property
    def called(self) -> list[str]:
        """Computations that run within it: those of a loop, a call, a fusion, or branches."""
        listed = [
            name.strip().removeprefix("%") for names in _LISTED.findall(self.attributes) for name in names.split(",")
        ]
        return _CALLED.findall(self.attributes) + listed

    @property
    def branches(self) -> list[str]:
        """Computations of a conditional, one of which runs; raise ValueError where it names none in a known way."""
        if not self.called:
            raise ValueError(f"{self.name}: no branches in {self.rest[:200]!r}")
        return self.called

    def computation(self, word: str) -> str:
        """Return the computation that its attribute `word` names, such as "body".

        Raises:
            ValueError: it has no such attribute.
        """
        found = re.search(rf"\b{word}=%([\w.\-]+)", self.attributes)
        if found is None:
            raise ValueError(f"{self.name}: no {word}= in {self.rest[:200]!r}")
        return found[1]

    @property
    def integer(self) -> int | None:
        """Value of a constant whole number; None for other instructions."""
        value = self.rest[: self._end_of_operands]
        return int(value) if self.operation == "constant" and _INTEGER.fullmatch(value) else None

    @property
    def index(self) -> int | None:
        """Index of the tuple element that it takes; None for other instructions."""
        found = re.search(r"\bindex=(\d+)", self.attributes)
        return int(found[1]) if found is not None and self.operation == "get-tuple-element" else None

    @cached_property
    def _end_of_operands(self) -> int:
        depth = 1  # types of tuples stand in parentheses of their own
        for found in re.finditer(r"[()]", self.rest):
            depth += 1 if found[0] == "(" else -1
            if depth == 0:
                return found.start()
        raise ValueError(f"{self.name}: no end of the operands in {self.rest[:120]!r}")


class Program(NamedTuple):
    """Computations by name, in the order of the text, which is the schedule's where there is one."""

    computations: dict[str, dict[str, Instruction]]
    entry: str

    @staticmethod
    def read(text: str) -> "Program":
        """Read the text of a compiled program; raise ValueError if it is not the text of a whole program."""
        computations: dict[str, dict[str, Instruction]] = {}
        name = entry = ""
        for line in text.splitlines():
            if (begin := _COMPUTATION.match(line)) is not None:
                name = begin[2]
                computations[name] = {}
                entry = name if begin[1] else entry
            elif name and (found := _INSTRUCTION.match(line)) is not None:
                root, instruction, type_, operation, rest = found.groups()
                computations[name][instruction] = Instruction(instruction, type_, operation, rest, bool(root))
        if not entry:
            raise ValueError("no ENTRY in the text; pass that of a whole compiled program.")
        return Program(computations, entry)

    def operands(self, computation: str, instruction: Instruction) -> list[Instruction]:
        """Return the operands of an instruction of `computation`, in order."""
        return [self.computations[computation][name] for name in instruction.operands]

    def trips(self, loop: Instruction) -> int:
        """Return the number of a loop's turns: `i < n` with i from 0 and a constant stride.

        The stride is 1 in a scan, and 2 in a ring that goes both ways. The GPU's compiler prints the number of turns.

        Raises:
            ValueError: it is another kind of loop.
        """
        if (known := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.rest)) is not None:
            return int(known[1])
        condition, body = map(loop.computation, ("condition", "body"))
        last = self.root(condition)
        is_less_than = last.operation == "compare" and "direction=LT" in last.attributes
        counter, bound = self.operands(condition, last) if is_less_than else (last, last)
        if counter.index is None or bound.integer is None:
            raise ValueError(
                f"{condition}: not the condition of a scan ({last.rest[:120]!r}); loops cannot be counted."
            )
        following = self.operands(body, self.root(body))
        added = following[counter.index] if counter.index < len(following) else None
        strides = [item.integer for item in self.operands(body, added)] if added and added.operation == "add" else []
        stride = next((size for size in strides if size is not None and size > 0), None)
        if stride is None:
            raise ValueError(f"{body}: what its counter grows by is no constant; loops cannot be counted.")
        return math.ceil(bound.integer / stride)

    def root(self, computation: str) -> Instruction:
        """Return the instruction whose result is the computation's; it need not be the last one.

        Raises:
            ValueError: there is none.
        """
        for instruction in self.computations[computation].values():
            if instruction.is_root:
                return instruction
        raise ValueError(f"{computation}: no ROOT in it; pass the text of a compiled program.")


def _arrays(type_: str) -> Iterator[ArrayType]:
    for dtype, bits, numbers in _ARRAY.findall(type_):
        shape = tuple(int(number) for number in numbers.split(",") if number)
        yield ArrayType(dtype, shape, math.ceil(math.prod(shape) * int(bits or 8) / 8))
