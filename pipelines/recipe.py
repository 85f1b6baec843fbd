"""The names that a recipe of one's own needs, in one import, and the parts that most recipes share.

    from pipelines import recipe

docs/how-to/own-recipe.md has a whole recipe. Whatever is not here is imported from where it is defined.
"""

import argparse
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Literal

from marin_dag.cli import main as command_line
from marin_dag.cli.page_content import PageContent
from marin_dag.cli.session import Session
from marin_dag.graph.graph import Graph
from marin_dag.graph.resources import Cpu, Gpu, Tpu
from marin_dag.graph.step import Step
from marin_dag.plan.plan import Plan
from pipelines import (
    batch_command,
    checkpoints_command,
    compile_report,
    curves_command,
    documents_command,
    heat_map_command,
    milestone_evaluations,
    mix_command,
    publish_command,
    rollback_command,
    runs_command,
    sample_command,
    scores_command,
    scoring,
    stalls_command,
    tasks_command,
    timeline_command,
)
from pipelines.headline import headline
from pipelines.lint import lint
from pipelines.milestone_evaluations import evaluate_every
from pipelines.reporting import fork_report, report_on
from pipelines.run_pages import write_run_pages
from pipelines.source import filtered_documents
from runtime.data.mixture import MixtureSchedule
from runtime.evaluation.suites import TaskSpec
from runtime.model.config import LLAMA2_ROPE, LLAMA3_ROPE, Rope
from runtime.model.llama.config import LlamaConfig
from runtime.optim.ema import HOT, Ema
from runtime.optim.optimizer import Muon
from runtime.optim.schedule import Constant, Cosine, Cycles, Linear, Rewarm, WsdS
from runtime.optim.skip_rule import SkipRule
from runtime.text.extraction.formats import Format, HtmlPages, JsonLines, ParquetTable, WebArchive
from runtime.text.filter_rules import Length, Rule
from steps.ema_eval import EmaEvalConfig, ema_eval
from steps.fetch import Fetch, files_in
from steps.hf_export import HfExportConfig, hf_export
from steps.joined_scores import JoinedScoresConfig, joined_scores
from steps.merge_checkpoints import merge_checkpoints
from steps.merge_config import MergeCheckpointsConfig, uniform
from steps.phase_config import TrainPhaseConfig
from steps.report import report as write_report
from steps.sample import SampleConfig, sample
from steps.tokenize import TokenizeConfig, tokenize
from steps.train_phase import train_phase
from steps.train_tokenizer import TrainTokenizerConfig, train_tokenizer

__all__ = [
    "LLAMA2_ROPE", "LLAMA3_ROPE", "Constant", "Cosine", "Cpu", "Cycles", "Ema", "Gpu", "HtmlPages", "JsonLines",
    "Length", "Linear", "LlamaConfig", "MixtureSchedule", "Muon", "ParquetTable", "Rewarm", "Rope", "SkipRule",
    "Step", "TaskSpec", "Tpu", "WebArchive", "WsdS", "documents", "evaluate", "evaluate_every", "export", "main",
    "merge", "phase", "report", "score", "token_caches", "tokenizer", "validation_tasks", "write_after",
]  # fmt: skip

ADAMW: dict[str, Any] = {"weight_decay": 0.1, "b1": 0.9, "b2": 0.95, "eps": 1e-8, "max_norm": 1.0}
"""Settings of the optimizer that `phase` takes unless it is given others."""
VALIDATION_ITEMS = 500
"""Items of each task that a phase measures while it trains."""
Tasks = Sequence[str | TaskSpec | Sequence[TaskSpec]]
"""Names of lm-eval's tasks, such as "piqa"; specs; or suites, such as `LAPTOP_TASKS`."""
FOLLOW = {train_phase: (ema_eval, sample), merge_checkpoints: (ema_eval, sample)}
"""Steps that a fork on the command line repeats: it is evaluated, and writes texts, like its base."""
MAKES_STEPS_FOR_RECIPES = True
"""A mistake in a config names the line that called this module."""
COMMANDS = (
    timeline_command.timeline, stalls_command.stalls, checkpoints_command.checkpoints, rollback_command.rollback,
    runs_command.runs, curves_command.curves, scores_command.scores, heat_map_command.heat_map_command,
    batch_command.batch, documents_command.documents, sample_command.write_texts, tasks_command.tasks,
    publish_command.publish,
)  # fmt: skip
"""Commands of every recipe that trains; `main` adds `mix`."""


