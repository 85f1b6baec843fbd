"""Config of a report: its inputs by phase and source."""

from collections.abc import Iterable

from pydantic import BaseModel, Field

from marin_dag.graph.step import Input
from runtime.data.mixture import MixtureSchedule
from runtime.model.architectures import AnyModelConfig
from runtime.optim.schedule import Schedule
from runtime.report.recipe import Change
from steps.documents import DocumentsResult
from steps.ema_eval import EmaEvalResult
from steps.fit_scaling_law import FitScalingLawResult
from steps.hf_export import HfExportResult
from steps.lm_eval import LmEvalResult
from steps.phase_result import TrainPhaseResult
from steps.sample import SampleResult
from steps.tokenize import TokenizeResult
from steps.tokenizer import TokenizerResult


class ReportConfig(BaseModel, frozen=True, extra="forbid"):
    """Inputs by phase or source; texts and exports by their phase, or by `phase/anything` if it has several."""

    title: str
    introduction: str
    command: str = "python RECIPE.py"
    """Command that calls the recipe; commands on the page begin with it."""
    main_line: tuple[str, ...] = Field(min_length=1)
    """Phases that lead to the final model, in order; the others are branches."""
    phases: dict[str, Input[TrainPhaseResult]]
    parents: dict[str, str]
    """Phase -> the phase it starts from."""
    others: tuple[str, ...] = ()
    """Merged and imported weights that results are of, which no phase of the page trained."""
    forks: dict[str, str] = {}
    """Branch that was made on the command line -> the phase that it repeats with other settings; any number."""
    fork_reasons: dict[str, str] = {}
    """Branch made on the command line -> the reason that its author gave."""
    labels: dict[str, str] = {}
    """Source -> what to call it, where mixtures and caches do not name it as a person does."""
    mixtures: dict[str, MixtureSchedule]
    learning_rates: dict[str, Schedule] = {}
    """Phase -> its schedule, whose jumps reset the levels of monitors, as segments of the mixture do."""
    untrained: dict[str, AnyModelConfig] = {}
    """Phase that starts from scratch -> its model, whose first loss is known before it trains."""
    recipe: dict[str, tuple[Change, ...]]
    evaluations: dict[str, Input[EmaEvalResult]]
    texts: dict[str, Input[SampleResult]] = {}
    exports: dict[str, Input[HfExportResult]]
    scores: dict[str, Input[LmEvalResult]]
    """Name of the export -> its scores."""
    law: Input[FitScalingLawResult] | None = None
    """Law of the ladder that the phases belong to."""
    sources: dict[str, dict[str, Input[DocumentsResult]]]
    """Source -> stage ("filter", then "filter 2") -> what it left, in the order in which documents went through them.
    """
    caches: dict[str, Input[TokenizeResult]]
    tokenizer: Input[TokenizerResult] | None = None
    """Tokenizer of the caches, for the heat map; None leaves it out."""
    samples_per_reason: int = Field(default=3, ge=0)
    """Dropped documents shown for each source, stage and reason."""


def phase_of(name: str, phases: Iterable[str]) -> str:
    """Return the phase that texts or an export were made of; the name of a phase may hold a "/" itself."""
    return max((phase for phase in phases if f"{name}/".startswith(f"{phase}/")), key=len, default=name)
