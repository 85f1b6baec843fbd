"""Quantities as a person reads them."""

UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def in_bytes(size: float) -> str:
    """A size in decimal units, as disks and buckets are sold."""
    for unit in UNITS[:-1]:
        if size < 1000:
            return f"{size:.4g} {unit}"
        size /= 1000
    return f"{size:.4g} {UNITS[-1]}"
