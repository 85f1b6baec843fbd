"""Shapes and dtypes of the numerical modules are checked at each call; array ranks and dtypes never mix silently."""

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
