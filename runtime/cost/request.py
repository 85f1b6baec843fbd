"""What is compiled, and what came of it: plain values, written as JSON between the processes and in the cache."""

import dataclasses
import json
from typing import Any, Literal

from runtime.cost.chips import slice_of
from runtime.cost.collectives import Collective
from runtime.kernels.scatter_blocks import ScatterKernel
from runtime.model.architectures import AnyModelConfig, config_from_fields
from runtime.parallel.mesh_shape import Machines, MeshLayout


@dataclasses.dataclass(frozen=True)
class Request:
    """One program on one kind of slice: everything that determines what the compiler sees."""

    step: Literal["train", "eval"]
    slice: str
    """Public name, such as "v4-2048"."""
    num_slices: int
    model: AnyModelConfig
    sequence_length: int
    global_batch_size: int
    num_averages: int
    compute_dtype: str
    attention_kernel: str
    loss_kernel: str
    remat: Literal["none", "dots", "full"] = "full"
    num_microbatches: int = 1
    reduce_dtype: str = "float32"
    scatter_kernel: ScatterKernel = "xla"
    skip_window_steps: int = 0
    replica_parallel: int = 1
    model_parallel: int = 1
    context_parallel: int = 1

    @property
    def parallel(self) -> int:
        """Chips that share one part of the batch."""
        return self.model_parallel * self.context_parallel

    @property
    def layout(self) -> MeshLayout:
        """Of the mesh on the machines; ValueError where they cannot be shared like that."""
        one = slice_of(self.slice)
        return Machines(one.sizes, self.num_slices, one.num_hosts).layout(
            replica=self.replica_parallel, model=self.model_parallel, context=self.context_parallel
        )

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Request":
        fields = json.loads(text)
        return cls(**{**fields, "model": config_from_fields(fields["model"])})


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What the compiler said. Sizes are of one chip, collectives of one chip and one step."""

    peak_memory_in_bytes: int
    argument_size_in_bytes: int
    """The state (or the parameters) and the batch."""
    collectives: tuple[Collective, ...]
    flops: int
    """Of the products in the program's text, as the chip runs them that has the most."""
    compile_seconds: float
    host_memory_in_bytes: int
    versions: dict[str, str]
    slow_operations: tuple[str, ...] = ()
    """Of a GPU's program: what it should not contain, in words."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Compiled":
        fields: dict[str, Any] = json.loads(text)
        found = (
            Collective(**{**item, "shape": tuple(item["shape"]), "axes": tuple(item["axes"])})
            for item in fields["collectives"]
        )
        slow = tuple(fields["slow_operations"])
        return cls(**{**fields, "collectives": tuple(found), "slow_operations": slow})


@dataclasses.dataclass(frozen=True)
class DoesNotFit:
    """The compiler refused: more memory than a chip has, or more vector memory than a kernel may take."""

    message: str


Outcome = Compiled | DoesNotFit
