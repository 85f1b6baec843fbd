"""Lint rules: learning rates that end elsewhere than their phase, odd models, few held-out documents.

Schedules count absolute steps: in a phase that starts elsewhere than planned, the rate then stays constant, or a decay
is cut short. Each limit of models passes published models that trained well, and catches the run that did not
(docs/reference/mistakes.md). The shape of an imported model is given, so it gets no warning.
"""

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.plan.lint import LintWarning
from marin_dag.quantities import counted, in_short
from pipelines.phases import phases_in, run_phases_in
from runtime.model.config import LLAMA3_ROPE
from runtime.model.llama.config import LlamaConfig
from runtime.optim.schedule import Cosine, Linear, Rewarm, WsdS
from runtime.report.recipe import rate
from steps.local_splits import small_local_split
from steps.phase_timeline import RunPhase
from steps.tokenize import TokenizeConfig

SIZE_IN_A_NAME = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)([bm])(?![a-z0-9])", re.IGNORECASE)
"""Size in a name such as `tr8-104B`, `llama-3.2-1b` or `125m`."""
SIZE_TOLERANCE = 0.3
"""Tolerance of the size in a name: Llama 3.2 "1B" has 1.24 billion parameters. The 104B of tr8 had 57."""
LEAST_MLP_RATIO, MOST_MLP_RATIO, LEAST_MLP_SHARE = 2.0, 8.0, 0.5
"""Limits of intermediate_size over hidden_size, and of the MLP's share of a layer's weights. Llama 2 to Gemma: 2.7 to
8; tr8: 1.25."""
MOST_HEAD_DIM = 256
MOST_WIDTH_OVER_DEPTH = 260
"""Limit of hidden_size over layers: BLOOM has 205, Llama 3 70B 102; tr8 had 512."""
MOST_INITIALIZER_FACTOR = 3.0
"""Limit over sqrt(2 / (5 hidden_size)): 0.02 is 2.0 times it for an 8B and 2.9 for a 70B, and was 3.4 for tr8."""
LARGE_NUM_PARAMETERS, HIGH_LEARNING_RATE = 20_000_000_000, 3e-4
"""Marin's 32B spiked at 7e-4; Llama 3 70B used 1.5e-4."""
LLAMA3_VOCAB_SIZE, LLAMA2_ROPE_THETA = 128_256, 10_000.0
MOST_B2, LARGE_TOKENS_PER_STEP = 0.98, 2**19
"""Training steps of few tokens need a long memory; those of tr8 had 4 million."""


def lint(graph: Graph) -> dict[str, list[LintWarning]]:
    """Return the lint warnings about the phases and the token caches of a graph, by step."""
    caches = {step.name: found for step in graph.steps if (found := [*lint_splits(step)])}
    return caches | lint_on(run_phases_in(phases_in(graph.steps)))


def lint_splits(step: Step[Any]) -> Iterator[LintWarning]:
    """Warn where a cache of the user's own source holds out few documents."""
    if not isinstance(step.config, TokenizeConfig):
        return
    share = step.config.validation_share
    small = small_local_split(step.config.documents, share)
    if small is not None and not small.empty and (small.better_share or 0) > share:
        held_out = f"{small.num_validation} of {small.num_documents} documents are held out"
        yield LintWarning(f"{held_out}, so its loss says little", {"validation_share": f"{small.better_share:g}"})


def lint_on(phases: Mapping[str, RunPhase]) -> dict[str, list[LintWarning]]:
    """Return the lint warnings about phases, by phase; phases without a warning have no entry."""
    rules = (lint_model, lint_rate)
    return {
        name: found for name, phase in phases.items() if (found := [w for rule in rules for w in rule(phase, phases)])
    }


