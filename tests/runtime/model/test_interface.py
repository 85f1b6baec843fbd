"""A second architecture trains, evaluates and is refused by its table alone: nothing outside its module names it."""

import jax
import numpy as np
import pytest

from runtime.interop.huggingface import SpecialTokens, state_dict, write_model
from runtime.model.config import LLAMA2_ROPE, ModelConfig
from runtime.model.model import Model, UnknownTensorError, abstract_params, logits
from runtime.model.placement import parameter_specs
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from runtime.training.state import TrainState, initial_state
from runtime.training.train_step import Hyperparameters, ProgramOptions, StepMetrics, build_train_step
from tests.catalogue import expect_error
from tests.runtime.model.toy import Toy, ToyConfig

OPTIONS = ProgramOptions(attention_kernel="reference", loss_kernel="reference", compute_dtype="float32", remat="none")
NUMBERS = Hyperparameters(1e-2, 0.1, 0.9, 0.95, 1e-8, 1.0, 1e-4)


def updated(config: ModelConfig, shape: MeshShape = MeshShape()) -> tuple[TrainState, StepMetrics]:  # noqa: B008
    mesh = make_mesh(shape, jax.devices()[: int(np.prod(shape))])
    tokens = np.random.default_rng(0).integers(0, 16, (2, 8), dtype=np.int32)
    step = build_train_step(config, LLAMA2_ROPE, mesh, OPTIONS)
    return step(initial_state(config, 0, mesh), tokens, np.zeros_like(tokens), NUMBERS)


def test_a_toy_is_a_model() -> None:
    assert isinstance(ToyConfig(), ModelConfig) and isinstance(Toy(ToyConfig()), Model)


@pytest.mark.parametrize("shape", [MeshShape(), MeshShape(replica=2), MeshShape(data=2)])
def test_another_architecture_trains_by_the_same_step(shape: MeshShape) -> None:
    state, metrics = updated(ToyConfig(), shape)
    assert float(metrics.loss) > 1 and float(metrics.update_norm) > 0
    alone, _ = updated(ToyConfig())
    np.testing.assert_allclose(state.params["lm_head"], alone.params["lm_head"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [MeshShape(), MeshShape(replica=2)])
def test_an_auxiliary_loss_enters_the_gradient_and_not_the_reported_loss(shape: MeshShape) -> None:
    without, plain = updated(ToyConfig())
    state, metrics = updated(ToyConfig(auxiliary_loss=100.0), shape)
    assert float(metrics.loss) == pytest.approx(float(plain.loss))
    assert float(metrics.grad_norm) == pytest.approx(100 * 2 * np.sqrt(8) / 8, rel=0.1)
    moments = state.optimizer.mu["scale"], without.optimizer.mu["scale"]
    assert np.all(moments[0] > 0) and not np.allclose(*moments)


def test_the_state_dict_has_the_names_of_the_table() -> None:
    model = Toy(ToyConfig())
    written = dict(state_dict(model, model.init(jax.random.key(0))))
    assert {name: array.shape for name, array in written.items()} == {
        "embed.weight": (16, 8),
        "head.weight": (16, 8),
        "scale.weight": (8,),
    }


def test_an_export_refuses_a_tensor_without_a_name(tmp_path) -> None:
    model = Toy(ToyConfig(is_listed=False))
    special = SpecialTokens(eos_token_id=0, bos_token_id=None)
    with expect_error(UnknownTensorError) as caught:
        write_model(str(tmp_path), model.init(jax.random.key(0)), model.config, LLAMA2_ROPE, special, dtype="float32")
    assert caught.value.tensor == "scale"
    assert not list(tmp_path.glob("*.safetensors"))


def test_a_mesh_refuses_a_tensor_without_a_place() -> None:
    with expect_error(UnknownTensorError):
        parameter_specs(Toy(ToyConfig(is_listed=False)))


def test_logits_are_of_every_position() -> None:
    from runtime.model.computation import whole

    model = Toy(ToyConfig())
    tokens = np.zeros((2, 3), np.int32)
    params = model.init(jax.random.key(0))
    found = logits(
        model, params, jax.numpy.asarray(tokens), jax.numpy.asarray(tokens), model.frequencies(LLAMA2_ROPE),
        computation=whole("float32"),
    )  # fmt: skip
    assert found.shape == (2, 3, 16) and len(jax.tree.leaves(abstract_params(model))) == 3
