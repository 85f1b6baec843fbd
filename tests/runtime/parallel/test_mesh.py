"""A mesh that cannot be is refused with the numbers and the cure."""

import jax
import numpy as np
import pytest

from runtime.model.config import LlamaConfig
from runtime.parallel.mesh import AXES, MeshShape, make_mesh, platform
from runtime.parallel.placement import check_placement

CONFIG = LlamaConfig(
    vocab_size=16,
    hidden_size=12,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=1,
    num_key_value_heads=1,
    head_dim=4,
    max_position_embeddings=16,
)


def test_one_device_is_a_mesh_with_all_four_axes() -> None:
    mesh = make_mesh(MeshShape(), jax.devices()[:1])
    assert mesh.axis_names == AXES
    assert platform(mesh) == "cpu"
    check_placement(CONFIG, mesh)


@pytest.mark.parametrize(
    ("shape", "error", "message"),
    [
        (MeshShape(data=3), ValueError, r"needs 3 devices and there are 1; .* MeshShape\(data=1\)"),
        (MeshShape(data=0), ValueError, "MeshShape.data is 0; every axis has at least one device"),
        (MeshShape(model=2), NotImplementedError, "MeshShape.model is 2; .* not built yet"),
        (MeshShape(context=2), NotImplementedError, "MeshShape.context is 2; .* not built yet"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(shape: MeshShape, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make_mesh(shape, jax.devices()[:1])


def test_a_data_axis_that_does_not_divide_the_hidden_size_is_refused() -> None:
    devices = np.array(jax.devices()[:1] * 8).reshape(1, 8, 1, 1)

    class Eight:
        shape = dict(zip(AXES, devices.shape, strict=True))

    with pytest.raises(ValueError, match="hidden_size is 12, which the data axis of 8 devices does not divide"):
        check_placement.__wrapped__(CONFIG, Eight())