def documents(name: str, fetch: str | Fetch, format_: Format | None = None, *, rules: Sequence[Rule] = ()) -> Step[Any]:
    """Return the documents of one source: download, extract and, with `rules`, filter.

    Args:
        name: the source's name in mixtures and step names.
        fetch: path of a file (or a pattern) in a local folder or bucket, or any other `Fetch`.
        format_: how the files hold documents; JSON lines if not given.
        rules: filter rules, applied in this order.
    """
    if isinstance(fetch, str) and not fetch.startswith("hf://"):
        folder, _, pattern = fetch.rpartition("/")
        fetch = files_in(folder or ".", pattern)
    return filtered_documents(name, fetch, (format_ or JsonLines(),), tuple(rules))


def tokenizer(documents: Mapping[str, Step[Any]], *, vocab_size: int, bytes_per_source: int = 2 << 20) -> Step[Any]:
    """Return a byte-level BPE tokenizer trained on these sources, equally many bytes of each."""
    config = TrainTokenizerConfig(documents=documents, vocab_size=vocab_size, bytes_per_source=bytes_per_source)
    return train_tokenizer("tokenizer", config)


def token_caches(
    documents: Mapping[str, Step[Any]],
    tokenizer: Step[Any],
    *,
    validation_share: float,
    labels: Mapping[str, str] | None = None,
) -> dict[str, Step[Any]]:
    """Return source to token cache; `validation_share` of each source's documents is held out for evaluation.

    `labels` are names for the steps of sources whose key is not the name that their user gave them.
    """
    return {
        name: tokenize(
            f"tokenize/{(labels or {}).get(name, name)}",
            TokenizeConfig(documents=cleaned, tokenizer=tokenizer, validation_share=validation_share),
        )
        for name, cleaned in documents.items()
    }


def phase(
    name: str,
    *,
    mixture: Mapping[str, float] | MixtureSchedule,
    resources: Cpu | Gpu | Tpu | None = None,
    **fields: Any,
) -> Step[Any]:
    """Return a first training phase: AdamW as in `ADAMW`, Llama 3's rotary embedding, no z-loss, seed 0.

    Args:
        name: the phase's name.
        mixture: weight of each source, or a schedule of weights.
        resources: the machines to train on.
        fields: the other fields of `TrainPhaseConfig`; they replace the defaults above.
    """
    schedule = mixture if isinstance(mixture, MixtureSchedule) else MixtureSchedule.constant(dict(mixture))
    defaults = {"start": None, "rope": LLAMA3_ROPE, "z_loss": 0.0, "seed": 0, **ADAMW}
    return train_phase(name, TrainPhaseConfig(**{**defaults, **fields, "mixture": schedule}), resources=resources)


def merge(
    name: str,
    checkpoints: Sequence[Any],
    *,
    coefficients: Sequence[float] | None = None,
    weights: str = HOT,
) -> Step[Any]:
    """Return a merge, the weighted average of weights; evaluations, exports and phases take it like a phase.

    Args:
        name: the step's name.
        checkpoints: phases, milestones such as `phase.at(step=900)`, imports or other merges, all of one model.
        coefficients: positive shares that add up to 1; equal ones if not given.
        weights: "hot" for the trained weights, or the name of an average that every phase keeps.
    """
    shares = uniform(len(checkpoints)) if coefficients is None else tuple(coefficients)
    config = MergeCheckpointsConfig(checkpoints=tuple(checkpoints), coefficients=shares, weights=weights)
    return merge_checkpoints(name, config)


