"""Which collectives of a compiled program may run beside a loop that holds others: those that no data puts in order."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from runtime.cost.program import KINDS

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%([\w.\-]+) = .*? ([a-z][a-z\-]*)\((.*)$")
_CALLED = re.compile(r"\b(?:body|condition|to_apply|calls|true_computation|false_computation)=%([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")


class _Instruction(NamedTuple):
    operation: str
    operands: list[str]
    called: list[str]
    attributes: str
    is_root: bool

    @property
    def index(self) -> int:
        """Which element of a tuple it takes."""
        return int(re.findall(r"\bindex=(\d+)", self.attributes)[0])


def unordered(text: str) -> list[tuple[str, str]]:
    """Pairs of a loop (or call) with collectives in it and a collective beside it, of the program `text`."""
    return list(_Program(text).unordered())


class _Program:
    def __init__(self, text: str) -> None:
        self._computations: dict[str, dict[str, _Instruction]] = {}
        name = ""
        for line in text.splitlines():
            if (begin := _COMPUTATION.match(line)) is not None:
                name = begin[1]
                self._computations[name] = {}
            elif name and (found := _INSTRUCTION.match(line)) is not None:
                root, instruction, operation, rest = found.groups()
                operands, attributes = _split(rest)
                called = _CALLED.findall(attributes)
                called += [item.strip().removeprefix("%") for listed in _BRANCHES.findall(attributes)
                           for item in listed.split(",")]  # fmt: skip
                self._computations[name][instruction] = _Instruction(
                    operation, re.findall(r"%([\w.\-]+)", operands), called, attributes, bool(root)
                )

    def unordered(self) -> Iterator[tuple[str, str]]:
        for computation, instructions in self._computations.items():
            holding = [name for name in instructions if self._holds(computation, name)]
            before = self._before(computation)
            for loop in holding:
                for other in holding if instructions[loop].operation not in KINDS else ():
                    if other != loop and other not in before[loop] and loop not in before[other]:
                        yield loop, other

    def _holds(self, computation: str, name: str) -> bool:
        """Whether it is a collective or has one in it."""
        instruction = self._computations[computation][name]
        return instruction.operation in KINDS or any(
            self._holds(called, inner) for called in instruction.called for inner in self._computations[called]
        )

    def _before(self, computation: str) -> dict[str, set[str]]:
        """What each instruction takes something from, over however many steps."""
        instructions = self._computations[computation]
        before: dict[str, set[str]] = {}

        def of(name: str) -> set[str]:
            if name not in before:
                operands = self._made_by(instructions, name)
                before[name] = set(operands).union(*map(of, operands))
            return before[name]

        for name in instructions:
            of(name)
        return before

    def _made_by(self, instructions: dict[str, _Instruction], name: str) -> list[str]:
        """Its operands; of what a loop hands through unchanged, what the loop was given."""
        instruction = instructions[name]
        if instruction.operation != "get-tuple-element":
            return instruction.operands
        loop = instructions[instruction.operands[0]]
        given = instructions[loop.operands[0]] if loop.operation == "while" else None
        if given is None or given.operation != "tuple" or not self._hands_through(loop, instruction.index):
            return instruction.operands
        return [given.operands[instruction.index]]

    def _hands_through(self, loop: _Instruction, index: int) -> bool:
        """Whether element `index` of the loop's state is, at the end of its body, what it was at the beginning."""
        body = self._computations[re.findall(r"\bbody=%([\w.\-]+)", loop.attributes)[0]]
        (root,) = (item for item in body.values() if item.is_root)
        name = root.operands[index]
        while (origin := self._made_by(body, name)) != body[name].operands:  # through a loop inside
            (name,) = origin
        item = body[name]
        is_of_state = item.operation == "get-tuple-element" and body[item.operands[0]].operation == "parameter"
        return is_of_state and item.index == index


def _split(rest: str) -> tuple[str, str]:
    """Operands, up to the parenthesis that closes them, and attributes."""
    depth = 1
    for position, character in enumerate(rest):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return rest[:position], rest[position:]
    raise ValueError(f"no end of the operands in {rest[:120]!r}")
