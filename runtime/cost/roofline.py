"""Roofline: the least time that one step can take on a slice, from counts and published peaks. Nothing is measured.

    step = max(products / peak, weights through memory / bandwidth) + optimizer's state through memory + exposed wires

Products are those of the program: with full rematerialisation each layer's forward pass counts twice, and those of the
optimizer count. Attention counts
the blocks below the diagonal; with a context axis, those of its last part. Collectives run one after the other, each at
the bandwidth of its torus axis, and each costs its time beyond that of the work beside it in the schedule, at the peak.
Model and context axes are neighbours on one axis of the torus; rings of the data axis that they were cut from reach
over them, and so share wires. GPUs of a host have a switch; traffic between hosts goes over the network cards of the
GPUs that take part. Activations through memory, launch and host times are not counted. Float32 products take six
bfloat16 passes on a TPU, and no tensor cores on a GPU; weights are then gathered and read in float32.
"""

import dataclasses
from collections.abc import Iterable

from runtime.cost.chips import Slice, slice_of
from runtime.cost.collectives import Collective
from runtime.cost.request import Compiled, CompileRequest
from runtime.model.config import ModelConfig

REACHED_SHARE = {"tpu": 0.7, "gpu": 0.5}
"""Share of the roofline's speed that hours are planned with. Public dense runs of 16B to 52B on v4 and v5e report 56 to
67 % of peak, all of attention counted; 0.7 of the recipe's rooflines is 56 to 57 %, the lower end of it. On one H100 or
H200 the steps of a 125M, 400M and 1.5B were timed at 42 to 53 % MFU (docs/explanation/gpu.md), where rooflines allow 92
to 95 %; Llama 3 405B reports 38 to 43 % on 8,192 and more H100 (arXiv:2407.21783, table 4) of 78 and 79 %."""

ATTENTION_PRODUCTS = {"tokamax": (2, 7)}
"""Products of attention, forward and backward, where not two and five: the backward pass computes scores twice."""
LOSS_PRODUCTS = 3
"""Products between hidden states and the head, forward and backward."""


@dataclasses.dataclass(frozen=True)
class Flops:
    """FLOPs of one step over the global batch."""

    causal: int
    """FLOPs of the model, attention counted below the diagonal: the numerator of MFU."""
    full: int
    """The same with the whole square of attention, as most public tables count."""
    executed: int
    """FLOPs of the program, recomputation and the optimizer's products included."""
    attention: int
    """Executed FLOPs between queries and keys, which a context axis does not split evenly."""


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Seconds of one step, and figures that follow from them."""

    products_seconds: float
    weights_seconds: float
    optimizer_seconds: float
    exposed_seconds: float
    """Sum of the collectives' times beyond that of the work beside them."""
    found_share: float
    """Products in the program's text over those counted here; 1, unless one of the two counts something else."""
    tokens: int

    @property
    def step_seconds(self) -> float:
        return max(self.products_seconds, self.weights_seconds) + self.optimizer_seconds + self.exposed_seconds

    @property
    def exposed_share(self) -> float:
        """Share of the step's time spent on collectives that nothing hides."""
        return self.exposed_seconds / self.step_seconds

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.step_seconds


def flops_of(request: CompileRequest) -> Flops:
    model, sequence = request.model, request.sequence_length
    tokens = request.global_batch_size * sequence
    attention = 2 * model.num_hidden_layers * model.num_attention_heads * model.head_dim * sequence
    head = 2 * model.vocab_size * model.hidden_size
    layers = 2 * (model.num_parameters - _embeddings(model))
    if request.step == "eval":
        forward = tokens * (layers + head + attention)
        return Flops(forward, full=forward + tokens * attention, executed=forward, attention=tokens * attention)
    causal = tokens * model.flops_per_token(sequence)
    again = 1 if request.remat == "full" else 0
    recomputed = again * 2 * model.num_recomputed_parameters
    forward_products, backward_products = ATTENTION_PRODUCTS.get(request.attention_kernel, (2, 5))
    attended = tokens * attention * (forward_products * (1 + again) + backward_products) // 2
    updates = request.update_flops * slice_of(request.slice).num_chips * request.num_slices
    executed = tokens * (3 * layers + recomputed + head * LOSS_PRODUCTS) + attended + updates
    return Flops(causal=causal, full=causal + 3 * tokens * attention, executed=executed, attention=attended)


def roofline_of(request: CompileRequest, compiled: Compiled) -> Roofline:
    """Return the least time of the compiled step on its slices."""
    chip = slice_of(request.slice).generation
    # All of the state is read and written, and gradients are read.
    parameters = request.model.num_parameters
    moved = 2 * (parameters + request.state_size) + parameters
    state = 4 * moved / request.layout.shape.copy_size if request.step == "train" else 0
    products = products_seconds(request)
    return Roofline(
        products_seconds=products,
        weights_seconds=weights_seconds(request),
        optimizer_seconds=state / chip.hbm_bytes_per_second,
        exposed_seconds=sum(exposed_seconds_of(item, request) for item in compiled.collectives),
        found_share=compiled.flops / (products * _peak_flops(request)),
        tokens=request.global_batch_size * request.sequence_length,
    )


