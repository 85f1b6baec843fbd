"""The picture of the architecture, drawn from the imports of the code.

`python -m tests.docs.architecture` writes docs/architecture.svg.
"""

import re
from pathlib import Path

from tests.test_architecture import ENGINE_FOLDERS, RUNTIME_FOLDERS

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs/architecture.svg"
PACKAGES = ("pipelines", "steps", "runtime", "marin_dag")
PURPOSE = {
    "pipelines": "recipes: functions that return steps",
    "steps": "one file per kind of step: config, result, function",
    "runtime": "what the steps call; knows nothing of the engine",
    "marin_dag": "the engine; knows nothing of machine learning",
}
FOLDERS = {"runtime": RUNTIME_FOLDERS, "marin_dag": ENGINE_FOLDERS}
WIDTH, MARGIN, ROW, CELL = 960, 20, 26, 104


def imports_of(package: str) -> set[str]:
    """Return the other first-party packages that a package imports."""
    text = "\n".join(path.read_text() for path in (ROOT / package).rglob("*.py"))
    found = set(re.findall(rf"^\s*(?:from|import) ({'|'.join(PACKAGES)})\b", text, re.MULTILINE))
    return found - {package}


def picture() -> str:
    """Return the SVG: a box a package, its folders from the top layer down, and what each package imports."""
    parts: list[str] = []
    top = MARGIN
    for package in PACKAGES:
        folders = FOLDERS.get(package, ())
        per_row = (WIDTH - 2 * MARGIN - 20) // CELL
        rows = -(-len(folders) // per_row)
        height = 54 + rows * (ROW + 6)
        arrows = ", ".join(sorted(imports_of(package), key=PACKAGES.index)) or "nothing"
        parts.append(_box(MARGIN, top, WIDTH - 2 * MARGIN, height, "package"))
        parts.append(_text(MARGIN + 10, top + 20, f"{package}/", "name"))
        parts.append(_text(MARGIN + 120, top + 20, PURPOSE[package], "note"))
        parts.append(_text(MARGIN + 10, top + 40, f"imports {arrows}" + _order(folders), "note"))
        for index, folder in enumerate(folders):
            x = MARGIN + 10 + index % per_row * CELL
            y = top + 48 + index // per_row * (ROW + 6)
            parts += [_box(x, y, CELL - 8, ROW, "folder"), _text(x + 8, y + 17, folder, "note")]
        top += height + 14
    style = (
        ".package{fill:#f4f6f8;stroke:#5b6b7b}.folder{fill:#fff;stroke:#9fb0c0}"
        "text{font-family:sans-serif;fill:#1d2733}.name{font-size:15px;font-weight:bold}.note{font-size:12px}"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" role="img">'
    title = "<title>Packages, folders and imports</title>"
    return "\n".join([head, title, f"<style>{style}</style>", *parts, "</svg>\n"])


def _order(folders: tuple[str, ...]) -> str:
    return "; a folder imports only folders to its right and below" if folders else ""


def _box(x: int, y: int, width: int, height: int, kind: str) -> str:
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="5"/>'


def _text(x: int, y: int, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{text}</text>'


if __name__ == "__main__":
    PICTURE.write_text(picture())
