"""Download a share of a data set on the hub, in whole files that a hash of their names chooses."""

import glob

from pydantic import BaseModel, Field

from marin_dag.graph.cost import Cost
from marin_dag.graph.resources import Resources
from marin_dag.graph.step import Runtime, StepContext, step
from steps.download import DownloadConfig, DownloadResult, check_pinned, download
from steps.fetch import HuggingFaceDataset


class DownloadShareConfig(BaseModel, frozen=True, extra="forbid"):
    fetch: HuggingFaceDataset
    """Its `expected_bytes` are those of all files."""
    share: float = Field(gt=0, le=1)
    """Share of the bytes of the files to fetch. A larger share holds all files of a smaller one."""
    least_folders: int = Field(default=1, ge=1)
    """Folders to take at least one file of each from, such as languages; the data set may have fewer."""
    files_in_flight: Runtime[int] = 8

    @property
    def expected_bytes(self) -> float:
        """The share's bytes. Whole files are fetched, whose sizes a plan does not know: a small share is larger."""
        return self.share * self.fetch.expected_bytes


def _cost(config: DownloadShareConfig, _: Resources) -> Cost:
    return Cost(bytes_read=config.expected_bytes, bytes_written=config.expected_bytes)


def _check_pinned(config: DownloadShareConfig) -> None:
    check_pinned(DownloadConfig(fetch=config.fetch))


@step(policy="tracked", cost=_cost, check_decided=_check_pinned)
def download_share(config: DownloadShareConfig, context: StepContext) -> DownloadResult:
    """Write the chosen files as `download` writes all."""
    from runtime.text.fetch.hub import list_files, share_of

    fetch = config.fetch
    every = list_files(fetch.repo, fetch.revision, fetch.files, repo_type="dataset")
    files = share_of(every, config.share, least_folders=config.least_folders)
    chosen = fetch.model_copy(update={"files": tuple(glob.escape(file.name) for file in files)})
    return download.function(DownloadConfig(fetch=chosen, files_in_flight=config.files_in_flight), context)
