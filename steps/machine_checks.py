"""Machine checks of a plan: how batch and model divide over a step's devices, which kernels run there, and the cost."""

import dataclasses
import math

from marin_dag.graph.cost import Cost
from marin_dag.graph.resources import Cpu, Gpu, Resources, Tpu, slice_shape
from runtime.cost.chips import GENERATIONS, GPUS, REACHED_SHARE_OF_PEAK
from runtime.evaluation.window_batch import WINDOWS_PER_BATCH, window_batch
from runtime.kernels.kernel_shape import Devices, KernelShape
from runtime.model.config import ModelConfig
from runtime.optim.optimizer import chosen
from runtime.parallel.mesh_shape import Machines, MeshLayout, MeshShape
from steps.phase_config import TrainPhaseConfig


def check_resources(config: TrainPhaseConfig, resources: Resources) -> None:
    """Raise ValueError where batch or model do not divide over the machines, or a kernel cannot run there."""
    mesh = _mesh_of(config, resources)
    try:
        mesh.check_batch(config.global_batch_size, config.sequence_length, config.num_microbatches)
    except ValueError as error:
        fewer = _cores_that_divide(config, resources) if isinstance(resources, Cpu) else None
        or_less = "" if fewer is None or fewer == resources else f" Or resources={fewer!r}."
        raise ValueError(f"on {resources}: {error}{or_less}") from None
    devices = devices_on(resources, context_parallel=config.context_parallel)
    try:
        shape = phase_shape(config, devices)
        refuse_kernels(shape, attention_kernel=config.attention_kernel, loss_kernel=config.loss_kernel)
        if config.scatter_kernel != "xla":
            _check_scatter_kernel(config, resources, shape)
    except ValueError as error:
        raise ValueError(f"on {resources}: {error}") from None
    if config.validate_every_steps:
        _check_validation_kernels(config, resources, devices, mesh.batch_parts)


def refuse_several_hosts(_: object, resources: Resources) -> None:
    """Raise ValueError for more than one host, of a step that one process does: each would write the same files."""
    if resources.num_hosts > 1:
        raise ValueError(
            f"resources are {resources}, {resources.num_hosts} hosts, and each would do the whole step and write the "
            'same files; give it one machine, such as Cpu(2) or Tpu("v6e-8").'
        )


def mesh_on(
    resources: Resources,
    model: ModelConfig,
    *,
    replica_parallel: int,
    model_parallel: int = 1,
    context_parallel: int = 1,
) -> MeshShape:
    """Return the mesh of a step's devices; raise ValueError where they cannot share the model so."""
    try:
        layout = machines_of(resources).layout(replica=replica_parallel, model=model_parallel, context=context_parallel)
        model.check_divides(copy_size=layout.shape.copy_size, model_axis=model_parallel)
    except ValueError as error:
        raise ValueError(f"on {resources}: {error}") from None
    return layout.shape


def evaluated_mesh(resources: Resources, model: ModelConfig, num_bytes: int) -> MeshShape:
    """Return the mesh of a scored model (`PlacedModel`); raise ValueError where the devices cannot share the model."""
    chip = (GENERATIONS | GPUS).get(devices_on(resources).kind.removeprefix("TPU "))
    shape = machines_of(resources).layout_with_copies(num_bytes, None if chip is None else chip.hbm_in_bytes).shape
    try:
        model.check_divides(copy_size=shape.copy_size, model_axis=1)
    except ValueError as error:
        raise ValueError(f"on {resources}: {error}") from None
    return shape


def devices_on(resources: Resources, *, context_parallel: int = 1) -> Devices:
    """Return all devices of a step, their kind by JAX's name, or for a GPU by Ray's."""
    match resources:
        case Tpu():
            generation = slice_shape(resources.slice).generation
            platform, kind = "tpu", f"TPU {'v5e' if generation == 'v5litepod' else generation}"
        case Gpu():
            platform, kind = "gpu", resources.kind
        case Cpu():
            platform, kind = "cpu", "cpu"
    num_devices = machines_of(resources).num_devices
    return Devices(platform=platform, kind=kind, num_devices=num_devices, context_parallel=context_parallel)


def expected_flops(resources: Resources, compute_dtype: str) -> float:
    """Return the FLOPs a second of a model's products that a chip is planned with; infinite for unknown devices."""
    chip = (GENERATIONS | GPUS).get(devices_on(resources).kind.removeprefix("TPU "))
    return math.inf if chip is None else chip.peak_flops(compute_dtype) * REACHED_SHARE_OF_PEAK[chip.platform]


