"""Runs of equal values in sorted columns."""

import numpy as np


def begins_run(*columns: np.ndarray) -> np.ndarray:
    """Return bool: whether each place differs from the place before it in one of the columns."""
    begins = np.ones(len(columns[0]), bool)
    begins[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return begins


def run_starts(*columns: np.ndarray) -> np.ndarray:
    """Return for each place the first place of its run of equal values."""
    return np.maximum.accumulate(np.where(begins_run(*columns), np.arange(len(columns[0])), 0))
