"""Options of the TPU compiler, by generation: each is here because the scheduled program showed its effect."""

from jax.sharding import Mesh

_BY_DEVICE_KIND = {
    # Without it every gather of a layer holds the chip up. v5e carries gathers inside its products by itself; for every
    # other generation its compiler refuses to ("not supported/recommended on platforms other than TPU v5e ... incorrect
    # results, hang"). On v5p and v6e every gather of the compiled steps is exposed: docs/tpu.md says how much that is.
    "TPU v4": {"xla_enable_async_all_gather": "true"},
}


def compiler_options(mesh: Mesh) -> dict[str, str] | None:
    """What to compile the programs of `mesh` with, beyond the defaults."""
    return _BY_DEVICE_KIND.get(str(mesh.devices.flat[0].device_kind))
