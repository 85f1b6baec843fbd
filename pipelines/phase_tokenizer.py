"""Phase tokenizer: the tokenizer of the tokens that phases read."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from marin_dag.errors import UserError
from marin_dag.graph.output_ref import OutputRef
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Records
from marin_dag.store.store import Store
from steps.phase_config import TrainPhaseConfig
from steps.tokenize import TokenizeConfig
from steps.tokenizer import TokenizerResult

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class PhaseTokenizer(NamedTuple):
    """A tokenizer, and the ids of its special tokens."""

    tokenizer: "Tokenizer"
    result: TokenizerResult


def tokenizer_of(store: Store, phases: Iterable[Step]) -> PhaseTokenizer:
    """Return the tokenizer of the phases' sources.

    Raises:
        UserError: the tokenizer's output is gone.
    """
    from tokenizers import Tokenizer

    for phase in phases:
        config = phase.config
        assert isinstance(config, TrainPhaseConfig)
        for cache in config.caches.values():
            tokenized = cache.config_of(TokenizeConfig)
            if tokenized is None or not isinstance(tokenized.tokenizer, OutputRef):
                continue
            record = Records(store).find(tokenized.tokenizer.key)
            if record is not None:
                result = TokenizerResult.model_validate(record.result)
                data = store.read(f"{record.output_path}/{result.tokenizer}")
                return PhaseTokenizer(Tokenizer.from_str(data.decode()), result)
    raise UserError("the tokenizer's output is gone from this prefix; run the recipe to make it again.")
