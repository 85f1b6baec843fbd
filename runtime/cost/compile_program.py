"""Compile one step for machines that are not here, and print the outcome; run by `compiler` in a process of its own.

`python -m runtime.cost.compile_program REQUEST` prints one line of JSON. libtpu reads its environment when it is
loaded, so `compiler.ENVIRONMENT` must be set before.
"""

import importlib.metadata
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from runtime.cost.chips import slice_of
from runtime.cost.collectives import collectives
from runtime.cost.compiler import packages_of
from runtime.cost.described_devices import as_default, described_devices
from runtime.cost.products import Products
from runtime.cost.program import Program
from runtime.cost.request import REQUEST, SCORING_STEPS, Compiled, CompileRequest, to_json
from runtime.optim.optimizer import chosen
from runtime.parallel.mesh import TOKEN_AXES, make_mesh
from runtime.same_fields import filled_from
from runtime.training.eval_step import eval_program
from runtime.training.state import placed_shapes
from runtime.training.train_step import NUMBERS, ProgramOptions, train_program

WRITTEN_BY_THE_COMPILER = ("v5p", "v6e")
"""Generations whose compiler writes the text to a folder: jaxlib 0.10 cannot read the scheduled program back
("async-update instruction should have 1 operands but sees 3")."""


def mesh_of(request: CompileRequest) -> Mesh:
    """Return the mesh of the real machines, with the compiler's devices in their places."""
    devices = described_devices(slice_of(request.slice), num_slices=request.num_slices)
    return make_mesh(request.layout.shape, devices)


def arguments_of(request: CompileRequest, mesh: Mesh) -> tuple[Any, ...]:
    """Return shapes, dtypes and places of the program's arguments."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    shape = request.global_batch_size, request.sequence_length
    tokens = jax.ShapeDtypeStruct(shape, np.int32, sharding=NamedSharding(mesh, TOKEN_AXES))
    frequencies = jax.ShapeDtypeStruct((request.model.head_dim // 2,), np.float32, sharding=everywhere)
    averages = tuple(f"average{index}" for index in range(request.num_averages))
    state = placed_shapes(request.model, mesh, averages, request.skip_window_steps, chosen(request.optimizer))
    if request.step == "eval":
        return state.params, tokens, tokens, frequencies
    numbers = jax.ShapeDtypeStruct((len(NUMBERS) + request.num_averages,), np.float32, sharding=everywhere)
    return state, tokens, tokens, numbers, frequencies


def compiled_program(request: CompileRequest, mesh: Mesh, *, text_folder: str | None = None) -> Any:
    """Return the compiled step; write its scheduled text below `text_folder`, where there is one."""
    program: Any
    if request.step in SCORING_STEPS:
        # Imported here: other programs do not depend on how an evaluation is run.
        from runtime.evaluation.described_programs import described_program

        program, arguments = described_program(
            request.step,
            request.model,
            mesh,
            rows=request.global_batch_size,
            length=request.sequence_length,
            compute_dtype=request.compute_dtype,
            stored_dtype=request.stored_dtype,
        )
        return _compiled(program, arguments, mesh, text_folder)
    if request.step == "eval":
        program = eval_program(
            request.model,
            mesh,
            attention_kernel=request.attention_kernel,
            loss_kernel=request.loss_kernel,
            compute_dtype=request.compute_dtype,
        )
    else:
        options = filled_from(request, ProgramOptions, optimizer=chosen(request.optimizer))
        program = train_program(request.model, mesh, options, donate=True)
    return _compiled(program, arguments_of(request, mesh), mesh, text_folder)


def _compiled(program: Any, arguments: tuple[Any, ...], mesh: Mesh, text_folder: str | None) -> Any:
    options = None if text_folder is None else {"xla_dump_to": text_folder, "xla_dump_hlo_as_text": True}
    with as_default(mesh):
        lowered = program.lower(*arguments)
    return lowered.compile(compiler_options=options)


def compile_(request: CompileRequest) -> Compiled:
    """Compile the request's program; return its memory, and its collectives by the schedule."""
    mesh = mesh_of(request)
    is_written = slice_of(request.slice).generation.name in WRITTEN_BY_THE_COMPILER
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        program = compiled_program(request, mesh, text_folder=folder if is_written else None)
        seconds = time.monotonic() - begin
        try:
            text = program.as_text()
        except jax.errors.JaxRuntimeError:
            if not is_written:
                raise
            (path,) = Path(folder).glob("*.jit_*.after_optimizations.txt")
            text = path.read_text()
    memory, read = program.memory_analysis(), Program.read(text)
    return Compiled(
        peak_memory_in_bytes=memory.peak_memory_in_bytes,
        argument_size_in_bytes=memory.argument_size_in_bytes,
        collectives=tuple(collectives(text, dict(mesh.shape))),
        flops=Products(read, of_branches=max).flops_within(read.entry),
        compile_seconds=round(seconds, 1),
        host_memory_in_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        versions={name: importlib.metadata.version(name) for name in packages_of(request)},
    )


if __name__ == "__main__":
    print(to_json(compile_(REQUEST.validate_json(sys.argv[1]))))
