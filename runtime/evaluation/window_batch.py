"""Window batch: how many windows an evaluation program takes at a time, compiled ahead and at run time."""

WINDOWS_PER_BATCH = 16
"""Fewest windows of a batch: enough rows to keep one device busy."""


def window_batch(num_windows: int, num_devices: int) -> int:
    """Return the smallest batch of at least `num_windows` that divides over the devices."""
    return -(-num_windows // num_devices) * num_devices
