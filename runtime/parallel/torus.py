"""Torus: how the axes that share a row or a layer are cut from a slice's own. No JAX: a plan asks, too."""

from collections.abc import Sequence


def cut_axis(sizes: Sequence[int], inner: int) -> int:
    """The axis of a torus of those sizes, in chips, that `inner` (model x context) is cut from: the last it divides.

    Raises:
        ValueError: it divides none.
    """
    divided = [axis for axis, size in enumerate(sizes) if size % inner == 0]
    if not divided:
        raise ValueError(
            f"model x context is {inner}, which divides no axis of a torus of {'x'.join(map(str, sizes))} chips; "
            "take sizes whose product does."
        )
    return divided[-1]
