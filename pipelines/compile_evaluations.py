"""Programs of evaluations on lm-eval's tasks, compiled for their machines by --dry-run --compile."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from marin_dag.graph.resources import Cpu
from marin_dag.graph.step import Step
from pipelines.machines import slice_of_step
from runtime.cost.chips import GIB, slice_of
from runtime.cost.request import DoesNotFit, Outcome, Request
from steps.lm_eval import LmEvalConfig, evaluated_bytes, evaluated_model, lm_eval
from steps.machine_checks import devices_on, evaluated_mesh


def evaluation_requests(steps: Iterable[Step[Any]]) -> dict[Request, list[str]]:
    """Return the largest programs of each evaluation whose model is known, with the names of the steps."""
    found: dict[Request, list[str]] = {}
    for step in steps:
        if step.kind is lm_eval and not isinstance(step.resources, Cpu) and evaluated_model(step.config) is not None:
            for request in _requests(step):
                found.setdefault(request, []).append(step.name)
    return found


def _requests(step: Step[Any]) -> Iterator[Request]:
    from runtime.evaluation.generation import CACHED_TOKENS, MOST_SLOTS, slots_and_capacity
    from runtime.evaluation.packing import row_length
    from runtime.kernels.attention_paged import cache_kernel_of

    config: LmEvalConfig = step.config
    model: Any = evaluated_model(config)
    devices, (name, num_slices) = devices_on(step.resources), slice_of_step(step)
    num_bytes = evaluated_bytes(config, model)
    shape = evaluated_mesh(step.resources, model, num_bytes)
    kernel, _ = cache_kernel_of(devices.platform, head_dim=model.head_dim, compute_dtype=config.compute_dtype)

    def request(step: Any, length: int, by_device: int, kernel: str) -> Request:
        return Request(
            step=step,
            slice=name,
            num_slices=num_slices,
            model=model,
            sequence_length=length,
            global_batch_size=by_device * devices.num_devices,
            num_averages=0,
            compute_dtype=config.compute_dtype,
            attention_kernel=kernel,
            loss_kernel="none",
            remat="none",
            replica_parallel=shape.replica // num_slices,
            stored_dtype="bfloat16" if num_bytes == 2 * model.num_parameters else "float32",
        )

    length = row_length(model.max_position_embeddings)
    yield request("score", length, max(1, config.tokens_per_batch // length), "chunked")
    if any(task.max_new_tokens for task in config.tasks):
        slots, capacity = slots_and_capacity(model.max_position_embeddings, MOST_SLOTS, MOST_SLOTS, CACHED_TOKENS)
        yield request("decode", capacity, slots, kernel)


def evaluation_lines(requests: dict[Request, list[str]], compile_: Callable[[Request, str], Outcome]) -> Iterator[str]:
    """Compile the programs; yield a paragraph for each."""
    for index, (request, users) in enumerate(requests.items()):
        outcome = compile_(request, f"evaluation {index + 1}/{len(requests)}")
        what = "packed requests" if request.step == "score" else "a token of each text"
        sharers = request.layout.shape.copy_size
        yield ""
        yield (
            f"{what}, {request.global_batch_size:,} x {request.sequence_length:,} tokens, "
            f"{request.slice}, {sharers} chip{'s' * (sharers > 1)} for each copy: {', '.join(users)}"
        )
        yield f"  kernels         attention {request.attention_kernel}"
        if isinstance(outcome, DoesNotFit):
            yield f"  does not fit    {outcome.message}; give the step more chips"
            continue
        peak, limit = outcome.peak_memory_in_bytes / GIB, slice_of(request.slice).generation.hbm_in_bytes / GIB
        yield (
            f"  memory a chip   {peak:.2f} GiB at its peak, of {limit:.2f} ({peak / limit:.0%}); compiled in "
            f"{outcome.compile_seconds:.0f} s"
        )
