"""Machine checks of a plan: how batch and model divide over a step's devices, which kernels run there, and the cost."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

from marin_dag.graph.cost import Cost
from marin_dag.graph.resources import Cpu, Gpu, Resources, Tpu, slice_shape
from runtime.cost.chips import GENERATIONS, GIB, GPUS, REACHED_SHARE_OF_PEAK
from runtime.evaluation.device_memory import DeviceRoom, device_room
from runtime.evaluation.window_batch import WINDOWS_PER_BATCH, window_batch
from runtime.kernels.kernel_shape import Devices, KernelShape
from runtime.model.config import ModelConfig
from runtime.optim.optimizer import chosen
from runtime.parallel.mesh_shape import Machines, MeshLayout, MeshShape
from steps.phase_config import TrainPhaseConfig


def check_resources(config: TrainPhaseConfig, resources: Resources) -> None:
    """Raise ValueError where batch or model do not divide over the machines, or a kernel cannot run there."""
    devices = devices_on(resources, context_parallel=config.context_parallel)
    kernels = {"attention_kernel": config.attention_kernel, "loss_kernel": config.loss_kernel}
    with _naming(resources):
        layout = _layout_of(config, resources)
        config.model.check_divides(copy_size=layout.shape.copy_size, model_axis=config.model_parallel)
        layout.shape.check_batch(config.global_batch_size, config.sequence_length, config.num_microbatches)
        shape = kernel_shape_of(config, devices)
        check_kernels_on_machines(shape, **kernels)
        if config.scatter_kernel != "xla":
            _check_scatter_kernel(config, layout, shape)
    if config.validate_every_steps:
        # Held-out text has batches of its own over the run's mesh (steps/held_out.py).
        num_rows = window_batch(WINDOWS_PER_BATCH, layout.shape.batch_parts)
        with _naming(resources, "Or measure held-out text in a step of its own: validate_every_steps=0."):
            check_kernels_on_machines(kernel_shape_of(config, devices, num_rows=num_rows), **kernels)


@contextlib.contextmanager
def _naming(resources: Resources, cure: str = "") -> Iterator[None]:
    """Add the machines and a further cure to the message of a ValueError."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"on {resources}: {error}{' ' * bool(cure)}{cure}") from None


def check_one_host(_: object, resources: Resources) -> None:
    """Raise ValueError for more than one host: a step without work to share would write the same files on each."""
    if resources.num_hosts > 1:
        raise ValueError(
            f"resources are {resources}, {resources.num_hosts} hosts, and each would do the whole step and write the "
            'same files; give it one machine, such as Cpu(2) or Tpu("v6e-8").'
        )


def check_evaluation(phase: Any, config: Any, resources: Resources) -> None:
    """Raise ValueError where the machines cannot share the model of a phase or import as `config` asks, or a kernel
    cannot run on them."""
    with _naming(resources):
        mesh = machines_of(resources).layout(replica=config.replica_parallel).shape
        phase.model.check_divides(copy_size=mesh.copy_size, model_axis=1)
    num_rows = window_batch(config.windows_per_batch, mesh.batch_parts)
    shape = kernel_shape_of(phase, devices_on(resources), num_rows=num_rows, compute_dtype=config.compute_dtype)
    with _naming(resources, "Or use another kernel: attention_kernel='chunked'."):
        check_kernels_on_machines(shape, attention_kernel=config.attention_kernel, loss_kernel=config.loss_kernel)


def evaluated_mesh(resources: Resources, model: ModelConfig, num_bytes: int) -> MeshShape:
    """Return the mesh of a scored model (`PlacedModel`); raise ValueError where the devices cannot share the model."""
    memory = memory_of(resources)
    shape = machines_of(resources).layout_with_copies(num_bytes, memory).shape
    with _naming(resources):
        model.check_divides(copy_size=shape.copy_size, model_axis=1)
        if memory is not None and num_bytes > memory * shape.copy_size:
            share = f"{num_bytes / shape.copy_size / GIB:.1f} GiB of each of {shape.copy_size} devices"
            raise ValueError(
                f"the parameters take {share}, which have {memory / GIB:.1f} GiB; use more devices, or an export of "
                "dtype bfloat16."
            )
    return shape


def evaluation_room(
    resources: Resources,
    model: ModelConfig,
    num_bytes: int,
    compute_dtype: str,
    *,
    longest_text: int,
    tokens_per_batch: int,
) -> DeviceRoom:
    """Return the tokens that fit beside a scored model.

    Raise ValueError where the devices cannot share the model, or cannot hold `longest_text` new tokens or a batch.
    """
    devices_of_a_copy = evaluated_mesh(resources, model, num_bytes).copy_size
    with _naming(resources):
        return device_room(
            model,
            parameter_bytes=num_bytes,
            devices_of_a_copy=devices_of_a_copy,
            memory_in_bytes=memory_of(resources),
            compute_dtype=compute_dtype,
            longest_text=longest_text,
            tokens_per_batch=tokens_per_batch,
        )


def memory_of(resources: Resources) -> int | None:
    """Return the memory of one accelerator that a program gets; None for CPUs and unknown accelerators."""
    chip = (GENERATIONS | GPUS).get(devices_on(resources).kind.removeprefix("TPU "))
    return None if chip is None else chip.hbm_in_bytes


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
        {
            "tokens": tokens,
            "FLOPs": flops,
            "chip-hours": flops / expected_flops(resources, config.compute_dtype) / 3_600,
        },
        bytes_written=4 * state_size * (num_published + num_good),
    )


def kernel_shape_of(
    phase: Any, devices: Devices, *, num_rows: int | None = None, compute_dtype: str | None = None
) -> KernelShape:
    """Return the kernel shape of a phase's training step, or of an evaluation of `num_rows` of a phase or import."""
    return KernelShape.of(
        devices,
        phase.model,
        num_rows=phase.global_batch_size if num_rows is None else num_rows,
        sequence_length=phase.sequence_length,
        compute_dtype=compute_dtype or phase.compute_dtype,
        num_microbatches=phase.num_microbatches if num_rows is None else 1,
    )


def check_kernels_on_machines(shape: KernelShape, *, attention_kernel: str | None, loss_kernel: str | None) -> None:
    """Raise ValueError for kernels that cannot run on the machines, or not at a device's shape."""
    if attention_kernel is None and loss_kernel is None:
        if shape.platform == "tpu":  # elsewhere the default takes every shape, and a plan need not load JAX
            from runtime.kernels.block_sizes import splash_blocks

            splash_blocks(
                shape.device_kind,
                head_dim=shape.head_dim,
                num_rows=shape.query_length,
                item_bytes=shape.item_bytes,
            )
        return
    from runtime.training.kernel_choice import chosen_kernels

    chosen_kernels(shape, attention_kernel=attention_kernel, loss_kernel=loss_kernel)


def _check_scatter_kernel(config: TrainPhaseConfig, layout: MeshLayout, shape: KernelShape) -> None:
    from runtime.kernels.scatter_blocks import check_scatter_kernel, layer_scatter_blocks

    check_scatter_kernel(shape.platform, config.scatter_kernel)
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
