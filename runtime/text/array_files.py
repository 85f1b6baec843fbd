"""Arrays as .npy files in any store, without pickles."""

import fsspec
import numpy as np


def write_array(path: str, values: np.ndarray) -> None:
    with fsspec.open(path, "wb", auto_mkdir=True) as file:
        np.save(file, values, allow_pickle=False)


def read_array(path: str) -> np.ndarray:
    """Read what `write_array` wrote."""
    with fsspec.open(path, "rb") as file:
        return np.load(file, allow_pickle=False)
