"""Running one step function by itself: inputs bound to folders, shards one after the other."""

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from marin_dag.graph.context import ALONE, Host
from marin_dag.graph.inputs import Input
from marin_dag.graph.resources import Cpu, Resources
from marin_dag.graph.step import StepKind


@dataclasses.dataclass
class FolderContext:
    """The part of a StepContext that a step which only maps and writes needs."""

    name: str
    output_path: str
    work_path: str
    digest: str = "d" * 64
    attempt: str = "attempt"
    lease_epoch: int = 1
    log: logging.Logger = logging.getLogger("test")  # noqa: RUF009 -- shared on purpose
    resources: Resources = Cpu(1)  # noqa: RUF009 -- frozen
    host: Host = ALONE
    reported: list[tuple[int, int, str, dict[str, float]]] = dataclasses.field(default_factory=list)
    """Progress that the step reported."""
    how: dict[str, str] = dataclasses.field(default_factory=dict)
    """And of how it computed."""
    output_warnings: list[tuple[str, tuple[str, ...], str]] = dataclasses.field(default_factory=list)
    """Arguments of `warn_about_output`: text, samples and file."""

    def map(
        self,
        function: Callable[..., Any],
        items: Iterable[Any],
        *,
        in_flight: int,
        name: str = "shards",
        on_finished: Callable[[int, Any], None] = lambda index, result: None,
    ) -> list:
        items = list(items)
        results = [function(item, f"{self.output_path}/{name}/{index:05d}") for index, item in enumerate(items)]
        for index, result in enumerate(results):
            on_finished(index, result)
        return results

    def progress(self, done: int, total: int, unit: str, **figures: float) -> None:
        assert 0 <= done <= total > 0
        self.reported.append((done, total, unit, figures))

    def warn_about_output(self, text: str, *, samples: Iterable[str] = (), file: str = "") -> None:
        self.output_warnings.append((text, tuple(samples), file))

    def computed_with(self, **how: str) -> None:
        self.how |= how


UseDevices = Callable[[int], None]


@pytest.fixture
def use_devices(monkeypatch: pytest.MonkeyPatch) -> UseDevices:
    """Makes JAX have so many devices, which stand for those that a step asks for; one to begin with, as a laptop has,
    where the suite simulates eight."""
    import jax

    monkeypatch.setattr("steps.joined_mesh.check_platform", lambda resources: None)

    simulated = jax.devices()

    def use(count: int) -> None:
        assert count <= len(simulated)
        monkeypatch.setattr(jax, "devices", lambda *_: simulated[:count])
        monkeypatch.setattr(jax, "device_count", lambda *_: count)

    use(1)
    return use


@pytest.fixture
def context_of() -> Callable[[str, str], FolderContext]:
    """`context_of(name, output_path)` -> a context for one step function."""
    return lambda name, output_path: FolderContext(name, output_path, f"{output_path}-work")


@pytest.fixture
def run_alone(tmp_path) -> Callable[..., Input]:
    """`run_alone(kind, config, name)` -> the committed output as another step would see it."""
    return functools.partial(_run, tmp_path)


def _run(folder: Path, kind: StepKind, config: BaseModel, name: str) -> Input:
    output = folder / "outputs" / name
    output.mkdir(parents=True)
    context = FolderContext(name, str(output), str(folder / "work" / name))
    result = kind.function(config, context)
    return Input(name=name, digest="d" * 64, path=str(output), result=result)


@pytest.fixture
def wrong_loss_kernel(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the error of a step that takes Hopper's loss kernel on devices that compute it wrongly."""
    from runtime.training import kernel_checks, kernel_choice, train_step

    wrong = "3 numbers are not those of its definition"

    def refuse(mesh: object) -> None:
        raise RuntimeError(wrong)

    blocks = {"attention": "in parts", "loss": "in tiles"}
    taken = kernel_choice.KernelChoice("chunked", "mosaic_gpu", "as on a GPU", blocks)
    monkeypatch.setattr(kernel_choice, "chosen_kernels", lambda *_, **__: taken)
    monkeypatch.setattr(train_step, "check_kernels", lambda *_, **__: None)  # which sees that this is a CPU
    monkeypatch.setattr(kernel_checks, "check_ratios", refuse)
    return wrong
