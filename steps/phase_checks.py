"""Phase checks: what of a training phase can be refused while it is planned, before a chip is reserved."""

import dataclasses
import json
from typing import TYPE_CHECKING

from marin_dag.errors import RefusedConfigError
from marin_dag.resources import Cpu, Gpu, Resources, Tpu
from marin_dag.slices import slice_shape
from runtime.data.consumption import NoCache
from runtime.parallel.mesh_shape import Machines, MeshShape
from runtime.training.timeline import UnacknowledgedError, refuse_unacknowledged_changes
from steps.tokenizer_checks import refuse_several_tokenizers, tokenizers_of, tokenizers_of_phase

if TYPE_CHECKING:
    from runtime.kernels.shape import KernelShape
    from runtime.model.config import LlamaConfig
    from steps.train_phase import TrainPhaseConfig

KEEP_THE_DATA_POSITION = ("everything", "everything_but_optimizer")


def check_config(config: "TrainPhaseConfig") -> None:
    """What can be known before any cache is there; whether a source is large enough shows when it is.

    Raises:
        ValueError: the config cannot work, or jumps without saying that it is meant.
    """
    unprovided = [str(NoCache(source)) for source in config.mixture.sources if source not in config.caches]
    if unprovided:
        raise ValueError("\n".join(unprovided))
    if config.sequence_length > config.model.max_position_embeddings:
        raise ValueError(
            f"sequence_length is {config.sequence_length:,}, and model.max_position_embeddings "
            f"{config.model.max_position_embeddings:,}; raise that, or take shorter sequences."
        )
    refuse_several_tokenizers(tokenizers_of_phase("start", config.start) | tokenizers_of(config.caches))
    _refuse_larger_vocabularies(config)
    before = _config_before(config) or config
    for field in ("packing", "sequence_length") if config.restore in KEEP_THE_DATA_POSITION else ():
        old, new = getattr(before, field), getattr(config, field)
        if old != new:
            meant = dict.fromkeys((*config.acknowledge, field, "restore"))
            raise RefusedConfigError(
                f"{field} changes from {old!r} to {new!r}, and the data position counts rows of the old one; start the "
                f"data afresh, or keep the {field}.",
                {"restore": "weights_and_optimizer", "acknowledge": json.dumps(tuple(meant))},
            )
    _refuse_jumps(config)


def refuse_larger_vocabulary(source: str, num_ids: int, vocab_size: int) -> None:
    """Raises where a source has ids that the model has no row for: their embeddings would be NaN."""
    if num_ids > vocab_size:
        raise ValueError(
            f"model.vocab_size is {vocab_size:,}, and the tokenizer of source {source!r} has {num_ids:,} ids; give the "
            f"model at least as many, or tokenize with another tokenizer."
        )


def _config_before(config: "TrainPhaseConfig") -> "TrainPhaseConfig | None":
    """Of the phase that this one starts from, while it is planned."""
    from steps.train_phase import TrainPhaseConfig

    return None if config.start is None else config.start.config_of(TrainPhaseConfig)


def _refuse_larger_vocabularies(config: "TrainPhaseConfig") -> None:
    """Of tokenizers that are to be trained; of others it shows when the caches are there."""
    from steps.tokenize import TokenizeConfig
    from steps.train_tokenizer import TrainTokenizerConfig

    for name, cache in config.caches.items():
        its = cache.config_of(TokenizeConfig)
        trained = None if its is None else its.tokenizer.config_of(TrainTokenizerConfig)
        refuse_larger_vocabulary(name, 0 if trained is None else trained.vocab_size, config.model.vocab_size)


def _refuse_jumps(config: "TrainPhaseConfig") -> None:
    """A phase that starts from a phase says which jumps are meant."""
    before = _config_before(config)
    if before is None:
        return
    if config.start is not None and config.start.milestone is not None:
        before = before.model_copy(update={"until_step": config.start.milestone})
    try:
        refuse_unacknowledged_changes("", before, config)
    except UnacknowledgedError as error:
        raise RefusedConfigError(str(error), {"acknowledge": json.dumps(error.fields)}) from None


def check_resources(config: "TrainPhaseConfig", resources: Resources) -> None:
    """What the machines decide: how the batch and the model divide over them, and which kernels run there.

    Raises:
        ValueError: something does not divide, or a kernel cannot run there, or not at the shape that a device gets.
    """
    shares = _mesh_of(config, resources).batch_parts
    if config.global_batch_size % shares:
        fewer = _cores_that_divide(config, resources) if isinstance(resources, Cpu) else None
        or_less = "" if fewer is None else f", or resources={fewer!r}"
        raise ValueError(
            f"global_batch_size is {config.global_batch_size:,}, which does not divide over the {shares:,} parts of "
            f"the mesh that take sequences ({resources}, model_parallel {config.model_parallel}, context_parallel "
            f"{config.context_parallel}); take a multiple of {shares:,}{or_less}."
        )
    sequences = config.global_batch_size // shares
    if sequences % config.num_microbatches:
        able = ", ".join(str(number) for number in range(1, sequences + 1) if sequences % number == 0)
        raise ValueError(
            f"num_microbatches is {config.num_microbatches}, and each part of the mesh takes {sequences:,} sequences "
            f"of a batch of {config.global_batch_size:,} ({resources}); take one of {able}."
        )
    if config.sequence_length % config.context_parallel:
        raise ValueError(
            f"sequence_length is {config.sequence_length:,}, which does not divide into context_parallel "
            f"{config.context_parallel} equal stretches; choose one that does."
        )
    tokens = sequences // config.num_microbatches * (config.sequence_length // config.context_parallel)
    if tokens % config.model_parallel:
        raise ValueError(
            f"each part of the mesh takes {tokens:,} tokens at a time ({resources}, num_microbatches "
            f"{config.num_microbatches}, context_parallel {config.context_parallel}), which do not divide over "
            f"model_parallel {config.model_parallel}; choose sizes that do."
        )
    try:
        shape = shape_on(
            resources,
            config.model,
            num_rows=config.global_batch_size,
            sequence_length=config.sequence_length,
            compute_dtype=config.compute_dtype,
            context_parallel=config.context_parallel,
            num_microbatches=config.num_microbatches,
        )
        refuse_kernels(shape, attention_kernel=config.attention_kernel, loss_kernel=config.loss_kernel)
    except ValueError as error:
        raise ValueError(f"on {resources}: {error}") from None


