"""Names of kernels in a compiled program, by which `cost` finds them. No JAX.

JAX may rename its own kernels; the tests that run the real compilers then fail.
"""

SPLASH = ("splash_mha_fwd", "splash_mha_dkv")
"""JAX's kernels of `splash`: forward, and all gradients."""
TOKAMAX = "tokamax:"
"""Scope of tokamax's operations."""
SCATTERED = "scattered_product_"
"""Our kernel of scattered gradients, before the mesh axis that it sends along."""
RATIOS = "cross_entropy_ratios"
"""Our kernel of the loss kernel `mosaic_gpu`."""
RARELY = "rarely"
"""Scope of a conditional that seldom computes, so that no branch counts."""
