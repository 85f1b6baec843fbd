"""A graph for measuring the engine: layers of trivial steps, each with two parents in the layer below."""

from typing import Any

from pydantic import BaseModel

from marin_dag.graph.step import Input, Step, StepContext, step
from marin_dag.ledger.checked_json import checked_json
from marin_dag.ledger.provenance import Provenance
from marin_dag.ledger.records import Record


class Number(BaseModel, frozen=True, extra="forbid"):
    number: int


class TrivialConfig(BaseModel, frozen=True, extra="forbid"):
    number: int
    parents: tuple[Input[Number], ...] = ()


@step()
def trivial(config: TrivialConfig, context: StepContext) -> Number:
    """Write nothing, so that the whole cost is the engine's."""
    return Number(number=config.number)


def layered_graph(num_layers: int, width: int, *, first: int = 0) -> list[Step[Any]]:
    """Return the steps of the last layer.

    Step `i` of a layer has steps `i` and `7 i + layer` of the layer below as parents.

    Args:
        first: the number of the very first step, for a change at the root.
    """
    below = [trivial(f"layer0/{i}", TrivialConfig(number=i or first)) for i in range(width)]
    for layer in range(1, num_layers):
        below = [
            trivial(f"layer{layer}/{i}", TrivialConfig(number=i, parents=(below[i], below[(7 * i + layer) % width])))
            for i in range(width)
        ]
    return list(below)


def chain(length: int) -> list[Step[Any]]:
    """Return the last of `length` steps, each the parent of the next."""
    last = trivial("chain/0", TrivialConfig(number=0))
    for number in range(1, length):
        last = trivial(f"chain/{number}", TrivialConfig(number=number, parents=(last,)))
    return [last]


def record_of(step: Step[Any]) -> str:
    """Return the record that a run of a trivial step would leave."""
    record = Record(
        key=step.key,
        digest=step.digest,
        name=step.name,
        kind=step.kind.name,
        identity=step.identity,
        result={"number": step.config.number},
        output_path=f"outputs/{step.name}-{step.digest[:8]}/attempt",
        attempt="attempt",
        manifest=(),
        provenance=Provenance(git_commit=None, is_dirty=None, argv=(), host="host", environment=""),
    )
    return checked_json(record).decode()
