"""Presentation MathML as TeX: fractions, roots, scripts, rows, tables.

Characters stay as they are (every current engine reads α as TeX). An element without a rule gives its text.
"""

from collections.abc import Callable, Sequence
from typing import Any

from runtime.text.extraction.short_texts import text_of

MAX_DEPTH = 64
"""An element deeper than this gives its text: no author nests so deep, and each level takes room on Python's stack."""
_FENCES = {"{": r"\{", "}": r"\}"}


def tex_of(element: Any) -> str:
    """Return the TeX of a `math` element or anything in it."""
    return " ".join(_tex(element, MAX_DEPTH).split())


def is_structured(element: Any) -> bool:
    """Return whether the characters alone would lose what is above, below or beside what."""
    return element.query_selector(", ".join(_RULES)) is not None


def _tex(element: Any, depth: int) -> str:
    if depth == 0:
        return text_of(element)
    rule = _RULES.get(element.tag)
    children = [node for node in element.child_nodes.values() if node.tag != "#text"]  # see `html._all`
    if rule is not None:
        return rule([_tex(child, depth - 1) for child in children], element)
    if not children:
        text = " ".join(text_of(element).split())
        return rf"\text{{{text_of(element)}}}" if element.tag == "mtext" and text else _FENCES.get(text, text)
    return "".join(_tex(child, depth - 1) for child in children if child.tag not in ("annotation", "annotation-xml"))


def _script(marks: str) -> Callable[[Sequence[str], Any], str]:
    def rule(parts: Sequence[str], element: Any) -> str:
        base, *scripts = parts or ("",)
        base = base if len(base) == 1 or (base.startswith("\\") and " " not in base) else f"{{{base}}}"
        return base + "".join(f"{mark}{{{script}}}" for mark, script in zip(marks, scripts, strict=False))

    return rule


def _fraction(parts: Sequence[str], element: Any) -> str:
    above, below = (*parts, "", "")[:2]
    return rf"\frac{{{above}}}{{{below}}}"


def _root(parts: Sequence[str], element: Any) -> str:
    inner, degree = (*parts, "", "")[:2]
    return rf"\sqrt[{degree}]{{{inner}}}"


def _fenced(parts: Sequence[str], element: Any) -> str:
    left, right = (element.getattr(name) for name in ("open", "close"))
    left, right = ("(" if left is None else left), (")" if right is None else right)
    return _FENCES.get(left, left) + ",".join(parts) + _FENCES.get(right, right)


_RULES: dict[str, Callable[[Sequence[str], Any], str]] = {
    "mfrac": _fraction,
    "msqrt": lambda parts, element: rf"\sqrt{{{''.join(parts)}}}",
    "mroot": _root,
    "msup": _script("^"),
    "mover": _script("^"),
    "msub": _script("_"),
    "munder": _script("_"),
    "msubsup": _script("_^"),
    "munderover": _script("_^"),
    "mfenced": _fenced,
    "mtr": lambda parts, element: " & ".join(parts),
    "mtable": lambda parts, element: r"\begin{matrix}" + r" \\ ".join(parts) + r"\end{matrix}",
}
