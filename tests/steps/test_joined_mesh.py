"""The mesh of a step: a replica a slice, as its resources say, over the devices of all its hosts."""

from types import SimpleNamespace
from typing import Any

import pytest

from marin_dag.graph.context import Host
from marin_dag.graph.resources import Cpu, Gpu, Resources, Tpu
from runtime.parallel.mesh import copy_size
from steps.joined_mesh import joined_mesh
from steps.lm_eval import _planned_mesh
from steps.machine_checks import evaluated_mesh
from tests.catalogue import expect_error
from tests.runtime.interop.small_llama import CONFIG
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


@pytest.mark.parametrize(("gigabytes", "sharers"), [(16, 1), (140, 4)])
def test_a_model_is_scored_on_the_mesh_that_its_plan_has(
    gigabytes: int, sharers: int, use_devices, monkeypatch
) -> None:
    use_devices(8)
    monkeypatch.setattr("steps.lm_eval.check_platform", lambda resources: None)
    model: Any = SimpleNamespace(config=CONFIG, params=[SimpleNamespace(nbytes=gigabytes * 10**9 // 2)] * 2)
    mesh = _planned_mesh(Gpu("H100", 8), model)
    assert mesh is not None and (mesh.size, copy_size(mesh)) == (8, sharers)
    assert evaluated_mesh(Gpu("H100", 8), CONFIG, gigabytes * 10**9).copy_size == sharers
    assert _planned_mesh(Cpu(2), model) is None
    assert _planned_mesh(Gpu("H100", 4), model) is None, "this machine has more devices than planned"
