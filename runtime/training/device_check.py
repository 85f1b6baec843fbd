"""Device check: before a run counts on a kernel that finds its own way on a machine, a small program of known results.

A kernel is proven by simulators and compilers where this was written; what it does on the very devices of a run they
only show themselves.
"""

import functools
from collections.abc import Callable

import jax
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Int32, Key

from runtime.parallel.compiler_options import compiler_options
from runtime.parallel.hosts import whole


def num_wrong_on(mesh: Mesh, num_wrong: Callable[[Key[Array, ""]], Int32[Array, ""]]) -> int:
    """What `num_wrong` counts on every device of `mesh`, of all hosts at once, each given a key of its own.

    It runs under `shard_map`, and may speak along the axes of the mesh.
    """
    program = jax.shard_map(
        functools.partial(_sum_of_all, num_wrong=num_wrong, axes=mesh.axis_names),
        mesh=mesh,
        in_specs=(),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    return int(whole(jax.jit(program, compiler_options=compiler_options(mesh))()))


def _sum_of_all(*, num_wrong: Callable[[Array], Array], axes: tuple[str, ...]) -> Int32[Array, ""]:
    own_key = jax.random.fold_in(jax.random.key(0), lax.axis_index(axes))
    return lax.psum(num_wrong(own_key), axes)
