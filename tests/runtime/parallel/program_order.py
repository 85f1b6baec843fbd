"""Collectives of a compiled program that may run beside a loop with others, since no data orders them."""

from collections.abc import Iterator

from runtime.cost.collectives import KINDS
from runtime.cost.program import Instruction, Program


def unordered(text: str) -> list[tuple[str, str]]:
    """Pairs of a loop (or call) with collectives in it and a collective beside it, of the program `text`."""
    return list(_Order(Program.read(text)).unordered())


class _Order:
    def __init__(self, program: Program) -> None:
        self._program, self._computations = program, program.computations

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
        """Return the instructions that each one depends on, over any number of steps."""
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

    def _made_by(self, instructions: dict[str, Instruction], name: str) -> list[str]:
        """Its operands; of what a loop hands through unchanged, what the loop was given."""
        instruction = instructions[name]
        if instruction.index is None:
            return instruction.operands
        loop = instructions[instruction.operands[0]]
        given = instructions[loop.operands[0]] if loop.operation == "while" else None
        if given is None or given.operation != "tuple" or not self._hands_through(loop, instruction.index):
            return instruction.operands
        return [given.operands[instruction.index]]

    def _hands_through(self, loop: Instruction, index: int) -> bool:
        """Whether element `index` of the loop's state is, at the end of its body, what it was at the beginning."""
        body = self._computations[loop.computation("body")]
        name = self._program.root(loop.computation("body")).operands[index]
        while (origin := self._made_by(body, name)) != body[name].operands:  # through a loop inside
            (name,) = origin
        item = body[name]
        return item.index == index and body[item.operands[0]].operation == "parameter"
