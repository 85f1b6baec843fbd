"""Eight simulated devices: must be set before JAX makes its backend."""

import jax

jax.config.update("jax_num_cpu_devices", 8)
