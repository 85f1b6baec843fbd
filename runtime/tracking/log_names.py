"""Names of event logs: each host of an attempt writes one, and hosts in step write down the same, once each."""

import re

OF_ANOTHER_HOST = re.compile(r"\.host[1-9]\d*\.jsonl$")


def log_name(attempt: str, host_index: int) -> str:
    """Name of the log that this host writes."""
    return f"{attempt}.jsonl" if host_index == 0 else f"{attempt}.host{host_index}.jsonl"


def is_of_first_host(path: str) -> bool:
    """Whether this is the log of the first host, which counts where each attempt counts once."""
    return OF_ANOTHER_HOST.search(path) is None
