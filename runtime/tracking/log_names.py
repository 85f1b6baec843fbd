"""Names of event logs: each host of an attempt writes one, and hosts in step write the same events.

A log in a bucket is in parts: `attempt.jsonl`, `attempt.part0002.jsonl` and so on.
"""

import re

_PART = re.compile(r"(?:\.part(\d+))?\.jsonl$")
_OTHER_HOST_OR_PART = re.compile(r"\.(host[1-9]\d*|part\d+)\.jsonl$")


def log_name(attempt: str, host_index: int) -> str:
    """Return the name of a host's log, or of its first part."""
    return f"{attempt}.jsonl" if host_index == 0 else f"{attempt}.host{host_index}.jsonl"


def next_part(path: str) -> str:
    """Return the part that follows `path`."""
    (number,) = _PART.findall(path)
    return _PART.sub(f".part{int(number or 1) + 1:04d}.jsonl", path)


def is_of_first_host(path: str) -> bool:
    """Return whether `path` is the first part of the first host's log; there is one for each attempt."""
    return _OTHER_HOST_OR_PART.search(path) is None
