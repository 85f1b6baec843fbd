"""The figures of a page, read from their JSON: panels, and the marks of each with their data."""

import base64
import dataclasses
import gzip
import json
import re
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Mark:
    """The marks of one series of a panel."""

    kind: str
    name: str
    series: str
    data: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class DrawnPanel:
    title: str
    x_range: dict[str, Any]
    y_range: dict[str, Any]
    marks: list[Mark]

    def of(self, kind: str, series: str | None = None) -> list[Mark]:
        return [mark for mark in self.marks if mark.kind == kind and series in (None, mark.series)]

    @property
    def tips(self) -> list[str]:
        return [tip for mark in self.marks for tip in mark.data.get("tip", ())]


def figures(markup: str) -> list[list[DrawnPanel]]:
    """Return the panels of each figure."""
    texts = re.findall(r'<script type="application/json">(.*?)</script>', markup, re.S)
    return [_panels(json.loads(text)) for text in texts]


def panels(markup: str) -> list[DrawnPanel]:
    """Return the panels of the only figure."""
    (found,) = figures(markup)
    return found


def _panels(document: dict[str, Any]) -> list[DrawnPanel]:
    by_id: dict[str, Any] = {}
    _collect(document, by_id)

    def resolved(reference: dict[str, Any]) -> dict[str, Any]:
        return by_id[reference["id"]]["attributes"]

    found = []
    for root in document["roots"]:
        attributes = root["attributes"]
        marks = [
            Mark(
                by_id[mark["glyph"]["id"]]["name"], mark["name"], mark["tags"][0], _data(resolved(mark["data_source"]))
            )
            for mark in (resolved(renderer) for renderer in attributes.get("renderers", ()))
            if mark.get("tags")
        ]
        title = resolved(attributes["title"]).get("text", "")
        found.append(DrawnPanel(title, resolved(attributes["x_range"]), resolved(attributes["y_range"]), marks))
    return found


def _collect(value: Any, by_id: dict[str, Any]) -> None:
    if isinstance(value, dict):
        if "attributes" in value or ("name" in value and "id" in value):
            by_id[value["id"]] = {"attributes": {}, **value}
        for item in value.values():
            _collect(item, by_id)
    elif isinstance(value, list):
        for item in value:
            _collect(item, by_id)


def _data(source: dict[str, Any]) -> dict[str, Any]:
    return {name: _values(column) for name, column in source["data"]["entries"]}


def _values(column: Any) -> Any:
    if isinstance(column, dict):
        raw = gzip.decompress(base64.b64decode(column["array"]["data"]))
        return np.frombuffer(raw, column["dtype"]).reshape(column["shape"])
    return [_values(item) if isinstance(item, dict) else item for item in column]
