"""Rematerialisation: which intermediate results of a layer the backward pass finds saved.

JAX's own policies do not see into a kernel's `custom_vjp` or into a gather with a name inside, so the policies here
walk their jaxprs.
"""

from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Primitive

from runtime.kernels import attention_chunked

Remat = Literal["none", "dots", "full"]
"""Saved: everything, products with weights and fused attention, or the input of each layer."""
REMATS: tuple[str, ...] = get_args(Remat)
GATHERED = "gathered_parameters"
"""Name of whole parameters, given inside `parallel.collectives.gather`, which a policy sees as one operation."""
_KERNELS = ("pallas_call", "mpmd_map")  # the second is Pallas's name for a kernel of Mosaic GPU
_PROGRAMS = {"custom_vjp_call": "call_jaxpr", "remat_opt": "fwd_jaxpr"}  # operations and their programs


def check_remat(remat: str) -> None:
    """Raise ValueError for an unknown policy."""
    if remat not in REMATS:
        raise ValueError(f"remat is {remat!r}; use one of {', '.join(REMATS)}.")


def rematerialized(layer: Callable, remat: Remat, *, regather: bool) -> Callable:
    """Return the layer under a policy; with `regather`, gathered parameters are gathered again in any case."""
    check_remat(remat)
    if remat == "full":
        return jax.checkpoint(layer, prevent_cse=False)
    if remat == "dots":
        return jax.checkpoint(layer, policy=_products_and_kernels, prevent_cse=False)
    return jax.checkpoint(layer, policy=_all_but_gathered, prevent_cse=False) if regather else layer


def _all_but_gathered(primitive: Primitive, *arguments: Any, **parameters: Any) -> bool:
    # A gather is refused as a whole: if only the name inside were refused, its argument would be saved.
    program = _PROGRAMS.get(primitive.name)
    return program is None or not _has(parameters[program].jaxpr, _is_named_gathered)


def _is_named_gathered(equation: JaxprEqn) -> bool:
    return equation.primitive.name == "name" and equation.params["name"] == GATHERED


def _products_and_kernels(primitive: Primitive, *arguments: Any, **parameters: Any) -> bool:
    # What attention names or a kernel returns takes no more memory than a product.
    if primitive.name == "name":
        return bool(parameters["name"] == attention_chunked.KEPT)
    if primitive.name in _PROGRAMS:
        return _has(parameters[_PROGRAMS[primitive.name]].jaxpr, _is_kernel)
    is_product = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    return primitive.name in _KERNELS or bool(is_product(primitive, *arguments, **parameters))


def _is_kernel(equation: JaxprEqn) -> bool:
    return equation.primitive.name in _KERNELS


def _has(program: Jaxpr, is_wanted: Callable[[JaxprEqn], bool]) -> bool:
    return any(
        is_wanted(equation)
        or any(_has(part.jaxpr, is_wanted) for part in equation.params.values() if isinstance(part, ClosedJaxpr))
        for equation in program.eqns
    )