def mesh_on(
    resources: Resources,
    model: "LlamaConfig",
    *,
    replica_parallel: int,
    model_parallel: int = 1,
    context_parallel: int = 1,
) -> MeshShape:
    """How all devices of a step share the model.

    Raises:
        ValueError: they cannot.
    """
    try:
        lay = machines_of(resources).lay(replica=replica_parallel, model=model_parallel, context=context_parallel)
        model.refuse_undivided(copy_size=lay.shape.copy_size, model_axis=model_parallel)
    except ValueError as error:
        raise ValueError(f"on {resources}: {error}") from None
    return lay.shape


def shape_on(
    resources: Resources,
    model: "LlamaConfig",
    *,
    num_rows: int,
    sequence_length: int,
    compute_dtype: str,
    context_parallel: int = 1,
    num_microbatches: int = 1,
) -> "KernelShape":
    """What each device of all machines of a step would give its kernels."""
    from runtime.kernels.shape import KernelShape

    return KernelShape.of(
        *_devices(resources),
        model,
        num_devices=machines_of(resources).num_devices,
        num_rows=num_rows,
        sequence_length=sequence_length,
        compute_dtype=compute_dtype,
        context_parallel=context_parallel,
        num_microbatches=num_microbatches,
    )


def refuse_kernels(shape: "KernelShape", *, attention_kernel: str | None, loss_kernel: str | None = None) -> None:
    """Raises for kernels that cannot run on the machines, or not at the shape that a device gets of the rows."""
    if attention_kernel is None and loss_kernel is None:
        if shape.platform == "tpu":  # elsewhere the default is one that takes the shape, and a plan need not load JAX
            from runtime.kernels.block_sizes import generation_of, splash_blocks

            splash_blocks(
                generation_of(shape.device_kind),
                head_dim=shape.head_dim,
                num_rows=shape.stretch,
                item_bytes=shape.item_bytes,
            )
        return
    from runtime.kernels.choice import (
        LEAVE_IT_OUT,
        chosen_kernels,
        described_attention_blocks,
        described_loss_blocks,
    )

    kernels = chosen_kernels(shape, attention_kernel=attention_kernel, loss_kernel=loss_kernel)
    for asked, kernel, described in (
        (attention_kernel, kernels.attention, described_attention_blocks),
        (loss_kernel, kernels.loss, described_loss_blocks),
    ):
        try:
            described(kernel, shape)
        except ValueError as error:
            raise ValueError(f"{error}{'' if asked is None else LEAVE_IT_OUT}") from None


def _devices(resources: Resources) -> tuple[str, str]:
    """Platform and kind of the devices: as JAX calls them, a GPU as Ray does."""
    match resources:
        case Tpu():
            generation = slice_shape(resources.slice).generation
            return "tpu", f"TPU {'v5e' if generation == 'v5litepod' else generation}"
        case Gpu():
            return "gpu", resources.kind
        case Cpu():
            return "cpu", "cpu"


def machines_of(resources: Resources) -> Machines:
    """What a mesh is laid over, on all machines of a step."""
    hosts = resources.num_hosts
    match resources:
        case Tpu():
            sizes = tuple(int(size) for size in slice_shape(resources.slice).topology.split("x"))
            return Machines(sizes, resources.num_slices)
        case Gpu():
            return Machines((hosts * resources.count,), num_hosts=hosts)
        case Cpu():
            return Machines((hosts * resources.num_devices,), num_hosts=hosts, cores_hold_copies=True)


def _mesh_of(config: "TrainPhaseConfig", resources: Resources) -> MeshShape:
    return mesh_on(
        resources,
        config.model,
        replica_parallel=config.replica_parallel,
        model_parallel=config.model_parallel,
        context_parallel=config.context_parallel,
    )


def _cores_that_divide(config: "TrainPhaseConfig", resources: Cpu) -> Cpu | None:
    for num_cpus in range(resources.num_cpus, 0, -1):
        fewer = dataclasses.replace(resources, num_cpus=num_cpus)
        try:
            shares = _mesh_of(config, fewer).batch_parts
        except ValueError:
            continue
        if config.global_batch_size % shares == 0:
            return fewer
    return None
