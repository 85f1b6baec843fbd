"""TrainedModel: the weights of a phase, described by its own checkpoint."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, SingleDeviceSharding

from runtime.model.architectures import ModelDescription
from runtime.model.model import Params, abstract_params
from runtime.model.placement import parameter_specs, shardings
from runtime.training.checkpoint import load_params, read_metadata


@dataclass(frozen=True)
class TrainedModel:
    """The model and the weights of one checkpoint."""

    checkpoint: str
    description: ModelDescription

    @classmethod
    def open(cls, checkpoint: str) -> "TrainedModel":
        """Read the description; raise CheckpointError where there is no complete checkpoint."""
        return cls(checkpoint, ModelDescription.from_facts(read_metadata(checkpoint).get("facts", {}), checkpoint))

    def params(self, which: str, mesh: Mesh | None) -> Params:
        """Return the float32 weights "hot" or EMA weights of that name, on `mesh` or in host memory."""
        model = self.description.config.build()
        shapes = abstract_params(model)
        if mesh is None:
            on_host = SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
            places = jax.tree.map(lambda _: on_host, shapes)
        else:
            places = shardings(parameter_specs(model), mesh)
        like = jax.tree.map(
            lambda shape, place: jax.ShapeDtypeStruct(shape.shape, jnp.float32, sharding=place), shapes, places
        )
        return load_params(self.checkpoint, like, which)
