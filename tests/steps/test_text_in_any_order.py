"""Text steps: every one writes the same bytes with one worker and with many."""

import concurrent.futures
import dataclasses
import random

import pytest

from marin_dag.graph.inputs import Input
from marin_dag.graph.output_ref import OutputRef
from marin_dag.values.fields import markers
from tests.steps import text_chain


@dataclasses.dataclass
class Workers:
    """A context whose shards run on threads, started in a random order."""

    context: object
    num_workers: int
    started: set

    def __getattr__(self, name):
        return getattr(self.context, name)

    def map(
        self,
        function,
        items,
        *,
        in_flight,
        name="shards",
        on_finished=lambda index, result: None,
    ):
        items = list(items)
        self.started.add(f"{self.context.name}/{name}")
        order = random.Random(self.num_workers).sample(range(len(items)), len(items))
        with concurrent.futures.ThreadPoolExecutor(self.num_workers) as pool:
            started = {
                index: pool.submit(function, items[index], f"{self.output_path}/{name}/{index:05d}") for index in order
            }
        for index in order:
            on_finished(index, started[index].result())
        return [started[index].result() for index in range(len(items))]


def ended(folder, corpus, num_workers, context_of):
    """Return what every step of the chain writes and returns, and the maps that ran."""
    inputs, results, started = {}, {}, set()
    for name, step in text_chain.chain(corpus).items():
        output = folder / name
        output.mkdir(parents=True)
        result = step.kind.function(
            bound(step.config, inputs), Workers(context_of(name, str(output)), num_workers, started)
        )
        inputs[step.digest] = Input(name=name, digest=step.digest, path=str(output), result=result)
        results[name] = result
    files = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return files, results, started


def bound(config, inputs):
    """Return a config with the outputs of other steps, bound as the engine does."""

    def of(value):
        if isinstance(value, OutputRef):
            return inputs[value.step.digest]
        return tuple(map(of, value)) if isinstance(value, tuple) else value

    return config.model_copy(update={name: of(getattr(config, name)) for name in markers(type(config))})


@pytest.mark.parametrize("num_workers", [2, 16])
def test_every_step_writes_the_same_bytes_on_one_worker_and_on_many(tmp_path, num_workers, context_of):
    text_chain.write_corpus(tmp_path / "corpus")
    one = ended(tmp_path / "one", str(tmp_path / "corpus"), 1, context_of)
    many = ended(tmp_path / "many", str(tmp_path / "corpus"), num_workers, context_of)
    assert one == many
    assert one[2] == set(text_chain.MAPS)
