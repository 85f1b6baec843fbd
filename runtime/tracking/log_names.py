"""Names of event logs: each host of an attempt writes one, and hosts in step write down the same, once each.

A log in a bucket is in parts: `attempt.jsonl`, `attempt.part0002.jsonl` and so on.
"""

import re

_PART = re.compile(r"(?:\.part(\d+))?\.jsonl$")
_NOT_A_FIRST_HOST_S_BEGINNING = re.compile(r"\.(host[1-9]\d*|part\d+)\.jsonl$")


def log_name(attempt: str, host_index: int) -> str:
    """Name of the log that this host writes; of its first part, where it is in parts."""
    return f"{attempt}.jsonl" if host_index == 0 else f"{attempt}.host{host_index}.jsonl"


def next_part(path: str) -> str:
    """Where a log that is in parts goes on."""
    (number,) = _PART.findall(path)
    return _PART.sub(f".part{int(number or 1) + 1:04d}.jsonl", path)


def is_of_first_host(path: str) -> bool:
    """Whether the log of the first host begins here, which counts where each attempt counts once."""
    return _NOT_A_FIRST_HOST_S_BEGINNING.search(path) is None
