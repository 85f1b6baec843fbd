"""A run begins where the devices form the ratios of the loss, and is refused where one number of them is off."""

import jax
import jax.numpy as jnp

from runtime.kernels.cross_entropy_gpu import Ratios, ratios_in_xla
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from runtime.training.ratio_check import check_ratios
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
