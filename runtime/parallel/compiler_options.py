"""Options of the TPU compiler, by generation: each is here because the scheduled program showed its effect."""

from jax.sharding import Mesh

_BY_DEVICE_KIND = {
    # Without it every gather of a layer holds the chip up; v5e and later carry gathers inside their products by
    # themselves, and v4's compiler refuses to ("continuation fusion ... may lead to incorrect results").
    "TPU v4": {"xla_enable_async_all_gather": "true"},
}


def compiler_options(mesh: Mesh) -> dict[str, str] | None:
    """What to compile the programs of `mesh` with, beyond the defaults."""
    return _BY_DEVICE_KIND.get(str(mesh.devices.flat[0].device_kind))
