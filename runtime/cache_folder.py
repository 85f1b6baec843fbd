"""Cache folder: where a user's machine keeps what can be made again, whatever the prefix."""

import os
from pathlib import Path


def cache_folder(kind: str) -> Path:
    """Of one kind of thing: below `$MARIN_DAG_CACHE`, or `~/.cache/marin-dag`."""
    return Path(os.environ.get("MARIN_DAG_CACHE") or Path.home() / ".cache" / "marin-dag") / kind


def keep(file: Path, text: str) -> None:
    """Writes a file of such a folder, whole or not at all; whoever writes it at the same time writes the same."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(f".{os.getpid()}")
    partial.write_text(text)
    partial.replace(file)
