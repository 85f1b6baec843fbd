"""A run begins where the devices form the ratios of the loss, and is refused where one number of them is off."""

import jax
import jax.numpy as jnp
import pytest

from runtime.kernels.cross_entropy_gpu import Ratios, ratios_in_xla
from runtime.kernels.kernel_shape import KernelShape
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from runtime.training import kernel_checks
from runtime.training.kernel_checks import check_loss_kernel, check_ratios
from runtime.training.kernel_choice import take_kernels
from tests.catalogue import expect_error


def one_number_off(*given: jax.Array) -> Ratios:
    right = ratios_in_xla(*given)
    return right._replace(to_label=right.to_label.at[7, 11].multiply(1.02))


def label_kept(*given: jax.Array) -> Ratios:
    right, labels = ratios_in_xla(*given), given[3]
    return right._replace(to_label=right.to_label.at[3, labels[3]].set(1.0))


def sum_off(*given: jax.Array) -> Ratios:
    right = ratios_in_xla(*given)
    return right._replace(total=right.total.at[2, 5].multiply(1.01))


def no_number(*given: jax.Array) -> Ratios:
    right = ratios_in_xla(*given)
    return right._replace(total=right.total.at[0, 0].set(jnp.nan))


def test_a_wrong_number_of_the_loss_kernel_is_an_error() -> None:
    mesh = make_mesh(MeshShape(), jax.devices()[:1])
    check_ratios(mesh, form=ratios_in_xla)
    for wrong in (one_number_off, label_kept, sum_off, no_number):
        with expect_error(RuntimeError):
            check_ratios(mesh, form=wrong)


def test_a_process_checks_its_devices_once() -> None:
    asked = []

    def form(*given: jax.Array) -> Ratios:
        asked.append(given)
        return ratios_in_xla(*given)

    for _ in range(2):  # a phase, and its validation
        check_ratios(make_mesh(MeshShape(), jax.devices()[:1]), form=form)
    assert len(asked) == 1


HOPPER = KernelShape("gpu", "NVIDIA H200", 128, 4096, 0, 4096, 128_256, 16_384, "bfloat16")


@pytest.mark.parametrize(
    ("asked_for", "taken", "is_checked"), [(None, "mosaic_gpu", True), ("chunked_wide", "chunked_wide", False)]
)
def test_the_loss_kernel_of_hopper_is_held_against_its_definition_first(monkeypatch, asked_for, taken, is_checked):
    meshes = []
    monkeypatch.setattr(kernel_checks, "check_ratios", meshes.append)
    mesh = make_mesh(MeshShape(), jax.devices()[:1])
    kernels = take_kernels(HOPPER, attention_kernel=None, loss_kernel=asked_for)
    assert meshes == []
    check_loss_kernel(kernels.loss, mesh)
    assert kernels.loss == taken
    assert meshes == [mesh] * is_checked
    assert set(kernels.blocks) == {"attention", "loss"}
    assert kernels.described()["loss"] == f"{taken}: {kernels.blocks['loss']}"
