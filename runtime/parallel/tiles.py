"""Tile sizes of the TPU's collectives."""

# A dimension that is not scattered has whole tiles of 8 x 128, or the compiler makes an all-reduce of everything.
WHOLE_TILES = 1024


def padded_to_tiles(size: int) -> int:
    """Return the next multiple of `WHOLE_TILES` (129,024 for a vocabulary of 128,256); smaller sizes stay as they
    are."""
    return size if size < WHOLE_TILES else size + -size % WHOLE_TILES
