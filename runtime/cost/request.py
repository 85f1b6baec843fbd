"""Request and outcome of a compile: plain values, written as JSON between the processes and in the cache."""

import dataclasses
import json
from typing import Literal

from pydantic import TypeAdapter

from runtime.cost.chips import slice_of
from runtime.cost.collectives import Collective
from runtime.kernels.scatter_blocks import ScatterKernel
from runtime.model.architectures import AnyModelConfig
from runtime.optim.optimizer import ChosenOptimizer, chosen
from runtime.parallel.mesh_shape import Machines, MeshLayout

SCORING_STEPS = ("score", "prefill", "decode")
"""Programs that score an exported model."""


@dataclasses.dataclass(frozen=True)
class CompileRequest:
    """A program on one kind of slice: everything that determines what the compiler sees."""

    step: Literal["train", "eval", "score", "prefill", "decode"]
    """The last three are those of `evaluation.described_programs`: rows and tokens as batch and sequence."""
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
    optimizer: ChosenOptimizer = None
    replica_parallel: int = 1
    model_parallel: int = 1
    context_parallel: int = 1
    stored_dtype: str = "float32"
    """Dtype of the parameters of a scored model."""

    @property
    def parallel(self) -> int:
        """Chips that share one part of the batch."""
        return self.model_parallel * self.context_parallel

    @property
    def state_size(self) -> int:
        """Numbers of the state besides the parameters: the optimizer's and the averages."""
        return chosen(self.optimizer).state_size(self.model) + self.num_averages * self.model.num_parameters

    @property
    def update_flops(self) -> int:
        """FLOPs of the optimizer's products on one chip."""
        return chosen(self.optimizer).update_flops(self.model, self.layout.copy_axes)

    @property
    def layout(self) -> MeshLayout:
        """Layout of the mesh on the machines; ValueError where they cannot be shared like that."""
        one = slice_of(self.slice)
        machines = Machines(one.sizes, self.num_slices, one.num_hosts)
        if self.step in SCORING_STEPS:
            return machines.layout_of_copies(one.num_chips // self.replica_parallel)
        return machines.layout(replica=self.replica_parallel, model=self.model_parallel, context=self.context_parallel)


@dataclasses.dataclass(frozen=True)
class Compiled:
    """Figures of a compiled program: sizes of one chip, collectives of one chip and one step."""

    peak_memory_in_bytes: int
    argument_size_in_bytes: int
    """Size of the state (or the parameters) and the batch."""
    collectives: tuple[Collective, ...]
    flops: int
    """FLOPs of the products in the program's text, on the chip with the most."""
    compile_seconds: float
    host_memory_in_bytes: int
    versions: dict[str, str]


@dataclasses.dataclass(frozen=True)
class DoesNotFit:
    """The compiler refused: more memory than a chip has, or more vector memory than a kernel may take."""

    message: str


Outcome = Compiled | DoesNotFit
REQUEST: TypeAdapter[CompileRequest] = TypeAdapter(CompileRequest)
OUTCOME: TypeAdapter[Outcome] = TypeAdapter(Outcome)
"""Readers of their JSON: `validate_json`."""


def to_json(value: CompileRequest | Outcome) -> str:
    """Return a request or an outcome as one line of JSON; equal ones give equal lines."""
    return json.dumps(dataclasses.asdict(value), sort_keys=True)