def lint_rate(phase: RunPhase, phases: Mapping[str, RunPhase]) -> Iterator[LintWarning]:
    """Warn where a phase does not start or end with the decay or warm-up of its schedule."""
    schedule = phase.settings.learning_rate
    if isinstance(schedule, Linear | Cosine):
        warmup_steps = schedule.warmup_steps if isinstance(schedule, Cosine) else 0
        what, num_steps, field = "decay", warmup_steps + schedule.decay_steps, "decay_steps"
    elif isinstance(schedule, Rewarm):
        what, num_steps, field = "warm-up", schedule.warmup_steps, "warmup_steps"
    else:
        return
    begin, until = phase.begin_step, phase.settings.until_step
    start, end = schedule.first_step, schedule.first_step + num_steps
    starts = f"its {what} starts at step {start:,} and the phase at {begin:,}"
    ends = f"its {what} ends at step {end:,} and the phase at {until:,}"
    if begin < start:
        stays = f"{starts}: the rate stays at {rate(schedule(begin))}"
        moved = {"learning_rate.start_step": str(begin)}
        if until <= start:
            yield LintWarning(f"{stays} to its end", moved)
            return
        moved["until_step"] = str(until - (start - begin))
        yield LintWarning(f"{stays} for its first {counted(start - begin, 'update')}", moved)
    elif begin > start and not _continues_schedule(phase, phases):
        where = f"after all {num_steps:,}" if begin >= end else f"{begin - start:,} of {num_steps:,}"
        yield LintWarning(
            f"{starts}, {where} steps{'' if begin >= end else ' into it'}",
            {"learning_rate.start_step": str(begin), "until_step": str(until + begin - start)},
        )
    if until < end and not any(
        other.parent == phase.name and _continues_schedule(other, phases) for other in phases.values()
    ):
        last = f"the last rate is {rate(phase.rates[1])}, and not {rate(schedule(end))}"
        yield LintWarning(f"{ends}: {last}", {"until_step": str(end)})
    elif end < until and what == "decay" and begin < end:
        stays = f"the rate stays at {rate(schedule(end))} for its last {counted(until - end, 'update')}"
        yield LintWarning(f"{ends}: {stays}", {f"learning_rate.{field}": str(until - start)})


def _continues_schedule(phase: RunPhase, phases: Mapping[str, RunPhase]) -> bool:
    """Return whether the phase before has the same schedule: one decay over two phases."""
    return phase.parent is not None and phases[phase.parent].settings.learning_rate == phase.settings.learning_rate


def lint_model(phase: RunPhase, phases: Mapping[str, RunPhase]) -> Iterator[LintWarning]:
    """Yield the warnings about a phase."""
    model = phase.settings.model
    # An import restores "weights".
    if phase.parent is None and phase.settings.restore == "everything" and isinstance(model, LlamaConfig):
        yield from _of_name(phase, model)
        yield from _of_shape(model)
        yield from _of_initialization(model)
        yield from _of_large_model(phase, model, phases)
    yield from _of_rope(phase, phases)
    yield from _of_b2(phase, phases)


def _of_name(phase: RunPhase, model: LlamaConfig) -> Iterator[LintWarning]:
    found = SIZE_IN_A_NAME.search(phase.name)
    if found is None:
        return
    named = float(found[1]) * (1e9 if found[2] in "bB" else 1e6)
    matrix = model.vocab_size * model.hidden_size
    without_embeddings = model.num_parameters - matrix * (1 if model.tie_word_embeddings else 2)
    # Some names count no embeddings, or those of a smaller vocabulary, or tokens.
    meant = (model.num_parameters, model.num_parameters - matrix, without_embeddings, phase.end_tokens)
    if any(abs(number - named) <= SIZE_TOLERANCE * named for number in meant):
        return
    text = f"its name has {found[0]}, and its model has {in_short(model.num_parameters)} parameters"
    missing = (named - model.num_parameters) / (3 * model.num_hidden_layers * model.hidden_size)
    intermediate_size = _rounded(model.intermediate_size + missing)
    if LEAST_MLP_RATIO <= intermediate_size / model.hidden_size <= MOST_MLP_RATIO:
        yield LintWarning(text, {"model.intermediate_size": str(intermediate_size)})
    else:
        num_layers = max(round(model.num_hidden_layers * named / model.num_parameters), 1)
        yield LintWarning(text, {"model.num_hidden_layers": str(num_layers)})


