"""A step that publishes parts and a step that reads them as they come, importable by workers."""

import time
from pathlib import Path

from pydantic import BaseModel

from marin_dag.graph.step import Input, Runtime, StepContext, step
from tests.marin_dag.toy_steps import mark, read_file, write_file


class Pieces(BaseModel, frozen=True, extra="forbid"):
    num_pieces: int


class GrowConfig(BaseModel, frozen=True, extra="forbid"):
    num_pieces: int
    wait_for: Runtime[str] = ""
    """A file without which only the first part is published."""
    dies_at: Runtime[int] = 0
    marks: Runtime[str] = ""


def piece(number: int, path: str) -> int:
    write_file(f"{path}/text.txt", f"piece {number}\n")
    return number


@step(parts=True)
def grow(config: GrowConfig, context: StepContext) -> Pieces:
    mark(config.marks, context.name)

    def finished(index: int, number: int) -> None:
        part = number + 1
        if number and config.wait_for:
            wait_for(config.wait_for)
        if part not in context.milestones():
            mark(config.marks, f"part{part}")
            write_file(f"{context.output_path}/parts/{part}/part.txt", f"piece {number}\n")
            context.publish(part, f"parts/{part}", Pieces(num_pieces=1))
        if part == config.dies_at:
            raise ConnectionResetError("the machine is gone")

    numbers = context.map(piece, list(range(config.num_pieces)), in_flight=1, on_finished=finished)
    return Pieces(num_pieces=len(numbers))


class FollowConfig(BaseModel, frozen=True, extra="forbid"):
    pieces: Input[Pieces]
    tell: Runtime[str] = ""
    marks: Runtime[str] = ""


class Followed(BaseModel, frozen=True, extra="forbid"):
    text: str


@step()
def follow(config: FollowConfig, context: StepContext) -> Followed:
    mark(config.marks, "growing" if config.pieces.is_growing else "whole")
    if not config.pieces.is_growing:
        return Followed(text="".join(f"piece {number}\n" for number in range(config.pieces.result.num_pieces)))
    text, seen = "", 0
    while True:
        found = context.parts(config.pieces, after=seen)
        for number, part in found.parts.items():
            text, seen = text + read_file(part.join("part.txt")), number
        if config.tell:
            write_file(config.tell, "the first part is read")
        if found.whole is not None:
            assert seen == found.whole.result.num_pieces
            return Followed(text=text)
        time.sleep(0.02)


def wait_for(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.02)
