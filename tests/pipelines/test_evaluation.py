"""What follows a phase in the recipe: its evaluation, on its machines and in as many copies."""

from marin_dag.graph.resources import Gpu
from pipelines import recipe
from runtime.model.llama.config import LlamaConfig
from steps.ema_eval import check_machines
from steps.train_phase import train_phase
from tests.catalogue import expect_error
from tests.steps.phase_runs import a_phase, cache_of

OF_EIGHT = LlamaConfig(4096, 512, 1024, 2, 4, 2, 128, 4096)
"""Twenty-four devices do not share its hidden size, three times eight do."""


def test_an_evaluation_lies_as_its_phase_does_and_so_runs_where_that_ran(tmp_path):
    cache, machines = cache_of(tmp_path, "web", last_id=8), Gpu("H200", 8, num_hosts=3)
    config = a_phase(cache, model=OF_EIGHT, sequence_length=1024, replica_parallel=3)
    phase = train_phase("kestrel", config, resources=machines)
    (found,) = recipe.evaluate([phase], caches={})
    assert (found.config.replica_parallel, found.resources) == (3, machines)
    check_machines(found.config, machines)
    with expect_error(ValueError):
        check_machines(found.config.model_copy(update={"replica_parallel": 1}), machines)
