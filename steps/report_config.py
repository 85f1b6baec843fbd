"""Config of a report: its inputs by phase and source, and its checks."""

from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints

from marin_dag.graph.step import Input
from runtime.data.mixture import MixtureSchedule
from runtime.report.recipe import Change, Node
from steps.documents import DocumentsResult
from steps.ema_eval import EmaEvalResult
from steps.hf_export import HfExportResult
from steps.lm_eval import LmEvalResult
from steps.phase_result import TrainPhaseResult
from steps.sample import SampleResult
from steps.tokenize import TokenizeResult

StageName = Annotated[str, StringConstraints(pattern=r"^(extract|filter|dedup|decontaminate)( ([2-9]|[1-9]\d+))?$")]
"""A kind of step, and its number among those of its kind if it is not the first: "filter", "filter 2"."""


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
    forks: dict[str, str] = {}
    """Branch that was made on the command line -> the phase that it repeats with other settings; any number."""
    fork_reasons: dict[str, str] = {}
    """Branch made on the command line -> the reason that its author gave."""
    labels: dict[str, str] = {}
    """Source -> what to call it, where mixtures and caches do not name it as a person does."""
    mixtures: dict[str, MixtureSchedule]
    recipe: dict[str, tuple[Change, ...]]
    evaluations: dict[str, Input[EmaEvalResult]]
    texts: dict[str, Input[SampleResult]] = {}
    exports: dict[str, Input[HfExportResult]]
    scores: dict[str, Input[LmEvalResult]]
    """Name of the export -> its scores."""
    sources: dict[str, dict[StageName, Input[DocumentsResult]]]
    """Source -> stage -> what that stage left of it, in the order in which the documents went through them."""
    caches: dict[str, Input[TokenizeResult]]
    graph: tuple[Node, ...]
    """Each after its inputs."""
    samples_per_reason: int = Field(default=3, ge=0)
    """Dropped documents shown for each source, stage and reason."""


def check_names(config: ReportConfig) -> None:
    """Raise if a field names a phase, export or step that is not there.

    Raises:
        ValueError: lists the field and the names that exist.
    """
    named = {
        "main_line": config.main_line,
        "parents": (*config.parents, *config.parents.values()),
        "forks": (*config.forks, *config.forks.values()),
        "mixtures": config.mixtures,
        "recipe": config.recipe,
        "evaluations": config.evaluations,
        "texts": [phase_of(name, config.phases) for name in config.texts],
        "exports": [phase_of(name, config.phases) for name in config.exports],
    }
    for field, names in named.items():
        unknown = sorted(set(names) - set(config.phases))
        if unknown:
            raise ValueError(f"{field} names {unknown}, which are no phases; phases are {sorted(config.phases)}.")
    unknown = sorted(set(config.scores) - set(config.exports))
    if unknown:
        raise ValueError(f"scores names {unknown}, which are no exports; exports are {sorted(config.exports)}.")
    nodes: set[str] = set()
    for node in config.graph:
        if missing := sorted(set(node.inputs) - nodes):
            raise ValueError(f"graph: {node.name!r} reads {missing}, which are not before it; add those steps.")
        nodes.add(node.name)


def phase_of(name: str, phases: Iterable[str]) -> str:
    """Return the phase that texts or an export were made of; the name of a phase may hold a "/" itself."""
    return max((phase for phase in phases if f"{name}/".startswith(f"{phase}/")), key=len, default=name)
