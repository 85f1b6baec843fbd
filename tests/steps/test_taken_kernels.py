"""Which kernels a phase and an evaluation take, and what they make sure of before they compute with them."""

import jax
import pytest

from runtime.kernels.kernel_shape import KernelShape
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from runtime.training import ratio_check
from steps.taken_kernels import refuse_wrong_kernels, take_kernels

HOPPER = KernelShape("gpu", "NVIDIA H200", 128, 4096, 0, 4096, 128_256, 16_384, "bfloat16")


@pytest.mark.parametrize(
    ("asked_for", "taken", "is_checked"), [(None, "mosaic_gpu", True), ("chunked_wide", "chunked_wide", False)]
)
def test_the_loss_kernel_of_hopper_is_held_against_its_definition_first(monkeypatch, asked_for, taken, is_checked):
    meshes = []
    monkeypatch.setattr(ratio_check, "check_ratios", meshes.append)
    mesh = make_mesh(MeshShape(), jax.devices()[:1])
    kernels = take_kernels(HOPPER, attention_kernel=None, loss_kernel=asked_for)
    assert meshes == []
    refuse_wrong_kernels(kernels, mesh)
    assert kernels.loss == taken
    assert meshes == [mesh] * is_checked
    assert set(kernels.blocks) == {"attention", "loss"}
    assert kernels.described()["loss"] == f"{taken}: {kernels.blocks['loss']}"
