"""Compiled programs kept on disk, so that the second process with the same step compiles nothing.

The key is JAX's: the program, the compiler and its options, the devices. A program that comes from the cache is the
same machine code as a fresh one, so it gives the same bits.
"""

import pathlib

import jax
from jax.experimental.compilation_cache import compilation_cache


def use_compilation_cache(folder: str | pathlib.Path) -> None:
    """Keeps every program that this process compiles from now on in `folder`, and takes from there what it has.

    For the whole process, so it is for the program that owns the process to call, before the first step is built.
    """
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # By default JAX keeps only what took a second or more; a laptop run is made of many smaller programs.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # a process that has compiled before has already settled on having none
