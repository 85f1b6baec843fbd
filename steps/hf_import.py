"""HF import: weights in Hugging Face's format, as a checkpoint that a phase starts from."""

from pathlib import Path

from pydantic import BaseModel, Field

from marin_dag.graph.cost import Cost
from marin_dag.graph.resources import Resources
from marin_dag.graph.step import Input, StepContext, step
from runtime.model.architectures import AnyModelConfig
from runtime.model.config import Rope
from steps.download import DownloadResult
from steps.fetch import Files
from steps.machine_checks import check_one_host
from steps.phase_result import TrainPhaseResult
from steps.tokenizer import TokenizerResult

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"


class HfImportConfig(BaseModel, frozen=True, extra="forbid"):
    """The folder, and the recipe's model: a plan knows it before anything is downloaded."""

    download: Input[DownloadResult]
    """config.json, tokenizer.json and safetensors: `model_in(folder)`, or `HuggingFaceModel`."""
    tokenizer: Input[TokenizerResult]
    """Tokenizer of the folder, with which the sources are tokenized: an `input_tokenizer`."""
    model: AnyModelConfig
    """The model of config.json, field by field."""
    rope: Rope
    sequence_length: int = Field(ge=2)
    """Length of the windows in an evaluation of these weights; a phase has its own."""


def check_import(config: HfImportConfig) -> None:
    """Raise ValueError where the recipe's model contradicts itself, or a local folder's config.json."""
    if config.sequence_length > config.model.max_position_embeddings:
        raise ValueError(
            f"sequence_length is {config.sequence_length:,}, above model.max_position_embeddings "
            f"({config.model.max_position_embeddings:,}); use shorter windows."
        )
    fetch = getattr(config.download.config_of(BaseModel), "fetch", None)
    if not isinstance(fetch, Files) or "://" in fetch.folder:  # a remote folder is read after its download
        return
    from runtime.interop.huggingface_config import check_same_model, read_json

    for file in fetch.files:
        path = Path(fetch.folder, file.path or file.name)
        if file.name == "config.json" and path.is_file():
            check_same_model(read_json(str(path)), str(path), config.model, config.rope)


def _cost(config: HfImportConfig, _: Resources) -> Cost:
    return Cost(bytes_written=4 * config.model.num_parameters)


# Versioned, without `packages`: phases that start from these weights may have trained for months, and an upgrade would
# change their digests.
@step(policy="versioned", version="1", check=check_import, check_on=check_one_host, cost=_cost)
def hf_import(config: HfImportConfig, context: StepContext) -> TrainPhaseResult:
    """Write the weights, as float32, to a checkpoint before the first update, one tensor in memory at a time."""
    from runtime.interop.huggingface_config import check_same_model, read_json
    from runtime.interop.huggingface_weights import CONFIG, stored_leaves
    from runtime.model.huggingface import InteropError
    from runtime.training.run_state import CHECKPOINT, METRICS, SOURCE_LOSSES, save_weights

    files = {file.name: config.download.join(file.path) for file in config.download.result.files}
    if missing := [name for name in (CONFIG, TOKENIZER) if name not in files]:
        raise InteropError(
            f"{config.download.name}: has no {' and no '.join(missing)}, only {', '.join(sorted(files))}; fetch the "
            "whole folder with model_in(folder) or HuggingFaceModel(repo=..., revision=...)."
        )
    check_same_model(read_json(files[CONFIG]), files[CONFIG], config.model, config.rope)
    _check_same_tokenizer(config, files[TOKENIZER], files.get(TOKENIZER_CONFIG))
    leaves = stored_leaves(files, config.model.build())
    facts = config.model_dump(mode="json", include={"model", "rope", "sequence_length"})
    save_weights(
        context.output_path, leaves, facts=facts, on_leaf=lambda done, total: context.progress(done, total, "arrays")
    )
    context.log.info("imported %s parameters from %s", f"{config.model.num_parameters:,}", config.download.name)
    return TrainPhaseResult(
        step=0, consumed_tokens=0, checkpoint=CHECKPOINT, metrics=METRICS, source_losses=SOURCE_LOSSES, final_loss=None
    )


def _check_same_tokenizer(config: HfImportConfig, file: str, described: str | None) -> None:
    """Raise InteropError where the sources' tokenizer has other ids than the folder's; its template may differ."""
    from runtime.model.huggingface import InteropError

    own = config.tokenizer.join(config.tokenizer.result.tokenizer)
    theirs, ours = _vocabulary(file, described), _vocabulary(own, None)
    if max(ours, default=0) >= config.model.vocab_size:
        raise InteropError(
            f"{config.tokenizer.name}: has {max(ours) + 1:,} ids, and model.vocab_size is "
            f"{config.model.vocab_size:,}; the embeddings have no rows for the others. Use the folder's tokenizer."
        )
    others = [number for number in sorted(theirs | ours) if theirs.get(number) != ours.get(number)]
    if others:
        first = others[0]
        raise InteropError(
            f"{config.tokenizer.name}: {len(others):,} ids mean other text than in {file}, first {first}: "
            f"{ours.get(first)!r}, and there {theirs.get(first)!r}. Make the tokenizer from that folder: "
            "input_tokenizer with local_tokenizer(folder) or HubTokenizer."
        )


def _vocabulary(path: str, described: str | None) -> dict[int, str]:
    """Return the tokens of a tokenizer.json and those of a tokenizer_config.json, if any, by their ids."""
    from tokenizers import Tokenizer

    from runtime.data.added_tokens import missing_tokens, with_tokens
    from runtime.text.extraction.limits import read_bounded

    content = read_bounded(path).decode()
    if described is not None:
        content = with_tokens(content, missing_tokens(content, read_bounded(described).decode()))
    return {number: token for token, number in Tokenizer.from_str(content).get_vocab().items()}
