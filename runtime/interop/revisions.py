"""Revisions: named versions of one model, each a set of files, and the folder that holds them.

A target is changed one revision at a time, and no revision is a mix of two. A kill may leave a new branch empty, or a
folder under its `.old-` name, from which the next call restores it. What a target already has is compared by content,
so that a second call, or one after a kill, writes only what is missing.
"""

import dataclasses
import hashlib
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import fsspec
import google_crc32c

BLOCK_IN_BYTES = 8 * 2**20
MAIN = "main"
NAME = re.compile(r"[\w.-]+-step(?P<step>\d+)-tokens(?P<tokens>\d+)(?P<unit>[kMBT]?)")
IS_REVISION = "This is revision"
"""Words that the card of each published revision holds, before its name."""
HELD = re.compile(rf"{IS_REVISION} `main`, which is `(?P<name>[^`]+)`")
WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?")
"""The only files of an export whose names depend on the model; those of an earlier export would be loaded with it."""
PARTIAL, OLD = ".partial-", ".old-"
UNITS = (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3))


class PublishError(RuntimeError):
    """A target that cannot take a revision, or an export that cannot be one."""


@dataclasses.dataclass(frozen=True)
class RevisionFile:
    """A file on this machine, and the ids by which targets know its content."""

    path: Path
    size: int
    sha256: str
    git_id: str
    """SHA-1 of the file as a git blob."""
    crc32c: str

    @classmethod
    def read(cls, url: str, copy: Path) -> "RevisionFile":
        """Read a file, which is first copied to `copy` unless it is on this machine."""
        system, name = fsspec.core.url_to_fs(url)
        is_here = "file" in (system.protocol if isinstance(system.protocol, tuple) else (system.protocol,))
        path = Path(name) if is_here else copy
        if not is_here:
            path.parent.mkdir(parents=True, exist_ok=True)
            system.get_file(name, str(path))
        return cls.of(path)

    @classmethod
    def of(cls, path: Path) -> "RevisionFile":
        size = path.stat().st_size
        sha256, git = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        checksum = 0
        with path.open("rb") as file:
            while block := file.read(BLOCK_IN_BYTES):
                sha256.update(block)
                git.update(block)
                checksum = google_crc32c.extend(checksum, block)
        return cls(path, size, sha256.hexdigest(), git.hexdigest(), f"{checksum:08x}")


@dataclasses.dataclass(frozen=True)
class Revision:
    """A version of the model: its name and its files by their names in the repository."""

    name: str
    title: str
    """First line of the commit."""
    files: Mapping[str, RevisionFile]


class Changes(NamedTuple):
    """How the files of a target differ from those of a revision."""

    is_new: bool
    """Whether the revision is missing under its name."""
    written: tuple[str, ...]
    """Names of files that are missing or have other content."""
    removed: tuple[str, ...]
    """Names of weights that the revision lacks. Other files, such as a LICENSE, stay."""

    def __bool__(self) -> bool:
        return bool(self.is_new or self.written or self.removed)


class Target(Protocol):
    """A place for the revisions of one model."""

    address: str

    def load_arguments(self, revision: str) -> str:
        """Return the arguments of `from_pretrained` that load a revision."""

    def names(self) -> list[str]:
        """Return the names of the target's revisions."""

    def held_by_main(self) -> str | None:
        """Return the name of the revision that was last published as main; None where there was none."""

    def check_own(self, name: str, files: Iterable[str]) -> None:
        """Raise PublishError if writing `files` as revision `name` would lose a file that no publish wrote."""

    def changes(self, revision: Revision) -> Changes:
        """Compare a revision with the target; write nothing."""

    def write(self, revision: Revision, on_wait: Callable[[str], object]) -> None:
        """Write and remove what `changes` names, in one commit; call `on_wait` before another try."""


