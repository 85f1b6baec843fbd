"""Cache folder: files on a user's machine that can be made again, whatever the prefix."""

import os
from pathlib import Path


def cache_folder(kind: str) -> Path:
    """Return the folder for one kind of file, below `$MARIN_DAG_CACHE` or `~/.cache/marin-dag`."""
    return Path(os.environ.get("MARIN_DAG_CACHE") or Path.home() / ".cache" / "marin-dag") / kind


def keep(file: Path, text: str) -> None:
    """Write a file of such a folder, whole or not at all. Processes that write it at once must write the same text."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(f".{os.getpid()}")
    partial.write_text(text)
    partial.replace(file)
