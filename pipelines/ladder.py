"""Ladder: small runs of several sizes and lengths on one corpus, and the scaling law that predicts larger ones.

    python pipelines/ladder.py --dry-run                    what would run, and what shared training saves
    python pipelines/ladder.py                              train, evaluate and fit
    python pipelines/ladder.py predict 1M:20M               the loss of a larger run, with its interval

Each size is trained once, at a constant rate after its warm-up, until the longest length's cooldown. A cooldown branch
from an earlier milestone gives each shorter length (WSD, arXiv:2404.06395), so that a size costs its longest run and
the cooldowns. The largest size is held out of a first fit, which has to predict it.
"""

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from marin_dag.cli.session import Finished, Session
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Records
from marin_dag.plan.plan import Plan
from marin_dag.quantities import in_short, typed_count
from pipelines import mix_command, predict_command, recipe
from pipelines.headline import headline
from pipelines.phases import phases_in, run_phases_in, trained_tokens
from pipelines.predict_command import describe, law_step, optimum, predictions, read_law, target
from pipelines.source import clean_documents
from pipelines.sources import evaluation_items_step, laptop_sources
from runtime.data.mixture import MixtureSchedule
from runtime.model.initialization import LEVANTER
from runtime.model.llama.config import LlamaConfig
from runtime.optim.optimizer import ChosenOptimizer
from runtime.optim.schedule import Linear, Rewarm
from runtime.scaling.law import FLOPS_PER_PARAMETER_AND_TOKEN
from steps.fit_scaling_law import FitScalingLawConfig, fit_scaling_law

VALIDATION_SHARE = 0.02
"""Share of each source's documents that evaluations read."""


@dataclasses.dataclass(frozen=True)
class Ladder:
    """Sizes and lengths, and the settings that all rungs share."""

    widths: tuple[int, ...]
    """Hidden sizes, ascending; everything else of a model follows from its width."""
    tokens_per_parameter: tuple[float, ...]
    """Lengths of each size's runs, ascending."""
    vocab_size: int
    sequence_length: int
    global_batch_size: int
    warmup_steps: int
    cooldown_share: float
    """Share of a length that its cooldown to 0 takes."""
    rate: float
    """Learning rate at width 64. Others fall as 1 / width: muP's rule for matrices under Adam (arXiv:2203.03466)."""
    evaluation_tokens: int
    """Held-out tokens of each source."""
    width_per_layer: int = 32
    head_dim: int = 8
    intermediate_per_width: int = 3
    optimizer: ChosenOptimizer = None
    """None is AdamW."""
    seed: int = 0

    def model(self, width: int) -> LlamaConfig:
        """Return the model of a width."""
        return LlamaConfig(
            vocab_size=self.vocab_size,
            hidden_size=width,
            intermediate_size=self.intermediate_per_width * width,
            # One layer forms no induction heads (arXiv:2209.11895), and its loss follows another law.
            num_hidden_layers=max(2, round(width / self.width_per_layer)),
            num_attention_heads=width // self.head_dim,
            num_key_value_heads=width // self.head_dim,
            head_dim=self.head_dim,
            max_position_embeddings=self.sequence_length,
            initialization=LEVANTER,
        )

    def learning_rate(self, width: int) -> float:
        """Return the constant rate of a width."""
        return self.rate * 64 / width

    def num_steps(self, width: int, tokens_per_parameter: float) -> int:
        """Return the training steps of a length."""
        tokens = tokens_per_parameter * num_parameters(self.model(width))
        return round(tokens / self.global_batch_size / self.sequence_length)

    def cooldown_start(self, num_steps: int) -> int:
        """Return the step at which the cooldown of a run of `num_steps` begins."""
        return num_steps - round(self.cooldown_share * num_steps)


LAPTOP = Ladder(
    # At few tokens a parameter all sizes have nearly equal losses, which no sum of two power laws fits.
    # After 3,000 steps losses on all sources drop faster: a law of shorter runs missed width 64 at 20 tokens a
    # parameter by 9 %.
    widths=(16, 24, 32, 40, 48),
    tokens_per_parameter=(2.5, 4, 6, 10),
    # A small vocabulary leaves most parameters to the layers.
    vocab_size=1024,
    sequence_length=128,
    global_batch_size=4,
    warmup_steps=20,
    cooldown_share=0.2,
    rate=0.006,
    evaluation_tokens=16_384,
)


class Rung(NamedTuple):
    """A finished length of one size."""

    width: int
    phase: Step
    """The cooldown, at the end of the length."""


