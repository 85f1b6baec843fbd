"""Expected memory and time of a training step that was not compiled, from the shapes of its largest arrays. No JAX.

The memory is 2 to 30 % above the compilers' figures for steps of 125 million to 8 billion parameters (its tests have
them), so that a step that is expected to fit does.
"""

import math

from runtime.cost.chips import REACHED_SHARE_OF_PEAK, slice_of
from runtime.cost.collectives import Collective
from runtime.cost.request import CompileRequest
from runtime.cost.roofline import flops_of, products_seconds, seconds_of, weights_seconds

BLOCK_OF_LOGITS = 2**28
"""Logits that the loss holds at a time, in float32; `kernels.cross_entropy_chunked.WIDE` has as many."""
BLOCK_OF_RATIOS, RATIOS_VOCAB_MULTIPLE = 2**30, 256
"""Ratios that the kernel for H100 and H200 holds at a time, and the divisor of vocabularies that the kernel takes."""
LAYERS_IN_FLIGHT = 3
"""Gathered layers at a time: one computes, the next arrives, and the memory of the one before is not free yet."""
RECOMPUTED_LAYERS = 1.5
"""Activations and gradients of the layer whose backward pass runs, relative to a layer's activations."""
MARGIN = 1.02
"""Added to the sum of the arrays, which is as little as 0.1 % above the compilers' figures."""
GATHERS = 3
"""Transfers of all weights in a micro-batch: two gathers, and the scatter of gradients."""
LOOP_KEEPS = 2.25
"""Activations that a loop over layers keeps without recomputation, relative to layers that are written out: there the
compiler recomputes many by itself."""
MOST_WRITTEN_OUT = 32
"""Layers that are written out on one GPU (`runtime.platform`)."""
SCORES_SHARE = 0.6
"""Share of the square of float32 scores that `chunked` attention keeps: the blocks up to the diagonal."""
FLASH_ATTENTION_GPUS = ("H100", "H200")
"""GPUs whose attention in bfloat16 keeps no scores (`kernels.attention_tokamax`)."""
SAVED_BESIDE_LAYERS = 0.5
"""Activations outside the layers without recomputation, relative to a layer's."""


def expected_memory(train: CompileRequest) -> int:
    """Return the bytes of one chip that a training step is expected to take at its peak.

    Raises:
        ValueError: the batch does not divide over the machines and micro-batches.
    """
    model, shape = train.model, train.layout.shape
    shape.check_batch(train.global_batch_size, train.sequence_length, train.num_microbatches)
    item = 2 if train.compute_dtype == "bfloat16" else 4
    rows = train.global_batch_size // shape.batch_parts // train.num_microbatches
    tokens = rows * train.sequence_length // (shape.context * shape.model)
    state = 4 * (model.num_parameters + train.state_size) / shape.copy_size
    gradients = 4 * model.num_parameters / shape.copy_size
    if shape.copy_size == 1:  # all weights are cast at once
        gathered = item * model.num_parameters if train.compute_dtype == "bfloat16" else 0.0
    else:
        layer = sum(math.prod(matrix) for matrix in model.layer_matrices)
        gathered = item * (LAYERS_IN_FLIGHT * layer + model.vocab_size * model.hidden_size) / shape.model
    arrays = state + gradients + gathered + _logits(train, tokens) + item * tokens * _activations(train)
    return round(MARGIN * arrays)


def _logits(train: CompileRequest, tokens: int) -> int:
    """Return the bytes of the logits that the loss holds: float32 ones, or bfloat16 ratios in larger blocks."""
    number = tokens * train.model.vocab_size
    has_ratios = train.loss_kernel == "mosaic_gpu" or (
        not train.loss_kernel and _has_flash_attention(train) and train.model.vocab_size % RATIOS_VOCAB_MULTIPLE == 0
    )
    return 2 * min(BLOCK_OF_RATIOS, number) if has_ratios else 4 * min(BLOCK_OF_LOGITS, number)


def _activations(train: CompileRequest) -> float:
    """Return the numbers in the compute dtype that a token leaves for the backward pass."""
    model = train.model
    # The residual before and after attention and their norms; queries, keys and values before and after the rotary
    # embedding and before QK-norm, and attention's output; gate, up and their product.
    queries, keys, *wide = model.layer_widths
    layer = 4 * model.hidden_size + (4 if model.use_qk_norm else 3) * (queries + keys) + 3 * max(wide)
    if _keeps_scores(train):
        numbers_of_a_score = 2 if train.compute_dtype == "bfloat16" else 1
        layer += round(SCORES_SHARE * numbers_of_a_score * model.num_attention_heads * train.sequence_length)
    if train.remat == "full":
        return model.num_hidden_layers * model.hidden_size + RECOMPUTED_LAYERS * layer
    one, layers = slice_of(train.slice), model.num_hidden_layers
    is_written_out = one.generation.platform == "gpu" and one.num_chips == 1 and layers <= MOST_WRITTEN_OUT
    return (layers * (1 if is_written_out else LOOP_KEEPS) + SAVED_BESIDE_LAYERS) * layer


def _keeps_scores(train: CompileRequest) -> bool:
    """Return whether attention leaves its scores for the backward pass, as only the kernel for any device does."""
    if train.attention_kernel:
        return train.attention_kernel == "chunked"
    return slice_of(train.slice).generation.platform == "gpu" and not _has_flash_attention(train)


def _has_flash_attention(train: CompileRequest) -> bool:
    return slice_of(train.slice).generation.name in FLASH_ATTENTION_GPUS and train.compute_dtype == "bfloat16"


def expected_seconds(train: CompileRequest) -> float:
    """Return the time of a training step whose products, weights through memory and wires all overlap."""
    shape, data = train.layout.shape, zip(("data_x", "data_y", "data_z"), train.layout.data, strict=False)
    axes = tuple(name for name, size in data if size > 1)
    wires = 0.0
    if axes:
        item = 2 if train.compute_dtype == "bfloat16" else 4
        size = item * train.model.num_parameters
        # Gathered forward and backward, and scattered once.
        gathers = Collective("all-gather", "bf16", (), size, axes, shape.data, GATHERS * train.num_microbatches)
        wires = seconds_of(gathers, train)
    return max(products_seconds(train), weights_seconds(train), wires)


def planned_seconds(train: CompileRequest) -> float:
    """Return the time of a training step that plans count on before a compile."""
    return max(seconds_at_share(train), expected_seconds(train))


def seconds_at_share(train: CompileRequest) -> float:
    """Return the time of a training step whose model reaches `REACHED_SHARE_OF_PEAK`."""
    one = slice_of(train.slice)
    peak = one.generation.peak_flops(train.compute_dtype) * one.num_chips * train.num_slices
    return flops_of(train).causal / (peak * REACHED_SHARE_OF_PEAK[one.generation.platform])


def fits(train: CompileRequest, peak_memory_in_bytes: int) -> bool:
    """Return whether a chip of the request's machines has that much memory."""
    return peak_memory_in_bytes <= slice_of(train.slice).generation.hbm_in_bytes
