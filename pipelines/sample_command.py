"""sample: text that a phase, a milestone, an export, or imported or merged weights write after prompts."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marin_dag.cli.parser import number
from marin_dag.cli.session import NOTHING_WOULD_RUN, Session, command
from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.graph.output_ref import OutputRef
from marin_dag.graph.step import Step
from marin_dag.store.store import Store
from marin_dag.values.changes import nearest
from pipelines.chat_templates import required_template
from pipelines.finished import PhaseTokenizer, finished, read_tokenizer, tokenizer_of
from pipelines.output import flag, positive, repeated, value
from pipelines.saved_curves import SavedState, saved_states
from runtime.optim.ema import HOT
from runtime.report.markup import printable
from steps.hf_export import HfExportConfig
from steps.hf_import import HfImportConfig
from steps.merge_config import MergeCheckpointsConfig
from steps.phase_checks import tokenizers_of_phase
from steps.phase_config import TrainPhaseConfig

if TYPE_CHECKING:
    from runtime.evaluation.writing import Writer
    from runtime.interop.chat_template import ChatTemplate

MAX_NEW_TOKENS = 128
TEMPERATURE = number("a temperature; use 0 for the likeliest tokens, or a number above it", least=0.0)
KINDS = (TrainPhaseConfig, HfExportConfig, HfImportConfig, MergeCheckpointsConfig)


@command(
    "sample STEP|PHASE@STEP --prompt TEXT",
    "text that a phase, a milestone, an export, or imported or merged weights write after prompts",
    "--set --json",
    own={
        "--prompt": repeated("TEXT", "a prompt; repeatable"),
        "--prompts": value("FILE", "a file with one prompt a line"),
        "--max-new-tokens": value(
            "N", f"longest text in tokens (default {MAX_NEW_TOKENS})", type=positive, default=MAX_NEW_TOKENS
        ),
        "--temperature": value("T", "0: the likeliest tokens", type=TEMPERATURE, default=0.0),
        "--top-p": value("P", "draw from the likeliest tokens that reach P", type=float),
        "--seed": value("N", "seed of the draws (default 0)", type=int),
        "--chat": flag("answer by the tokenizer's chat template"),
        "--chat-template": value("FILE", "answer by this chat_template.jinja or tokenizer_config.json"),
        "--weights": value("NAME", "name of EMA weights, or hot: the trained weights"),
    },
)
def write_texts(session: Session) -> int:
    from runtime.training.checkpoint_reader import CheckpointError

    graph = session.graph()  # outside the block: the errors of a recipe are its own
    try:
        return _write_texts(session, graph)
    except (ValueError, CheckpointError) as error:
        raise UserError(f"sample: {error}") from error


def _write_texts(session: Session, graph: Graph) -> int:
    parsed = session.parsed
    prompts = _prompts(parsed)
    sampling = _sampling(parsed)
    template = _template(session, graph) if parsed.chat or parsed.chat_template else None
    name, writer = _writer(session, graph)
    writer = dataclasses.replace(writer, template=template)
    shown = -1

    def show(number: int, text: str) -> None:
        nonlocal shown
        while shown < number:  # the model may have ended the texts between at once
            shown += 1
            end = "" if template is None else "\n"
            print(f"{chr(10) * 2 if shown else ''}{printable(prompts[shown])}", end=end)
        print(printable(text), end="", flush=True)

    if not parsed.json:
        print(f"{name}:", file=sys.stderr)
    on_text = (lambda number, text: None) if parsed.json else show
    texts = writer.write(prompts, max_new_tokens=parsed.max_new_tokens, sampling=sampling, on_text=on_text)
    if parsed.json:
        found = [each._asdict() for each in texts]
        print(json.dumps({"model": name, "texts": found}, ensure_ascii=False, indent=1))
    else:
        show(len(prompts) - 1, "\n")
    return NOTHING_WOULD_RUN


def _prompts(parsed: argparse.Namespace) -> list[str]:
    prompts = list(parsed.prompt)
    if parsed.prompts is not None:
        prompts += [line for line in _read("--prompts", parsed.prompts).splitlines() if line.strip()]
    if not prompts:
        raise UserError('sample: there is no prompt. Add --prompt "TEXT", or --prompts FILE with a prompt a line.')
    return prompts


def _read(option: str, file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{option} {file}: cannot be read ({error}); name a UTF-8 text file.") from error


def _template(session: Session, graph: Graph) -> "ChatTemplate":
    """Return the chat template of the file that the user named, or of the imported weights that training began with."""
    from runtime.interop.chat_template import CONFIG, FILE

    file = session.parsed.chat_template
    step = graph.step(session.step.partition("@")[0])
    files = {}
    if file:
        files = {CONFIG if file.endswith(".json") else FILE: _read("--chat-template", file)}
    elif (imported := _import_of(step)) is not None:
        record = finished(session.store, imported.config.download.step, "sample")
        paths = {each["name"]: each["path"] for each in record.result["files"]}
        files = {
            name: _stored_text(session, f"{record.output_path}/{paths[name]}")
            for name in (FILE, CONFIG)
            if name in paths
        }
    cure = f"name a template: --chat-template {FILE}, or {CONFIG}"
    return required_template("--chat", file or step.name, files, cure=cure)


def _stored_text(session: Session, path: str) -> str:
    try:
        return session.store.read(path).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"--chat: {path}: not in UTF-8 ({error}). Name a template: --chat-template FILE.") from error


def _import_of(step: Step[Any]) -> Step[HfImportConfig] | None:
    """Return the import that the weights of a phase, an export or an import began with."""
    while not isinstance(step.config, HfImportConfig):
        start = step.config.phase if isinstance(step.config, HfExportConfig) else step.predecessor
        if not isinstance(start, OutputRef):
            return None
        step = start.step
    return step


def _sampling(parsed: argparse.Namespace) -> Any:
    from runtime.evaluation.sampling import Sampling

    if not parsed.temperature:
        if given := [option for option in ("top_p", "seed") if getattr(parsed, option) is not None]:
            option = given[0].replace("_", "-")
            raise UserError(f"--{option}: has no effect without a temperature; add --temperature 0.8.")
        return None
    return Sampling(parsed.temperature, top_p=1.0 if parsed.top_p is None else parsed.top_p, seed=parsed.seed or 0)


def _writer(session: Session, graph: Graph) -> "tuple[str, Writer]":
    """Return a description of the model that the user named, and its writer."""
    from runtime.parallel.jax_settings import settle_jax
    from runtime.training.run_state import CHECKPOINT

    name, at, number = session.step.partition("@")
    step = graph.step(name)
    is_phase = isinstance(step.config, TrainPhaseConfig)
    if not isinstance(step.config, KINDS) or (at and not (is_phase and number.isdecimal())):
        raise UserError(
            f"sample: {session.step} is no phase, PHASE@STEP, export, import or merge of weights. `timeline` lists the "
            "phases, `ls` all outputs."
        )
    settle_jax()
    weights = session.parsed.weights
    if isinstance(step.config, HfExportConfig):
        return name, _exported(session.store, step, weights)
    if not is_phase:
        record = finished(session.store, step, "sample")
        checkpoint = session.store.url(f"{record.output_path}/{record.result['checkpoint']}")
        tokenizers = tokenizers_of_phase("weights", step.as_input()).values()
        return name, _trained(checkpoint, read_tokenizer(session.store, tokenizers), weights or HOT)
    state = _state(session, step, int(number) if at else None)
    writer = _trained(f"{state.folder}/{CHECKPOINT}", tokenizer_of(session.store, [step]), weights or HOT)
    return f"{name} at step {state.step:,}, {weights or HOT} weights", writer


def _state(session: Session, phase: Step[TrainPhaseConfig], at: int | None) -> SavedState:
    """Return the saved state that the user named, or the newest one of the phase."""
    states = [each for each in saved_states(session.store, phase.digest) if each.step <= phase.config.until_step]
    found = [each for each in states if at in (None, each.step)]
    if not found:
        steps = ", ".join(f"{each.step:,}" for each in states) or "none"
        raise UserError(
            f"sample: {session.step} is not saved under {session.store.prefix} as the recipe is now; saved training "
            f"steps: {steps}."
        )
    return found[-1]


def _trained(checkpoint: str, tokenizer: PhaseTokenizer, weights: str) -> "Writer":
    from runtime.evaluation.writing import writer_of_checkpoint
    from runtime.interop.huggingface import SpecialTokens
    from runtime.training.checkpoint import read_metadata

    result = tokenizer.result
    special_tokens = SpecialTokens(result.eos_token_id, result.bos_token_id)
    known = [HOT, *read_metadata(checkpoint).get("averages", ())]
    if weights not in known:
        raise UserError(f"--weights {weights}: the checkpoint has {', '.join(known)}.{nearest(weights, known)}")
    return writer_of_checkpoint(checkpoint, weights, tokenizer.tokenizer, special_tokens)


def _exported(store: Store, export: Step[HfExportConfig], weights: str | None) -> "Writer":
    import jax

    from runtime.evaluation.placed_model import PlacedModel
    from runtime.evaluation.writing import Writer
    from runtime.interop.huggingface import read_model

    record = finished(store, export, "sample")
    if weights not in (None, record.result["weights"]):
        raise UserError(
            f"--weights {weights}: the export has the {record.result['weights']} weights; for others, name the phase."
        )
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        model = read_model(store.url(f"{record.output_path}/{record.result['folder']}"), as_stored=True)
    placed = PlacedModel(model.params, model.config, model.rope, compute_dtype="float32")
    return Writer(placed, model.tokenizer, model.special_tokens)
