"""What kernels are called in a compiled program, by which its readers in `cost` find them. It loads no JAX.

Names that JAX gives its own kernels may change with it: the tests that run the real compilers miss them then.
"""

SPLASH = ("splash_mha_fwd", "splash_mha_dkv")
"""JAX's, of `splash`: forward, and all gradients."""
TRITON = ("mha_forward", "mha_backward")
"""JAX's, of `pallas_gpu`."""
TOKAMAX = "tokamax:"
"""tokamax's, in the scope of its operations."""
SCATTERED = "scattered_product_"
"""Ours, before the mesh axis that it sends along."""
RATIOS = "cross_entropy_ratios"
"""Ours, of the loss kernel `mosaic_gpu`."""
RARELY = "rarely"
"""The scope of a conditional of which no branch counts: it is seldom the one that computes."""