def products_seconds(request: CompileRequest) -> float:
    """Return the time of a step's products on the busiest chip, at the peak."""
    num_chips = slice_of(request.slice).num_chips * request.num_slices
    flops = flops_of(request)
    busiest = flops.executed + flops.attention * (_last_part_share(request) - 1)
    return busiest / (num_chips * _peak_flops(request))


def weights_seconds(request: CompileRequest) -> float:
    """Return the time in which a step's weights and gradients go through the memory of a chip."""
    embeddings = _embeddings(request.model)
    multiplied = embeddings + (request.model.num_parameters - embeddings) / request.model_parallel  # by one chip
    number = 4 if request.compute_dtype == "float32" else 2
    # Weights are written once a gather and read once a pass; float32 gradients are written, and read to be scattered.
    passes = (number * (2 + 3) + 4 * 2) if request.step == "train" else number * 2
    return passes * multiplied * request.num_microbatches / slice_of(request.slice).generation.hbm_bytes_per_second


def _peak_flops(request: CompileRequest) -> float:
    """Return the peak of one chip in the request's dtype, FLOPs a second."""
    return slice_of(request.slice).generation.peak_flops(request.compute_dtype)


def _last_part_share(request: CompileRequest) -> float:
    """Return the last part's attention over the mean of a context axis: it sees the most keys; the others wait for
    it."""
    parts = request.context_parallel
    triangle = (2 * parts - 1) / parts
    if request.attention_kernel == "tokamax" and request.step == "train" and parts > 1:
        forward, backward = ATTENTION_PRODUCTS["tokamax"]
        forward *= 2 if request.remat == "full" else 1
        # Backward, a part is computed against all keys up to its end: twice the mean of a causal row.
        return (forward * triangle + backward * 2) / (forward + backward)
    return triangle


def exposed_seconds_of(item: Collective, request: CompileRequest) -> float:
    """Return a collective's time beyond that of the products beside it at the peak."""
    window_seconds = item.times * item.window_flops / _peak_flops(request)
    return max(0.0, seconds_of(item, request) - window_seconds)


def seconds_of(item: Collective, request: CompileRequest) -> float:
    """Return the time of a collective alone on its wires; one over several axes counts on the slowest of them.

    All but a permute use both directions of a ring.
    """
    one, inner, layout = slice_of(request.slice), request.parallel, request.layout
    if one.generation.platform == "gpu":
        return item.wire_bytes / _switched_bytes_per_second(item, one, request) if item.axes else 0.0
    link = one.generation.link_bytes_per_second
    axis_speeds = [
        link if item.kind == "collective-permute" else one.axis_bytes_per_second(axis) for axis in range(len(one.sizes))
    ]
    speeds = []
    if "replica" in item.axes:
        between = one.sizes[layout.replica_cut] // request.replica_parallel  # rings that share the wires
        within = axis_speeds[layout.replica_cut] / between
        speeds.append(one.generation.dcn_bytes_per_second if request.num_slices > 1 else within)
    for index, axis in enumerate(("data_x", "data_y", "data_z")):
        if axis in item.axes:
            is_line = request.replica_parallel > 1 and index == layout.replica_cut
            speeds.append((link if is_line else axis_speeds[index]) / (inner if index == layout.inner_cut else 1))
    if "model" in item.axes or "context" in item.axes:
        whole_axis = inner == one.sizes[layout.inner_cut]
        speed = axis_speeds[layout.inner_cut] if whole_axis else link
        speeds.append(speed / (request.context_parallel if "model" in item.axes else 1))
    return item.wire_bytes / min(speeds) if speeds else 0.0


def _switched_bytes_per_second(item: Collective, one: Slice, request: CompileRequest) -> float:
    """Return the bandwidth of one GPU: a ring between hosts uses the network cards of the GPUs in the ring."""
    chip, in_a_host, inner = one.generation, one.num_chips // one.num_hosts, request.parallel
    speeds = [chip.link_bytes_per_second]
    if "replica" in item.axes and one.num_hosts > 1:
        speeds.append(max(1, request.replica_parallel // one.num_hosts) * chip.dcn_bytes_per_second)
    if "data_x" in item.axes and request.layout.shape.copy_size > in_a_host:
        speeds.append(max(1, in_a_host // inner) * chip.dcn_bytes_per_second)
    if {"model", "context"} & set(item.axes) and in_a_host % inner:
        speeds.append(in_a_host * chip.dcn_bytes_per_second)
    return min(speeds)


def wire_bytes(items: Iterable[Collective]) -> int:
    """Return the bytes that a chip sends for these."""
    return sum(item.wire_bytes for item in items)


def _embeddings(model: ModelConfig) -> int:
    return model.vocab_size * model.hidden_size * (1 if model.tie_word_embeddings else 2)
