"""Finished steps: the records of outputs that commands read, and the tokenizer of a phase from its output."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from marin_dag.errors import UserError
from marin_dag.graph.inputs import Input
from marin_dag.graph.output_ref import OutputRef
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Record, Records
from marin_dag.store.store import Store
from steps.tokenize import TokenizeConfig
from steps.tokenizer import TokenizerResult

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def finished(store: Store, wanted: Step | Input[Any], command: str, *, line: str = "") -> Record:
    """Return the record of an output that `command` reads; `line` makes it.

    Raises:
        UserError: the output is not there; names the command that makes it.
    """
    record = Records(store).find(wanted.key)
    if record is None:
        cure = f"To make it:\n  {line}" if line else f"Run --until {wanted.name}, or see `why {wanted.name}`."
        raise UserError(f"{command}: {wanted.name} is not done as the recipe is now. {cure}")
    return record


class PhaseTokenizer(NamedTuple):
    """A tokenizer, and the ids of its special tokens."""

    tokenizer: "Tokenizer"
    result: TokenizerResult


def tokenizer_of(store: Store, phases: Iterable[Step]) -> PhaseTokenizer:
    """Return the tokenizer of the phases' sources.

    Raises:
        UserError: the tokenizer's output is gone.
    """
    caches = (cache for phase in phases for cache in phase.config.caches.values())
    tokenized = (cache.config_of(TokenizeConfig) for cache in caches)
    return read_tokenizer(store, (config.tokenizer for config in tokenized if config is not None))


def read_tokenizer(store: Store, outputs: Iterable[object]) -> PhaseTokenizer:
    """Return the tokenizer of the first of these outputs that is there.

    Raises:
        UserError: none is.
    """
    from tokenizers import Tokenizer

    for output in outputs:
        record = Records(store).find(output.key) if isinstance(output, OutputRef) else None
        if record is not None:
            result = TokenizerResult.model_validate(record.result)
            data = store.read(f"{record.output_path}/{result.tokenizer}")
            return PhaseTokenizer(Tokenizer.from_str(data.decode()), result)
    raise UserError("the tokenizer's output is gone from this prefix; run the recipe to make it again.")