def phase_cost(config: TrainPhaseConfig, resources: Resources) -> Cost:
    """Return the cost of a phase; bytes written exclude temporary checkpoints that training deletes."""
    begin, until, every = config.begin_step, config.until_step, config.publish_every_steps
    tokens = (until - begin) * config.global_batch_size * config.sequence_length
    optimizer, num_parameters = chosen(config.optimizer), config.model.num_parameters
    state_size = (1 + len(config.averages)) * num_parameters + optimizer.state_size(config.model)
    num_published = 1 + (max(until - 1, 0) // every - begin // every if every else 0)
    num_good = max(until - begin - 1, 0) // config.keep_good_every_steps
    update = optimizer.update_flops(config.model, _layout_of(config, resources).copy_axes)
    updates = (until - begin) * update * machines_of(resources).num_devices
    flops = tokens * config.model.flops_per_token(config.sequence_length) + updates
    return Cost(
        tokens=tokens,
        flops=flops,
        chip_hours=flops / expected_flops(resources, config.compute_dtype) / 3_600,
        bytes_written=4 * state_size * (num_published + num_good),
    )


def phase_shape(config: TrainPhaseConfig, devices: Devices) -> KernelShape:
    """Return the kernel shape of a training phase, for its plan and its run."""
    return KernelShape.of(
        devices,
        config.model,
        num_rows=config.global_batch_size,
        sequence_length=config.sequence_length,
        compute_dtype=config.compute_dtype,
        num_microbatches=config.num_microbatches,
    )


def refuse_kernels(shape: KernelShape, *, attention_kernel: str | None, loss_kernel: str | None) -> None:
    """Raise ValueError for kernels that cannot run on the machines, or not at a device's shape."""
    if attention_kernel is None and loss_kernel is None:
        if shape.platform == "tpu":  # elsewhere the default takes every shape, and a plan need not load JAX
            from runtime.kernels.block_sizes import splash_blocks

            splash_blocks(
                shape.device_kind,
                head_dim=shape.head_dim,
                num_rows=shape.stretch,
                item_bytes=shape.item_bytes,
            )
        return
    from runtime.training.kernel_choice import chosen_kernels

    chosen_kernels(shape, attention_kernel=attention_kernel, loss_kernel=loss_kernel)


def _check_validation_kernels(config: TrainPhaseConfig, resources: Resources, devices: Devices, num_parts: int) -> None:
    """Check the kernels at the shape of held-out text, a batch of its own over the run's mesh (steps/held_out.py)."""
    shape = KernelShape.of(
        devices,
        config.model,
        num_rows=window_batch(WINDOWS_PER_BATCH, num_parts),
        sequence_length=config.sequence_length,
        compute_dtype=config.compute_dtype,
    )
    try:
        refuse_kernels(shape, attention_kernel=config.attention_kernel, loss_kernel=config.loss_kernel)
    except ValueError as error:
        raise ValueError(
            f"on {resources}, for held-out text during training: {error} Or measure it in a step of its own: "
            "validate_every_steps=0."
        ) from None


def _check_scatter_kernel(config: TrainPhaseConfig, resources: Resources, shape: KernelShape) -> None:
    from runtime.kernels.scatter_blocks import check_scatter_kernel, layer_scatter_blocks

    check_scatter_kernel(shape.platform, config.scatter_kernel)
    layout = _layout_of(config, resources)
    layer_scatter_blocks(
        shape.device_kind,
        config.model,
        num_devices=next((size for size in layout.data if size > 1), 1),
        num_tokens=shape.num_tokens * config.model_parallel,
        model_parallel=config.model_parallel,
        item_bytes=shape.item_bytes,
        sum_bytes=2 if config.reduce_dtype == "bfloat16" else 4,
    )


def machines_of(resources: Resources) -> Machines:
    """Return all machines of a step, for a mesh."""
    hosts = resources.num_hosts
    match resources:
        case Tpu():
            sizes = tuple(int(size) for size in slice_shape(resources.slice).topology.split("x"))
            return Machines(sizes, resources.num_slices)
        case Gpu():
            return Machines((hosts * resources.count,), num_hosts=hosts)
        case Cpu():
            return Machines((hosts * resources.num_devices,), num_hosts=hosts, cores_hold_copies=True)


def _layout_of(config: TrainPhaseConfig, resources: Resources) -> MeshLayout:
    return machines_of(resources).layout(
        replica=config.replica_parallel, model=config.model_parallel, context=config.context_parallel
    )


def _mesh_of(config: TrainPhaseConfig, resources: Resources) -> MeshShape:
    return mesh_on(
        resources,
        config.model,
        replica_parallel=config.replica_parallel,
        model_parallel=config.model_parallel,
        context_parallel=config.context_parallel,
    )


def _cores_that_divide(config: TrainPhaseConfig, resources: Cpu) -> Cpu | None:
    for num_cpus in range(resources.num_cpus, 0, -1):
        fewer = dataclasses.replace(resources, num_cpus=num_cpus)
        try:
            shares = _mesh_of(config, fewer).batch_parts
        except ValueError:
            continue
        if config.global_batch_size % shares == 0:
            return fewer
    return None
