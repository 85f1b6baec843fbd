"""sample: write text after prompts with a phase, a milestone or an export."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marin_dag.cli.session import NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Records
from marin_dag.store.store import Store
from marin_dag.values.changes import nearest
from pipelines.output import positive
from pipelines.phase_tokenizer import tokenizer_of
from pipelines.saved_curves import SavedState, saved_states
from runtime.optim.ema import HOT
from runtime.report.markup import printable
from steps.hf_export import HfExportConfig
from steps.phase_config import TrainPhaseConfig

if TYPE_CHECKING:
    from runtime.evaluation.writing import Writer

MAX_NEW_TOKENS = 128


def _sample(session: Session) -> int:
    parsed = session.parsed
    prompts = _prompts(parsed)
    sampling = _sampling(parsed)
    name, writer = _writer(session)
    shown = -1

    def show(number: int, text: str) -> None:
        nonlocal shown
        if number > shown:
            print(f"{'' if shown < 0 else chr(10) * 2}{printable(prompts[number])}", end="")
            shown = number
        print(printable(text), end="", flush=True)

    if not parsed.json:
        print(f"{name}:", file=sys.stderr)
    try:
        texts = writer.write(
            prompts,
            max_new_tokens=parsed.tokens,
            sampling=sampling,
            on_text=show if not parsed.json else lambda number, text: None,
        )
    except ValueError as error:
        raise UserError(f"sample: {error}") from error
    found = [each._asdict() for each in texts]
    print(json.dumps({"model": name, "texts": found}, ensure_ascii=False, indent=1) if parsed.json else "")
    return NOTHING_WOULD_RUN


def _prompts(parsed: argparse.Namespace) -> list[str]:
    prompts = list(parsed.prompt)
    if parsed.prompts is not None:
        try:
            lines = Path(parsed.prompts).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--prompts {parsed.prompts}: cannot be read ({error}); name a UTF-8 text file.") from error
        prompts += [line for line in lines if line.strip()]
    if not prompts:
        raise UserError('sample: there is no prompt. Add --prompt "TEXT", or --prompts FILE with a prompt a line.')
    return prompts


def _sampling(parsed: argparse.Namespace) -> Any:
    from runtime.evaluation.sampling import Sampling

    if not parsed.temperature:
        if given := [option for option in ("top_p", "seed") if getattr(parsed, option) is not None]:
            option = given[0].replace("_", "-")
            raise UserError(f"--{option}: has no effect without a temperature; add --temperature 0.8.")
        return None
    try:
        top_p = 1.0 if parsed.top_p is None else parsed.top_p
        return Sampling(parsed.temperature, top_p=top_p, seed=parsed.seed or 0)
    except ValueError as error:
        raise UserError(f"sample: {error}") from error


def _writer(session: Session) -> "tuple[str, Writer]":
    """Return a description of the model that the user named, and its writer."""
    from runtime.parallel.jax_settings import settle_jax

    graph, (name, at, number) = session.graph(), session.step.partition("@")
    step = graph.step(name)
    if not isinstance(step.config, TrainPhaseConfig | HfExportConfig) or (at and not number.isdecimal()):
        raise UserError(
            f"sample: {session.step} is no phase, PHASE@STEP or export. `timeline` lists the phases, `ls` all outputs."
        )
    settle_jax()
    if isinstance(step.config, HfExportConfig):
        return name, _exported(session.store, step, session.parsed.weights)
    state = _state(session, step, int(number) if at else None)
    weights = session.parsed.weights or HOT
    return f"{name} at step {state.step:,}, {weights} weights", _trained(session.store, step, state, weights)


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


def _trained(store: Store, phase: Step[TrainPhaseConfig], state: SavedState, weights: str) -> "Writer":
    from runtime.evaluation.placed_model import PlacedModel
    from runtime.evaluation.trained_model import TrainedModel
    from runtime.evaluation.writing import Writer
    from runtime.interop.huggingface import SpecialTokens
    from runtime.training.checkpoint import read_metadata
    from runtime.training.checkpoint_reader import CheckpointError
    from runtime.training.run_state import CHECKPOINT

    folder = f"{state.folder}/{CHECKPOINT}"
    tokenizer, result = tokenizer_of(store, [phase])
    try:
        known = [HOT, *read_metadata(folder)["averages"]]
        if weights not in known:
            raise UserError(f"--weights {weights}: the phase keeps {', '.join(known)}.{nearest(weights, known)}")
        model = TrainedModel.open(folder)
        params = model.params(weights, None)
    except CheckpointError as error:
        raise UserError(f"sample: {error}") from error
    placed = PlacedModel(params, model.description.config, model.description.rope, compute_dtype="float32")
    return Writer(placed, tokenizer, SpecialTokens(result.eos_token_id, result.bos_token_id))


def _exported(store: Store, export: Step[HfExportConfig], weights: str | None) -> "Writer":
    import jax

    from runtime.evaluation.placed_model import PlacedModel
    from runtime.evaluation.writing import Writer
    from runtime.interop.huggingface import read_model

    record = Records(store).find(export.key)
    if record is None:
        raise UserError(f"sample: {export.name} is not done. `why {export.name}` says why.")
    if weights not in (None, record.result["weights"]):
        raise UserError(
            f"--weights {weights}: the export has the {record.result['weights']} weights; for others, name the phase."
        )
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        model = read_model(store.url(f"{record.output_path}/{record.result['folder']}"), as_stored=True)
    placed = PlacedModel(model.params, model.config, model.rope, compute_dtype="float32")
    return Writer(placed, model.tokenizer, model.special_tokens)


def _add_arguments(parser: Any) -> None:
    parser.add_argument("--prompt", metavar="TEXT", action="append", default=[], help="(sample) a prompt; repeatable")
    longest = f"(sample) longest text in tokens (default {MAX_NEW_TOKENS})"
    parser.add_argument("--prompts", metavar="FILE", help="(sample) a file with one prompt a line")
    parser.add_argument("--tokens", metavar="N", type=positive, default=MAX_NEW_TOKENS, help=longest)
    parser.add_argument("--temperature", metavar="T", type=float, default=0.0, help="(sample) 0: the likeliest tokens")
    parser.add_argument("--top-p", metavar="P", type=float, help="(sample) draw from the likeliest tokens that reach P")
    parser.add_argument("--seed", metavar="N", type=int, help="(sample) seed of the draws (default 0)")
    parser.add_argument("--weights", metavar="NAME", help="(sample) name of EMA weights, or hot: the trained weights")


COMMAND = Command(
    "sample", "STEP|PHASE@STEP --prompt TEXT",
    "write text after prompts with a phase, a milestone or an export",
    _sample, 1, 1, _add_arguments, ("--set", "--json"),
)  # fmt: skip
