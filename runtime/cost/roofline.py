"""Roofline: the least time that one step can take on a slice, from counts and published peaks. Nothing is measured.

    step = max(products / peak, weights through memory / bandwidth) + optimiser's state through memory + exposed wires

Products count what the program does: with full rematerialisation each layer's forward pass twice. Attention counts the
blocks below the diagonal; of a context axis those of its last stretch. Collectives run one after the other, each at the
bandwidth of the torus axis it goes along, and each costs what it takes longer than the work that the schedule has
beside it takes at the peak. Model and context axes are neighbours on
one axis of the torus; the data axis that they were cut from reaches over them, so its rings share wires. GPUs of a host
have a switch; what leaves a host goes over the network cards of those of its GPUs that share in it. Activations through
memory are left out, and so are launch and host times. Products of float32 are float32's: six bfloat16 passes of a TPU,
and of a GPU none of its tensor cores'; weights are then gathered and read in float32.
"""

import dataclasses
from collections.abc import Iterable

from runtime.cost.chips import Slice, slice_of
from runtime.cost.collectives import Collective
from runtime.cost.request import Compiled, Request
from runtime.model.config import ModelConfig
from runtime.optim.optimizer import ADAMW

REACHED_SHARE = {"tpu": 0.7, "gpu": 0.55}
"""Of the roofline's speed, to plan days with. Public dense runs of 16B to 52B on v4 and v5e report 56 to 67 % of peak,
all of attention counted; 0.7 of the recipe's rooflines is 56 to 57 %, the lower end of it. Llama 3 405B reports 38 to
43 % on 8,192 and more H100 (arXiv:2407.21783, table 4); 0.55 of these rooflines, which allow 78 and 79 %, is 43 %."""

ATTENTION_PRODUCTS = {"pallas_gpu": (2, 7), "tokamax": (2, 7)}
"""Forward and backward, where they are not two and five: they compute the scores twice in their backward passes."""
LOSS_PRODUCTS = {"chunked": 3, "chunked_wide": 3, "reference": 3, "pallas_tpu": 5, "mosaic_gpu": 3}


@dataclasses.dataclass(frozen=True)
class Flops:
    """Of one step over the global batch."""

    causal: int
    """The model's, attention counted below the diagonal: what MFU should be computed with."""
    full: int
    """The same with the whole square of attention, as most public tables count."""
    executed: int
    """What the program computes, recomputation included."""
    attention: int
    """Of it, between queries and keys: what a context axis does not split evenly."""


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Seconds of one step, and what follows from them."""

    products_seconds: float
    weights_seconds: float
    optimizer_seconds: float
    exposed_seconds: float
    """Of each collective, what it takes longer than the work beside it."""
    found_share: float
    """Of the products counted here, in the program's text: 1, unless one of the two counts something else."""
    tokens: int

    @property
    def step_seconds(self) -> float:
        return max(self.products_seconds, self.weights_seconds) + self.optimizer_seconds + self.exposed_seconds

    @property
    def exposed_share(self) -> float:
        """Of the step's time, spent on collectives that nothing hides."""
        return self.exposed_seconds / self.step_seconds

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.step_seconds


def flops_of(request: Request) -> Flops:
    """Of the request's step."""
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
    # A layer's last product is not computed again: nothing in its backward pass needs what it gave.
    recomputed = again * 2 * model.num_recomputed_parameters
    forward_products, backward_products = ATTENTION_PRODUCTS.get(request.attention_kernel, (2, 5))
    attended = tokens * attention * (forward_products * (1 + again) + backward_products) // 2
    executed = tokens * (3 * layers + recomputed + head * LOSS_PRODUCTS[request.loss_kernel]) + attended
    return Flops(causal=causal, full=causal + 3 * tokens * attention, executed=executed, attention=attended)


def roofline_of(request: Request, compiled: Compiled) -> Roofline:
    """The least time of the compiled step on its slices."""
    one = slice_of(request.slice)
    chip = one.generation
    num_chips = one.num_chips * request.num_slices
    parameters = request.model.num_parameters
    embeddings = _embeddings(request.model)
    multiplied = embeddings + (parameters - embeddings) / request.model_parallel  # by one chip
    is_training = request.step == "train"
    number = 4 if request.compute_dtype == "float32" else 2
    # Written once a gather, read once a pass; gradients in float32: written, and read to be scattered.
    passes = (number * (2 + 3) + 4 * 2) if is_training else number * 2
    trees = 1 + ADAMW.num_trees + request.num_averages
    state = 4 * parameters / request.layout.shape.copy_size * (2 * trees + 1) if is_training else 0
    flops = flops_of(request)
    busiest = flops.executed + flops.attention * (_share_of_the_last_stretch(request) - 1)
    products_seconds = busiest / (num_chips * _peak_flops(request))
    weights_seconds = passes * multiplied * request.num_microbatches / chip.hbm_bytes_per_second
    return Roofline(
        products_seconds=products_seconds,
        weights_seconds=weights_seconds,
        optimizer_seconds=state / chip.hbm_bytes_per_second,
        exposed_seconds=sum(exposed_seconds_of(item, request) for item in compiled.collectives),
        found_share=compiled.flops / (products_seconds * _peak_flops(request)),
        tokens=request.global_batch_size * request.sequence_length,
    )


def _peak_flops(request: Request) -> float:
    """A second, of one chip, in the request's dtype."""
    return slice_of(request.slice).generation.peak_flops(request.compute_dtype)


def _share_of_the_last_stretch(request: Request) -> float:
    """Its attention by the mean over a context axis: it sees the most keys, and the others wait for it."""
    stretches = request.context_parallel
    if request.attention_kernel == "pallas_gpu":  # computes the rows before its stretch as well
        return stretches
    triangle = (2 * stretches - 1) / stretches
    if request.attention_kernel == "tokamax" and request.step == "train" and stretches > 1:
        forward, backward = ATTENTION_PRODUCTS["tokamax"]
        forward *= 2 if request.remat == "full" else 1
        # Backward, a stretch is computed against all keys up to its end: twice the mean of a causal row.
        return (forward * triangle + backward * 2) / (forward + backward)
    return triangle


def exposed_seconds_of(item: Collective, request: Request) -> float:
    """What a collective takes longer than the products beside it take at the peak."""
    window_seconds = item.times * item.window_flops / _peak_flops(request)
    return max(0.0, seconds_of(item, request) - window_seconds)


def seconds_of(item: Collective, request: Request) -> float:
    """A collective alone on its wires; one over several axes is counted on the slowest of them.

    It uses both directions of a ring, but for a permute, which sends one way.
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


def _switched_bytes_per_second(item: Collective, one: Slice, request: Request) -> float:
    """Of one GPU: a ring that leaves a host takes the network cards of those of its GPUs that are in the ring."""
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
    """Bytes that a chip sends for these."""
    return sum(item.wire_bytes for item in items)


def _embeddings(model: ModelConfig) -> int:
    return model.vocab_size * model.hidden_size * (1 if model.tie_word_embeddings else 2)
