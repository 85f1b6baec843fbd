"""Device check: a small program with known results, run on the devices of a mesh before a kernel is relied on.

Simulators and compilers prove a kernel elsewhere; only the devices of a run show what it does there.
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
    """Return the sum of `num_wrong(key)` over all devices of `mesh` on all hosts, each with its own key.

    `num_wrong` runs under `shard_map` and may use the axes of the mesh.
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
