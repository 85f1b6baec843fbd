"""Supply: a machine alone refuses what it will never have; a cluster that may grow says what is waited for."""

import pytest

from marin_dag.errors import UserError
from marin_dag.graph.resources import Cpu, Gpu, Resources, Tpu
from marin_dag.run.supply import refuse_gangs, refuse_what_never_fits, what_is_not_there_yet
from tests.catalogue import expect_error

LAPTOP = {"CPU": 2.0, "memory": 1e9, "node:127.0.0.1": 1.0}
WITH_A_SLICE = {"CPU": 16.0, "TPU": 8.0, "TPU-v6e-8-head": 1.0, "accelerator_type:TPU-V6E": 1.0}
RECIPE: dict[str, Resources] = {
    "download": Cpu(1),
    "kestrel": Tpu("v5litepod-256", num_slices=2),
    **dict.fromkeys(("ocelot", "jellyfish", "phoenix", "starling"), Tpu("v4-2048")),
    "score": Tpu("v6e-8"),
}


def test_a_machine_alone_names_what_was_asked_and_what_is_there():
    with pytest.raises(UserError) as refused:
        refuse_what_never_fits(RECIPE, LAPTOP)
    assert str(refused.value).startswith(
        "kestrel: asks for 2 x v5litepod-256; ocelot, jellyfish, phoenix and 1 more: ask for v4-2048; "
        "score: asks for v6e-8. This machine has 2 CPU, and no other will join it. Nothing was started."
    )


def test_what_a_machine_has_is_not_refused():
    refuse_what_never_fits({"download": Cpu(2), "nothing": Cpu(0)}, LAPTOP)
    refuse_what_never_fits({"train": Gpu("H200", 8)}, {"CPU": 64, "GPU": 8, "accelerator_type:H200": 1})


@pytest.mark.parametrize("asked", [Gpu("H200", 16), Gpu("A100", 8), Cpu(65), Cpu(1, num_hosts=2), Gpu("H200", 1, 2)])
def test_more_than_a_machine_has_or_another_kind_is_refused(asked: Resources):
    with expect_error(UserError):
        refuse_what_never_fits({"train": asked}, {"CPU": 64, "GPU": 8, "accelerator_type:H200": 1})


def test_a_cluster_that_may_grow_is_waited_for():
    said = what_is_not_there_yet(RECIPE, WITH_A_SLICE)
    assert "kestrel: asks for 2 x v5litepod-256" in said and "score" not in said and "download" not in said
    assert "The cluster has 16 CPU, 8 TPU, 1 x v6e-8, TPU-V6E now; these steps wait for more to join it." in said
    assert what_is_not_there_yet({"score": Tpu("v6e-8"), "download": Cpu(1)}, WITH_A_SLICE) == ""
    assert "score" in what_is_not_there_yet({"score": Tpu("v6e-8", num_slices=2)}, WITH_A_SLICE)


def test_one_process_runs_no_gang_whatever_its_size():
    refuse_gangs({"download": Cpu(64), "train": Gpu("H200", 8)})
    with expect_error(UserError):
        refuse_gangs(RECIPE)
