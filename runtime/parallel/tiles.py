"""Sizes that the TPU's collectives take whole."""

# Of a dimension that is not scattered: whole tiles of 8 x 128, or the compiler replaces the reduce-scatter by an
# all-reduce of everything.
WHOLE_TILES = 1024


def padded_to_tiles(size: int) -> int:
    """The next multiple of `WHOLE_TILES` (129,024 for a vocabulary of 128,256); smaller sizes stay as they are."""
    return size if size < WHOLE_TILES else size + -size % WHOLE_TILES