def rungs(
    ladder: Ladder, caches: Mapping[str, Step], mixture: Mapping[str, float], *, prefix: str = ""
) -> dict[str, Rung]:
    """Return the rungs by name, each size from its smallest length up; `prefix` begins every name."""
    found = {}
    for width in ladder.widths:
        rate = ladder.learning_rate(width)
        lengths = [ladder.num_steps(width, each) for each in ladder.tokens_per_parameter]
        stable = recipe.phase(
            f"{prefix}w{width}",
            mixture=MixtureSchedule.constant(dict(mixture)),
            caches=dict(caches),
            until_step=ladder.cooldown_start(lengths[-1]),
            model=ladder.model(width),
            sequence_length=ladder.sequence_length,
            global_batch_size=ladder.global_batch_size,
            learning_rate=Rewarm(0.0, rate, warmup_steps=ladder.warmup_steps),
            compute_dtype="float32",
            remat="none",
            optimizer=ladder.optimizer,
            seed=ladder.seed,
            digest_every_steps=0,
            norms_every_steps=0,
            resources=recipe.Cpu(1),
        )
        for multiple, length in zip(ladder.tokens_per_parameter, lengths, strict=True):
            begin = ladder.cooldown_start(length)
            decay = Linear(rate, 0.0, decay_steps=length - begin)
            cooldown = stable.at(step=begin).then(
                f"{prefix}w{width}/{multiple:g}x", until_step=length, learning_rate=decay
            )
            found[cooldown.name] = Rung(width, cooldown)
    return found


def build(arguments: argparse.Namespace) -> Sequence[Step]:
    """Return the report on the laptop's ladder and its law."""
    found = rungs(LAPTOP, *laptop_data())
    held_out = [name for name, rung in found.items() if rung.width == LAPTOP.widths[-1]]
    return [report(law(LAPTOP, found, held_out=held_out))]


def report(fitted: Step) -> Step:
    """Return the report of a ladder."""
    return recipe.report("Ladder (laptop)", [fitted], command="python pipelines/ladder.py")


def laptop_data() -> tuple[dict[str, Step], dict[str, float]]:
    """Return the token cache of each of the laptop's sources, and the natural mixture."""
    sources = laptop_sources()
    documents = clean_documents(sources.values(), evaluation_items_step())
    tokenizer = recipe.tokenizer(documents, vocab_size=LAPTOP.vocab_size)
    caches = recipe.token_caches(documents, tokenizer, validation_share=VALIDATION_SHARE)
    return caches, {source.name: source.size_in_bytes for source in sources.values()}


def law(ladder: Ladder, found: Mapping[str, Rung], *, held_out: Sequence[str]) -> Step:
    """Return the step that fits all rungs, and predicts those of `held_out` by a fit of the others."""
    evaluations = recipe.evaluate(
        [rung.phase for rung in found.values()],
        max_tokens_per_domain=ladder.evaluation_tokens,
        sampled_windows_per_domain=0,
    )
    config = FitScalingLawConfig(
        evaluations=dict(zip(found, evaluations, strict=True)),
        num_parameters={name: num_parameters(rung.phase.config.model) for name, rung in found.items()},
        held_out=tuple(held_out),
    )
    return fit_scaling_law("law", config)


def num_parameters(model: LlamaConfig) -> int:
    """Return the parameters that multiply every token: all but an embedding that is looked up and is not the head."""
    looked_up = 0 if model.tie_word_embeddings else model.vocab_size * model.hidden_size
    return model.num_parameters - looked_up


def savings(graph: Graph) -> str:
    """Return the line of a plan that says how much training the rungs share."""
    phases = phases_in(graph.steps)
    ends = [place for place in run_phases_in(phases).values() if place.parent is not None]
    trained, separate = trained_tokens(phases, phases), sum(place.end_tokens for place in ends)
    return (
        f"{len(ends)} rungs train on {in_short(trained)} tokens; as separate runs they would train on "
        f"{in_short(separate)}: {1 - trained / separate:.0%} saved by cooldowns that share a run"
    )


def _plan_notes(session: Session, plan: Plan) -> None:
    print("\n".join(["", savings(plan.graph), *_target_lines(session, plan.graph)]))


def _target_lines(session: Session, graph: Graph) -> Iterator[str]:
    wanted = session.parsed.target
    if wanted is None:
        return
    record = Records(session.store).find(law_step(graph).key)
    if record is None:
        typed = ":".join(typed_count(round(each)) for each in wanted)
        yield f"the target can be predicted once the ladder has run: {session.line('predict', typed)}"
        return
    fitted = read_law(session.store, record)
    yield from predictions(fitted, wanted)
    yield from optimum(fitted, FLOPS_PER_PARAMETER_AND_TOKEN * wanted.num_parameters * wanted.num_tokens)


def _summary(run: Finished) -> Iterator[str]:
    result = run.result("law")
    if result is not None:
        yield from describe(result)
    yield from headline(run)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the option that only the ladder has."""
    parser.add_argument(
        "--target", metavar="N:D", type=target, help="(--dry-run) show the predicted loss of N parameters on D tokens"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command of the ladder; return its exit code. `argv` replaces the process's arguments."""
    return recipe.main(
        build,
        name="ladder",
        add_arguments=add_arguments,
        only_dry_run=("--target",),
        plan_notes=_plan_notes,
        summary=_summary,
        commands=(*recipe.COMMANDS, mix_command.command(lambda arguments: {}), predict_command.predict),
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
