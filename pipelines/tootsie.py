"""Tootsie 8B: the whole recipe, with five phases and a coda, side branches, evaluations and a report.

    python pipelines/tootsie.py --dry-run            what would run, and why
    python pipelines/tootsie.py                      run what is not done
    python pipelines/tootsie.py --set phoenix.z_loss=1e-4

`phases` follows the public table row by row. A phase inherits each setting that it does not name from the phase
before it, and acknowledges each jump.
"""

import argparse
import hashlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from marin_dag.cli.session import Session
from marin_dag.errors import UserError
from marin_dag.graph.step import Step
from marin_dag.plan.plan import Plan
from marin_dag.quantities import in_short, typed_count
from pipelines import mixtures, recipe
from pipelines.corpus import CORPORA, Corpus, corpus_of, sources_at
from pipelines.length import hours_named, main_line_tokens, tokens_named
from pipelines.machine_choice import Compiles, choice_line, placed_on, times_of, tokens_for
from pipelines.machines import MACHINES, resources_named
from pipelines.reporting import report_on
from pipelines.scales import Scale
from pipelines.sizes import SCALES, scale_at
from pipelines.sources import OWN_FILES
from runtime.model.config import LLAMA2_ROPE, LLAMA3_ROPE
from runtime.optim.schedule import Constant, Linear, Rewarm, WsdS
from steps.fetch import names_in
from steps.machine_checks import machines_of
from steps.phase_config import TrainPhaseConfig
from steps.train_phase import train_phase

DEFAULT_SCALE = "laptop"
PROMPTS = ("The most important thing about water is", "def mean(values):", "To solve the equation")
"""Beginnings of prose, code and mathematics, after which each phase of the main line writes."""
TEXT_TOKENS = 48
EXPORTED = ("jellyfish", "starling", "deeper_starling")
"""Phases whose EMA weights are exported and scored."""
RESULTS = {
    "hf_export/deeper_starling": "model",
    "lm_eval/deeper_starling": "scores.json",
}
"""Outputs that a finished run shows."""


def build(arguments: argparse.Namespace) -> Sequence[Step]:
    """Return the targets of one scale: the report, which needs everything else."""
    scale = chosen_scale(arguments)
    corpus = CORPORA[scale.corpus](scale) if arguments.corpus is None else corpus_of(arguments.corpus, scale)
    return tootsie(scale, corpus)


def chosen_scale(arguments: argparse.Namespace) -> Scale:
    """Return the scale that the arguments choose, with its length and its machines."""
    scale = scale_at(arguments.scale, _chosen_tokens(arguments))
    return (
        scale
        if arguments.on is None
        else placed_on(scale, resources_named(arguments.on), compiles=_compiles(arguments))
    )


def _compiles(arguments: argparse.Namespace) -> Compiles:
    return "all" if arguments.compile_all else "largest" if arguments.compile else "none"


def _chosen_tokens(arguments: argparse.Namespace) -> int | None:
    """Return the tokens of the main line that the arguments give; None for the scale's own."""
    if arguments.hours is None:
        return None if arguments.tokens is None else tokens_named(arguments.tokens)
    if arguments.tokens is not None:
        raise UserError("--tokens and --hours: both set the length of the run. Remove one of the two options.")
    if arguments.on is None:
        raise UserError("--hours: hours of which machines? Name them too, such as --on H100:1.")
    return tokens_for(
        hours_named(arguments.hours),
        arguments.scale,
        resources_named(arguments.on),
        num_sources=_num_sources(arguments),
    )


def _num_sources(arguments: argparse.Namespace) -> int:
    """Return the number of sources whose held-out text the run evaluates."""
    if arguments.corpus is not None:
        return len(names_in(arguments.corpus, *OWN_FILES))
    return len(sources_at(SCALES[arguments.scale]))


