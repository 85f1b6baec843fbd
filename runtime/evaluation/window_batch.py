"""The batch of an evaluation: how many windows its program takes at a time; what is compiled ahead is what runs."""

WINDOWS_PER_BATCH = 16
"""Unless there are more devices. A choice that decides nothing but speed: so many rows keep one device busy."""


def window_batch(num_windows: int, num_devices: int) -> int:
    """The smallest batch of at least `num_windows` that every device has an equal part of."""
    return -(-num_windows // num_devices) * num_devices
