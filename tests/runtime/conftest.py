"""Shapes and dtypes of the numerical modules are checked at each call; array ranks and dtypes never mix silently."""

import importlib.util
import types
from collections.abc import Iterator

import jax
import pytest
from jaxtyping import install_import_hook

# Eight simulated devices for the tests of meshes: to be set before JAX makes its backend.
jax.config.update("jax_num_cpu_devices", 8)

NUMERICAL = (
    "runtime.model",
    "runtime.kernels",
    "runtime.parallel",
    "runtime.optim",
    "runtime.training.objective",
    "runtime.training.train_step",
    "runtime.training.eval_step",
)
install_import_hook(NUMERICAL, "beartype.beartype")

_STRICT = ("kernels", "model", "optim", "parallel")


@pytest.fixture(autouse=True)
def strict_promotion(request: pytest.FixtureRequest) -> Iterator[None]:
    """Rank promotion is an error in the tests of the numerical modules, and so is implicit dtype promotion."""
    if request.path.parent.name not in _STRICT and request.path.stem != "test_train_step":
        yield
        return
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield


@pytest.fixture
def described_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for the GPU libraries that JAX asks for while it lowers for a GPU; none is called."""
    if importlib.util.find_spec("jax._src.pallas.triton.gpu_info") is not None:  # since JAX 0.11
        gpu = types.SimpleNamespace(compute_capability=90)
        monkeypatch.setattr("jax._src.pallas.triton.gpu_info.get_gpu_info", lambda: gpu)