def evaluate(
    phases: Sequence[Step[Any]],
    *,
    caches: Mapping[str, Step[Any]] | None = None,
    max_tokens_per_domain: int = 2**18,
    **fields: Any,
) -> list[Step[Any]]:
    """Return for each phase its bits per byte on held-out text of each source, for weights and EMA weights.

    An evaluation has the machines and the copies of its phase, since the hidden size may divide in no other way.

    Args:
        phases: phases or imported weights.
        caches: the sources; by default those that a phase trains on, and for an import those of all `phases`.
        max_tokens_per_domain: held-out tokens of each source.
        fields: other fields of `EmaEvalConfig`.
    """
    every = {name: cache for step in phases for name, cache in getattr(step.config, "caches", {}).items()}
    return [
        ema_eval(
            f"ema_eval/{step.name}",
            EmaEvalConfig(
                phase=step,
                caches=getattr(step.config, "caches", every) if caches is None else dict(caches),
                max_tokens_per_domain=max_tokens_per_domain,
                replica_parallel=getattr(step.config, "replica_parallel", 1),
                **fields,
            ),
            resources=step.resources,
        )
        for step in phases
    ]


def export(
    phase: Step[Any],
    tokenizer: Step[Any],
    *,
    weights: str = "hot",
    dtype: Literal["float32", "bfloat16"] = "bfloat16",
    model_name: str | None = None,
) -> Step[Any]:
    """Return a phase's weights as a Hugging Face folder; `weights` is "hot" or the name of an average."""
    config = HfExportConfig(
        phase=phase, tokenizer=tokenizer, weights=weights, dtype=dtype, model_name=model_name or phase.name
    )
    return hf_export(f"hf_export/{phase.name}", config)


def score(
    export: Step[Any],
    tasks: Tasks,
    *,
    num_fewshot: int | None = None,
    items: Step[Any] | None = None,
    resources: Cpu | Gpu | Tpu | None = None,
    **fields: Any,
) -> Step[Any]:
    """Return the step with an export's scores on tasks of lm-eval; the items come with a package of 86 MB.

    Args:
        export: an `hf_export` step.
        tasks: each is scored by its own step, so that a further task reruns no other.
        num_fewshot: worked examples in each prompt of a task that is given by its name.
        items: step with the items of tasks without their own rows.
        resources: the machine of each scoring step.
        fields: other fields of `LmEvalConfig`, such as `limit`, the number of first items of each task.
    """
    suites = _suites(tasks, num_fewshot)
    name = f"lm_eval/{PurePosixPath(export.name).name}"
    parts = scoring.scoring_parts(name, export, suites, items=items, resources=resources, **fields)
    if len(parts) == 1:
        return next(iter(parts.values()))
    return joined_scores(name, JoinedScoresConfig(export=export, parts=parts, order=tuple(parts)))


def write_after(
    prompts: Sequence[str],
    phases: Sequence[Step[Any]],
    tokenizer: Step[Any],
    *,
    resources: Cpu | Gpu | Tpu | None = None,
    name: str = "sample",
    **fields: Any,
) -> list[Step[Any]]:
    """Return for each phase the texts that it writes after the prompts, with its EMA weights if it keeps some.

    Args:
        prompts: the beginnings of texts.
        phases: phases or imported weights.
        tokenizer: the tokenizer of their sources.
        resources: the machine of each step, one host; by default that of its phase.
        name: name of the steps before that of the phase; a second call on a phase needs another.
        fields: other fields of `SampleConfig`, such as `temperature`.
    """
    found = []
    for step in phases:
        averages = getattr(step.config, "averages", ())
        weights = averages[0].name if averages else HOT
        config = {"phase": step, "tokenizer": tokenizer, "weights": weights, "prompts": tuple(prompts)}
        machine = step.resources if resources is None else resources
        found.append(sample(f"{name}/{step.name}", SampleConfig(**config | fields), resources=machine))
    return found