def revision_name(phase: str, step: int, tokens: int) -> str:
    """Return the name of a revision, in the form that OLMo's have: `phoenix-step850-tokens4M`."""
    unit, size = next(((unit, size) for unit, size in UNITS if tokens >= size), ("", 1))
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '-', phase)}-step{step}-tokens{tokens // size}{unit}"


def is_ahead(name: str, other: str) -> bool:
    """Return whether a revision's name has more tokens than another's, or as many and more training steps."""
    return _progress(name) > _progress(other)


def _progress(name: str) -> tuple[int, int]:
    found = NAME.fullmatch(name)
    assert found is not None, name
    return int(found["tokens"]) * dict(UNITS).get(found["unit"], 1), int(found["step"])


def revision_card(export_card: str, *, name: str, target: Target, held: str = "", others: tuple[str, ...] = ()) -> str:
    """Return the card of a revision: that of the export, how to load it, and the names of other revisions.

    Args:
        export_card: the export's README.
        name: name of the revision.
        target: where it is loaded from.
        held: for main, the revision that it equals.
        others: revisions to list.
    """
    which = f"`{name}`, which is `{held}`" if held else f"`{name}`"
    lines = [
        export_card.rstrip(),
        "",
        "## Revisions",
        "",
        f"{IS_REVISION} {which}: `AutoModelForCausalLM.from_pretrained({target.load_arguments(name)})`.",
    ]
    if others:
        lines += ["Earlier and other states of the same training are revisions of their own:", ""]
        lines += [f"- `{other}`" for other in others]
    return "\n".join(lines) + "\n"


def in_order(names: set[str]) -> tuple[str, ...]:
    """Return the names that `revision_name` can make, by training step; ignore others."""
    found = ((match, name) for name in names if (match := NAME.fullmatch(name)) is not None)
    return tuple(name for _, name in sorted((int(match["step"]), name) for match, name in found))


def compared(revision: Revision, present: Mapping[str, str] | None) -> Changes:
    """Compare a revision with the ids of `present` files, SHA-256 or git's; None where it is not there."""
    known = present or {}
    written = (name for name, file in revision.files.items() if known.get(name) not in (file.sha256, file.git_id))
    removed = (name for name in known.keys() - revision.files.keys() if WEIGHTS.fullmatch(name))
    return Changes(present is None, tuple(sorted(written)), tuple(sorted(removed)))


class RevisionsFolder:
    """A local folder with a folder for each revision, which appears by a rename."""

    def __init__(self, folder: str) -> None:
        self.address = folder.rstrip("/")
        self._root = Path(folder)

    def load_arguments(self, revision: str) -> str:
        return f'"{revision}"'

    def names(self) -> list[str]:
        if not self._root.is_dir():
            return []
        found = {path.name.removeprefix(OLD) for path in self._root.iterdir() if path.is_dir()}
        return sorted(name for name in found if not name.startswith("."))

    def held_by_main(self) -> str | None:
        card = self._folder(MAIN) / "README.md"
        found = HELD.search(card.read_text(encoding="utf-8")) if card.is_file() else None
        return found["name"] if found is not None and NAME.fullmatch(found["name"]) else None

    def check_own(self, name: str, files: Iterable[str]) -> None:
        folder = self._folder(name)
        card = folder / "README.md"
        if card.is_file() and f"{IS_REVISION} `{name}`" in card.read_text(encoding="utf-8", errors="replace"):
            return
        present = sorted(path for path in folder.rglob("*") if path.is_file())
        replaced = set(files)
        for path in present:
            within = str(path.relative_to(folder))
            if within in replaced or WEIGHTS.fullmatch(within):
                raise PublishError(
                    f"publish: {path} was not written by publish and would be lost. Move it away, or name another "
                    "folder: --to FOLDER."
                )

    def changes(self, revision: Revision) -> Changes:
        folder = self._folder(revision.name)
        if not folder.is_dir():
            return compared(revision, None)
        files = (path for path in folder.rglob("*") if path.is_file())
        found = {str(path.relative_to(folder)): RevisionFile.of(path).sha256 for path in files}
        return compared(revision, found)._replace(is_new=folder.name != revision.name)

    def _folder(self, name: str) -> Path:
        """Return the folder of a revision, which is its old one where a call was killed between two renames."""
        folder, old = self._root / name, self._root / f"{OLD}{name}"
        return old if old.is_dir() and not folder.is_dir() else folder

    def write(self, revision: Revision, on_wait: Callable[[str], object]) -> None:
        folder, partial, old = (self._root / f"{prefix}{revision.name}" for prefix in ("", PARTIAL, OLD))
        if self._folder(revision.name) == old:
            old.rename(folder)
        for left in (partial, old):  # of a killed call
            shutil.rmtree(left, ignore_errors=True)
        present = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
        kept = {name: path for name, path in present.items() if not WEIGHTS.fullmatch(name)}
        for name, path in (kept | {name: file.path for name, file in revision.files.items()}).items():
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, partial / name)
        if folder.exists():
            folder.rename(old)
        partial.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
