"""The mesh of a step: a replica a slice, as its resources say, over the devices of all its hosts."""

import pytest

from marin_dag.graph.context import Host
from marin_dag.graph.resources import Gpu, Resources, Tpu
from runtime.parallel.mesh import copy_size
from steps.joined_mesh import joined_mesh
from tests.catalogue import expect_error
from tests.steps import phase_runs  # noqa: F401 -- makes eight devices before JAX makes its backend


@pytest.mark.parametrize(
    ("resources", "replicas", "devices_of_a_copy"),
    [(Tpu("v4-8", num_slices=2), 2, 4), (Tpu("v4-16"), 1, 8), (Gpu("H200", 8), 1, 8)],
    ids=str,
)
def test_each_slice_has_a_copy_of_the_parameters_and_each_host_knows_its_slice(
    resources: Resources, replicas: int, devices_of_a_copy: int, context_of, use_devices, monkeypatch
) -> None:
    use_devices(8)
    reported: dict[str, object] = {}
    monkeypatch.setattr("runtime.parallel.hosts.join_hosts", lambda **of_host: reported.update(of_host))
    context = context_of("a phase", "outputs")
    context.resources = resources
    context.host = Host(
        index=1, num_hosts=2, coordinator="[fd00::7]:8476", slice_index=replicas - 1, num_slices=replicas
    )
    mesh = joined_mesh(context, model_parallel=2)
    assert (mesh.shape["replica"], copy_size(mesh), mesh.shape["model"]) == (replicas, devices_of_a_copy, 2)
    assert reported == {
        "coordinator": "[fd00::7]:8476",
        "num_hosts": 2,
        "index": 1,
        "num_slices": replicas,
        "slice_index": replicas - 1,
    }


@pytest.mark.parametrize("resources", [Gpu("H200", 1), Tpu("v5litepod-8")], ids=str)
def test_a_step_for_an_accelerator_does_not_train_on_a_cpu(resources: Resources, context_of) -> None:
    context = context_of("a phase", "outputs")
    context.resources = resources
    with expect_error(ValueError):
        joined_mesh(context)
