"""Record key: the digest of a step, followed by `@MILESTONE` for one milestone or part of its output."""


def key_of(digest: str, milestone: int | None) -> str:
    return digest if milestone is None else f"{digest}@{milestone}"


def digest_of(key: str) -> str:
    return key.partition("@")[0]


def short_key(key: str) -> str:
    """Return a key with eight digits of the digest, for readers."""
    digest, at, milestone = key.partition("@")
    return f"{digest[:8]}{at}{milestone}"


def milestone_of(key: str) -> int | None:
    """Return the milestone of a key; None for the key of a whole output."""
    milestone = key.partition("@")[2]
    return int(milestone) if milestone else None