def _of_shape(model: LlamaConfig) -> Iterator[LintWarning]:
    hidden, heads, kv_heads = model.hidden_size, model.num_attention_heads, model.num_key_value_heads
    mlp, attention = 3 * hidden * model.intermediate_size, 2 * hidden * model.head_dim * (heads + kv_heads)
    ratio, share = model.intermediate_size / hidden, mlp / (mlp + attention)
    if not LEAST_MLP_RATIO <= ratio <= MOST_MLP_RATIO or share < LEAST_MLP_SHARE:
        yield LintWarning(
            f"model.intermediate_size is {ratio:.3g} times the hidden size, and the MLP {share:.0%} of a layer's "
            f"weights; published models have {LEAST_MLP_RATIO:g} to {MOST_MLP_RATIO:g} times, and most of a layer",
            {"model.intermediate_size": str(_rounded(max(8 * hidden / 3, attention / (3 * hidden))))},
        )
    if model.head_dim > MOST_HEAD_DIM:
        num_heads = max(heads * model.head_dim // 128, 1)
        yield LintWarning(
            f"model.head_dim is {model.head_dim}; published models have {MOST_HEAD_DIM} at most",
            {
                # First, and a divisor of both: each setting alone must make a valid model.
                "model.num_key_value_heads": str(math.gcd(heads, num_heads)),
                "model.num_attention_heads": str(num_heads),
                "model.head_dim": "128",
            },
        )
    if hidden > MOST_WIDTH_OVER_DEPTH * model.num_hidden_layers:
        yield LintWarning(
            f"the model is {hidden:,} wide and {model.num_hidden_layers} layers deep, "
            f"{hidden / model.num_hidden_layers:.0f} to 1; published models have 205 to 1 at most, most about 128",
            {"model.num_hidden_layers": str(math.ceil(hidden / 128))},
        )


def _of_initialization(model: LlamaConfig) -> Iterator[LintWarning]:
    usual = math.sqrt(2 / (5 * model.hidden_size))
    deviation = model.initialization.deviation(model.hidden_size)
    if not model.use_qk_norm and deviation > MOST_INITIALIZER_FACTOR * usual:
        fixed = model.initialization.factor * usual / deviation
        yield LintWarning(
            f"model.initialization has a standard deviation of {deviation:.2g}, {deviation / usual:.2g} times "
            f"sqrt(2 / (5 hidden_size)), without QK-norm; tr8-104B diverged from such values",
            {"model.initialization.factor": f"{fixed:.2g}"},
        )


def _of_large_model(phase: RunPhase, model: LlamaConfig, phases: Mapping[str, RunPhase]) -> Iterator[LintWarning]:
    highest = max(_highest_rate(other) for other in phases.values() if phase.name in _line_to(other, phases))
    if model.num_parameters >= LARGE_NUM_PARAMETERS and highest > HIGH_LEARNING_RATE and not model.use_qk_norm:
        yield LintWarning(
            f"{in_short(model.num_parameters)} parameters at a learning rate of {rate(highest)} without QK-norm; "
            "Marin's 32B spiked so at 7e-4, despite z-loss and clipping, until it had one",
            {"model.use_qk_norm": "true"},
        )


def _of_rope(phase: RunPhase, phases: Mapping[str, RunPhase]) -> Iterator[LintWarning]:
    """Warn at the phase that sets the rotary embedding, unless the recipe changes it later, on purpose."""
    rope, model = phase.settings.rope, phase.settings.model
    if (model.vocab_size, rope.rope_theta) != (LLAMA3_VOCAB_SIZE, LLAMA2_ROPE_THETA):
        return
    if phase.parent is not None and phases[phase.parent].settings.rope == rope:
        return
    if any(other.settings.rope != rope for other in phases.values() if phase.name in _line_to(other, phases)):
        return
    yield LintWarning(
        f"rope.rope_theta is {rope.rope_theta:,.0f}, as in Llama 2, and the {model.vocab_size:,} ids are those of "
        "Llama 3, which uses 500,000 with scaling",
        {"rope": json.dumps(dataclasses.asdict(LLAMA3_ROPE))},
    )


def _of_b2(phase: RunPhase, phases: Mapping[str, RunPhase]) -> Iterator[LintWarning]:
    if _has_long_memory(phase) and not (phase.parent is not None and _has_long_memory(phases[phase.parent])):
        b2 = phase.settings.b2
        yield LintWarning(
            f"b2 is {b2:g}, with {in_short(phase.tokens_per_step)} tokens an update: the second moment is a mean over "
            f"about {1 / (1 - b2):,.0f} updates, and lags where gradients grow",
            {"b2": "0.95"},
        )


def _has_long_memory(phase: RunPhase) -> bool:
    return phase.settings.b2 > MOST_B2 and phase.tokens_per_step >= LARGE_TOKENS_PER_STEP


def _highest_rate(phase: RunPhase) -> float:
    schedule = phase.settings.learning_rate
    return max(*phase.rates, schedule.peak_value if isinstance(schedule, WsdS | Rewarm) else 0.0)


def _line_to(phase: RunPhase, phases: Mapping[str, RunPhase]) -> Iterator[str]:
    """Yield the phase and those before it in its run."""
    name: str | None = phase.name
    while name is not None:
        yield name
        name = phases[name].parent


def _rounded(size: float) -> int:
    """Return the size rounded up to whole tiles: Llama 2's 11,008 from 8/3 times 4,096."""
    return max(math.ceil(size / 256), 1) * 256