def tootsie(scale: Scale, corpus: Corpus) -> list[Step]:
    """Return the recipe's targets for a corpus and a scale."""
    main_line = phases(scale, corpus)
    every = main_line | branches(scale, corpus, main_line)
    dtype = scale.compute_dtype
    evaluations = recipe.evaluate(
        [*every.values()], caches=corpus.caches, max_tokens_per_domain=scale.evaluation_tokens, compute_dtype=dtype
    )
    texts = recipe.write_after(
        PROMPTS,
        [*main_line.values()],
        corpus.tokenizer,
        max_new_tokens=min(TEXT_TOKENS, scale.model.max_position_embeddings // 2),
        compute_dtype=dtype,
        resources=scale.scoring_resources,
    )
    exports = [
        recipe.export(
            main_line[name],
            corpus.tokenizer,
            weights="averaged",
            dtype=dtype,
            model_name=f"tootsie-{scale.name}-{name.replace('_', '-')}",
        )
        for name in EXPORTED
    ]
    scores = [
        recipe.score(
            export,
            (scale.tasks,),
            items=corpus.evaluation_items,
            limit=scale.lm_eval_limit,
            compute_dtype=dtype,
            resources=scale.scoring_resources,
        )
        for export in exports
    ]
    return [_report(scale, corpus, [*evaluations, *texts, *exports, *scores])]


def _report(scale: Scale, corpus: Corpus, results: Sequence[Step]) -> Step:
    """Return the report on all results; it names the corpus where it is not the recipe's."""
    title, text, mapping = f"Tootsie ({scale.name})", "", ""
    if corpus.labels:
        names = sorted(corpus.labels.get(key, key) for key in corpus.documents)
        title = f"Tootsie on an own corpus ({scale.name})"
        text = f", over sources of its own ({', '.join(names)})"
        mapping = " The first word of a source's name chooses its part of the recipe's mixture."
    return report_on(
        results,
        title=title,
        introduction=f"Every phase and side branch of the Tootsie 8B recipe{text}: its data, its training, its changes "
        f"and its results.{mapping}",
        command="python pipelines/tootsie.py",
        labels=corpus.labels,
    )


def first_phase(scale: Scale, corpus: Corpus) -> Step:
    """Return kestrel, the phase that starts from scratch and writes every setting."""
    small, rate = scale.batches[0], scale.rate
    return train_phase(
        "kestrel",
        TrainPhaseConfig(
            start=None,
            until_step=scale.boundaries.kestrel,
            model=scale.model,
            # Theta 10,000 without scaling was a mistake, found after 2.7 trillion tokens and fixed in ocelot.
            rope=LLAMA2_ROPE,
            sequence_length=scale.sequence_length,
            global_batch_size=small.global_batch_size,
            num_microbatches=small.num_microbatches,
            remat=scale.remat,
            # A peak of 2e-3 had diverged.
            learning_rate=WsdS(rate * 1e-3, rate * 1e-4, scale.warmup_steps, scale.kestrel_cycles),
            weight_decay=0.05,
            b1=0.9,
            b2=0.95,
            eps=1e-8,
            max_norm=1.0,
            z_loss=0.0,
            **corpus.mixture(mixtures.DCLM),
            seed=0,
            compute_dtype=scale.compute_dtype,
            reduce_dtype=scale.reduce_dtype,
            scatter_kernel=scale.kestrel_scatter_kernel,
            checkpoint_every_steps=scale.checkpoint_every_steps,
            keep_good_every_steps=scale.keep_good_every_steps,
            validate_every_steps=scale.validate_every_steps,
            validation_tokens_per_source=scale.validation_tokens_per_source,
            publish_every_steps=scale.publish_every_steps,
        ),
        policy=scale.training_policy,
        version="1",
        resources=scale.kestrel_resources,
    )


def phases(scale: Scale, corpus: Corpus) -> dict[str, Step]:
    """Return the main line: kestrel, ocelot, jellyfish, phoenix, starling, deeper_starling."""
    ends, rate = scale.boundaries, scale.rate
    _, large, largest = scale.batches
    kestrel = first_phase(scale, corpus)
    ocelot = kestrel.then(
        "ocelot",
        until_step=ends.ocelot,
        rope=LLAMA3_ROPE,
        global_batch_size=large.global_batch_size,
        num_microbatches=large.num_microbatches,
        scatter_kernel="xla",
        learning_rate=Constant(rate * 1.7e-3),
        # Not written in the public recipe: from here on the optimizer's new default applied.
        weight_decay=0.1,
        averages=(scale.average,),
        acknowledge=("learning_rate", "weight_decay", "rope"),
    ).on(scale.main_resources)
    jellyfish = ocelot.then(
        "jellyfish",
        until_step=ends.jellyfish,
        learning_rate=Linear(rate * 1.7e-3, scale.cooled_rate, decay_steps=ends.jellyfish - ends.ocelot),
        **corpus.mixture(mixtures.COOLDOWN_V1),
    )
    phoenix = jellyfish.then(
        "phoenix",
        until_step=ends.phoenix,
        learning_rate=Rewarm(scale.cooled_rate, rate * 1.7e-3, warmup_steps=scale.rewarm_steps),
        **corpus.mixture(mixtures.PHOENIX_WARM, (ends.phoenix_warm, mixtures.PHOENIX)),
    )
    starling = phoenix.then(
        "starling",
        until_step=ends.starling,
        global_batch_size=largest.global_batch_size,
        num_microbatches=largest.num_microbatches,
        # The public line starts at 1,320,000, one step before the phase, so that its rates are 1.2e-5 lower.
        learning_rate=Linear(rate * 1.7e-3, scale.deeply_cooled_rate, decay_steps=ends.starling - ends.phoenix),
        z_loss=1e-4,
        **corpus.mixture(mixtures.STARLING),
    )
    deeper_starling = starling.then(
        "deeper_starling",
        until_step=ends.deeper_starling,
        learning_rate=Constant(scale.deeply_cooled_rate),
    )
    return {phase.name: phase for phase in (kestrel, ocelot, jellyfish, phoenix, starling, deeper_starling)}


def branches(scale: Scale, corpus: Corpus, main_line: dict[str, Step]) -> dict[str, Step]:
    """Return the side branches, each from the phase it leaves."""
    ends, rate = scale.boundaries, scale.rate
    ocelot, jellyfish = main_line["ocelot"], main_line["jellyfish"]

    cooldown_v2 = ocelot.then(
        "cooldown_v2",
        until_step=ends.jellyfish,
        learning_rate=Linear(rate * 1.7e-3, scale.cooled_rate, decay_steps=ends.jellyfish - ends.ocelot),
        **corpus.mixture(mixtures.COOLDOWN_V2),
    ).on(scale.main_resources)
    dessert_bad = jellyfish.then(
        "dessert_bad",
        until_step=ends.dessert,
        learning_rate=Constant(scale.cooled_rate),
        **corpus.mixture(mixtures.DESSERT_BAD),
    ).on(scale.branch_resources)
    dessert = dessert_bad.fork("dessert", **corpus.mixture(mixtures.DESSERT_REPAIRED))

    raccoon_soft = jellyfish.then(
        "raccoon_soft",
        until_step=ends.raccoon_soft,
        learning_rate=Linear(scale.cooled_rate, rate * 1.7e-5, decay_steps=ends.raccoon_soft - ends.jellyfish),
    ).on(scale.branch_resources)
    # The optimizer's moments were deleted from the checkpoint by hand; the public code does not show it.
    raccoon_softer = raccoon_soft.then(
        "raccoon_softer",
        until_step=ends.raccoon_softer,
        learning_rate=Linear(rate * 1.7e-5, rate * 1e-6, decay_steps=ends.raccoon_softer - ends.raccoon_soft),
        restore="everything_but_optimizer",
        acknowledge=("restore",),
    )

    hypnotic = jellyfish.then(
        "spoonbill_hypnotic",
        until_step=ends.spoonbill,
        learning_rate=Linear(scale.cooled_rate, rate * 2.75e-5, decay_steps=ends.spoonbill - ends.jellyfish),
        **corpus.mixture(mixtures.SPOONBILL),
    ).on(scale.branch_resources)
    # The public run repeated this phase with norms every ten steps, which is how the growing head was found. Here it
    # shares the training of spoonbill_hypnotic, cut where the focused variants leave it.
    norms_half = hypnotic.fork("spoonbill_norms_half", until_step=ends.spoonbill_half)
    norms = norms_half.then("spoonbill_norms", until_step=ends.spoonbill)
    focused_fp32 = norms_half.then(
        "spoonbill_focused_fp32",
        until_step=ends.spoonbill,
        compute_dtype="float32",
        reduce_dtype="float32",
        num_microbatches=scale.float32_num_microbatches,
        acknowledge=("compute_dtype", "reduce_dtype"),
    )
    focused_zloss = norms_half.then("spoonbill_focused_zloss", until_step=ends.spoonbill, z_loss=1e-4)
    deeper = focused_zloss.then(
        "spoonbill_deeper",
        until_step=ends.spoonbill_deeper,
        learning_rate=Linear(rate * 2.75e-5, rate * 2.75e-6, decay_steps=ends.spoonbill_deeper - ends.spoonbill),
    )
    every = [cooldown_v2, dessert_bad, dessert, raccoon_soft, raccoon_softer, hypnotic, norms_half, norms]
    return {branch.name: branch for branch in [*every, focused_fp32, focused_zloss, deeper]}


def source_tokens(arguments: argparse.Namespace) -> dict[str, float]:
    """Return an estimate of each source's tokens, used until it is tokenized; unknown sources have no entry."""
    sources = {} if arguments.corpus is not None else sources_at(chosen_scale(arguments))
    return {source.name: source.num_tokens for source in sources.values() if source.num_tokens}


def variant(arguments: argparse.Namespace) -> str:
    """Return the variant that the arguments choose; each scale, length and own corpus has its own forks."""
    tokens = _chosen_tokens(arguments)
    name = str(arguments.scale) if tokens is None else f"{arguments.scale}-{typed_count(tokens)}"
    if arguments.corpus is None:
        return "" if name == DEFAULT_SCALE else name
    folder = Path(arguments.corpus).absolute()
    label = re.sub(r"[^A-Za-z0-9_-]+", "-", folder.name)
    return f"{name}-{label}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"


def plan_notes(session: Session, plan: Plan) -> None:
    """Print length and machines of the run where the user chose them."""
    parsed = session.parsed
    if parsed.on or parsed.tokens:
        scale, tokens = chosen_scale(parsed), _chosen_tokens(parsed)
        repeated = "the scale's own length" if tokens is None else f"--tokens {typed_count(tokens)} repeats it"
        print(f"\nlength   {in_short(main_line_tokens(scale))} tokens in the main line; {repeated}")
        if parsed.on:
            _print_machines(scale, _num_sources(parsed))


def _print_machines(scale: Scale, num_sources: int) -> None:
    machines = scale.main_resources
    for hours, basis in times_of(scale, num_sources):
        print(
            f"time     {hours:,.2f} hours, {hours * machines_of(machines).num_devices:,.2f} chip-hours, for all phases "
            f"and their evaluations on held-out text, {basis}; without data, scores and restarts"
        )
    print(f"machines {machines}: {choice_line(scale)}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that only Tootsie has."""
    add = parser.add_argument
    add("--scale", choices=list(SCALES), default=DEFAULT_SCALE, help=f"size of everything (default {DEFAULT_SCALE})")
    add("--tokens", metavar="N", help="tokens of the main line, such as 3B (default: the scale's)")
    add("--hours", metavar="H", help="as many tokens as the machines of --on train on in H hours")
    add("--on", metavar="MACHINES", help=f"machines of every step that computes on accelerators: {MACHINES}")
    add("--corpus", metavar="DIR", help=f"train on the {' '.join(OWN_FILES)} of DIR, each a source")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command of the recipe; return its exit code. `argv` replaces the process's arguments."""
    return recipe.main(
        build,
        name="tootsie",
        add_arguments=add_arguments,
        results=RESULTS,
        source_tokens=source_tokens,
        variant=variant,
        plan_notes=plan_notes,
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