def validation_tasks(
    tasks: Tasks,
    tokenizer: Step[Any],
    *,
    num_fewshot: int | None = None,
    items: Step[Any] | None = None,
    limit: int | None = VALIDATION_ITEMS,
    name: str = "gold_answers",
) -> tuple[Step[Any], ...]:
    """Return the right answers of tasks with choices, as a phase measures them: `phase(validation_tasks=...)`.

    Args:
        tasks: as for `score`, like `num_fewshot` and `items`.
        tokenizer: that of the phase.
        limit: number of first items of each task, for a group in equal shares of its tasks; None takes all.
        name: name of the steps.
    """
    return scoring.answer_steps(name, _suites(tasks, num_fewshot), tokenizer, items=items, limit=limit)


def _suites(tasks: Tasks, num_fewshot: int | None) -> list[Sequence[TaskSpec]]:
    return [
        [TaskSpec(entry, num_fewshot)] if isinstance(entry, str) else [entry] if isinstance(entry, TaskSpec) else entry
        for entry in tasks
    ]


def report(title: str, results: Iterable[Step[Any]], *, command: str = "python RECIPE.py") -> Step[Any]:
    """Return one page on evaluations, exports and scores, and on every phase and source that they come from."""
    introduction = "Every phase of the recipe: its data, its settings, its losses and its results."
    return report_on(results, title=title, introduction=introduction, command=command)


def main(
    build: Callable[[argparse.Namespace], Sequence[Step[Any]]],
    *,
    name: str,
    source_tokens: Callable[[argparse.Namespace], Mapping[str, float]] | None = None,
    only_dry_run: Collection[str] = (),
    add_arguments: Callable[[argparse.ArgumentParser], None] | None = None,
    plan_notes: Callable[[Session, Plan], None] = lambda session, plan: None,
    **options: Any,
) -> int:
    """Run one command of a recipe that trains: the engine's command line with the commands and checks of training.

    Args:
        build: returns the steps that nothing else needs.
        name: name of the recipe; its forks are kept under it.
        source_tokens: how many tokens each source will have, for `mix` before it is tokenized.
        only_dry_run: options of the recipe's own that only `--dry-run` takes.
        add_arguments: declares the recipe's own arguments.
        plan_notes: prints the recipe's own lines of a dry run, before those on data and compiled programs.
        options: further options of `marin_dag.cli.main.main`, in place of the defaults here.

    Returns:
        The exit code.
    """
    estimate = source_tokens or (lambda arguments: {})
    defaults: dict[str, Any] = {
        "commands": (*COMMANDS, mix_command.command(estimate)),
        "summary": headline,
        "follow": FOLLOW,
        "with_forks": fork_report,
        "after_run": write_run_pages,
        "shown_after_run": (write_report,),
        "page_content": _page_content,
        "lint": lint,
    }

    @functools.wraps(build)
    def build_all(arguments: argparse.Namespace) -> Sequence[Step[Any]]:
        compile_report.check_arguments(arguments)
        with scoring.generated_code(getattr(arguments, "run_generated_code", False)):
            return build(arguments)

    def on_dry_run(session: Session, plan: Plan) -> None:
        if not session.parsed.json:
            plan_notes(session, plan)
            for line in mix_command.repeated_data(session, plan, estimate(session.parsed)):
                print(line)
        compile_report.report(session, plan)

    return command_line.main(
        functools.partial(milestone_evaluations.with_milestones, build_all),
        name=name,
        add_arguments=functools.partial(_add_arguments, add_arguments),
        only_dry_run=(*compile_report.OPTIONS, *only_dry_run),
        on_dry_run=on_dry_run,
        **{**defaults, **options},
    )


def _page_content(session: Session, graph: Graph) -> PageContent:
    from pipelines.run_page import RunPage  # needs Bokeh, which a plan does not

    return RunPage(session, graph)


def _add_arguments(own: Callable[[argparse.ArgumentParser], None] | None, parser: argparse.ArgumentParser) -> None:
    compile_report.add_argument(parser)
    milestone_evaluations.add_argument(parser)
    scoring.add_argument(parser)
    if own is not None:
        own(parser)
