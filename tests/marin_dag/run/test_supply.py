"""Supply: one machine refuses what it can never have; a cluster shows which steps wait for more machines."""

import pytest

from marin_dag.errors import UserError
from marin_dag.graph.resources import Cpu, Gpu, Resources, Tpu
from marin_dag.run.supply import check_one_machine, missing_resources
from tests.catalogue import check_message, expect_error

LAPTOP = {"CPU": 2.0, "memory": 1e9, "node:127.0.0.1": 1.0}
WITH_A_SLICE = {"CPU": 16.0, "TPU": 8.0, "TPU-v6e-8-head": 1.0, "accelerator_type:TPU-V6E": 1.0}
RECIPE: dict[str, Resources] = {
    "download": Cpu(1),
    "kestrel": Tpu("v5litepod-256", num_slices=2),
    **dict.fromkeys(("ocelot", "jellyfish", "phoenix", "starling"), Tpu("v4-2048")),
    "score": Tpu("v6e-8"),
}


def test_one_machine_names_what_the_steps_ask_for_and_what_it_has():
    with expect_error(UserError):
        check_one_machine(RECIPE, LAPTOP)


def test_resources_that_a_machine_has_are_accepted():
    check_one_machine({"download": Cpu(2), "nothing": Cpu(0)}, LAPTOP)
    check_one_machine({"train": Gpu("H200", 8)}, {"CPU": 64, "GPU": 8, "accelerator_type:H200": 1})


@pytest.mark.parametrize("asked", [Gpu("H200", 16), Gpu("A100", 8), Cpu(65), Cpu(1, num_hosts=2), Gpu("H200", 1, 2)])
def test_more_than_a_machine_has_is_refused(asked: Resources):
    with expect_error(UserError):
        check_one_machine({"train": asked}, {"CPU": 64, "GPU": 8, "accelerator_type:H200": 1})


def test_steps_wait_for_a_cluster_to_grow():
    check_message(missing_resources(RECIPE, WITH_A_SLICE))
    assert missing_resources({"score": Tpu("v6e-8"), "download": Cpu(1)}, WITH_A_SLICE) == ""
    assert missing_resources({"score": Tpu("v6e-8", num_slices=2)}, WITH_A_SLICE)


def test_one_process_runs_no_gang():
    check_one_machine({"download": Cpu(64), "train": Gpu("H200", 8)}, None)
    with expect_error(UserError):
        check_one_machine(RECIPE, None)
