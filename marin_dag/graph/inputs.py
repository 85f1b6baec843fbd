"""Input: the type of a config field that names another step, and what that field holds while the step runs.

A recipe sets such a field to a step, or to `step.at(...)`, `step.growing()` or `step.folder(...)`. The graph then holds
an `OutputRef`, and the running step an `Input` with the path and the result of the committed output.
"""

import types
from collections.abc import Mapping
from typing import Any, Generic, TypeVar, Union, get_args, get_origin

from pydantic import GetCoreSchemaHandler, ValidationInfo
from pydantic_core import core_schema

from marin_dag.values.reference import Reference

ResultT_co = TypeVar("ResultT_co", covariant=True)


class Input(Reference, Generic[ResultT_co]):
    """Type of a config field that names another step; while a step runs, the committed output that it reads."""

    # No dataclass: pydantic would take the generic one for data, and not ask it for its schema.
    def __init__(
        self,
        name: str,
        digest: str,
        path: str,
        result: ResultT_co,
        *,
        milestone: int | None = None,
        subpath: str = "",
        is_growing: bool = False,
        computed_with: Mapping[str, str] | None = None,
        record_key: str = "",
    ) -> None:
        self.name = name
        self.digest = digest
        self.path = path
        """Folder or URL of the output, or of the folder in it that was asked for; no trailing slash."""
        self.result = result
        self.milestone = milestone
        self.subpath = subpath
        self.is_growing = is_growing
        """Whether `path` and `result` are those of the first part, and the whole is not there yet."""
        self.computed_with: Mapping[str, str] = computed_with or {}
        """How the output was computed, as `StepContext.computed_with` recorded it. Never identity."""

        self.record_key = record_key or self.key
        """Key of the record of the output at `path`; for a growing input that of its first part."""

    @property
    def result_type(self) -> type | None:
        return None if self.result is None else type(self.result)

    def join(self, relative: str) -> str:
        return f"{self.path}/{relative}"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        wanted = (get_args(source) or (Any,))[0]
        allowed = get_args(wanted) if get_origin(wanted) in (Union, types.UnionType) else (wanted,)
        classes = tuple(get_origin(item) or item for item in allowed)
        known = classes if all(isinstance(item, type) for item in classes) else ()
        return core_schema.with_info_plain_validator_function(
            lambda value, info: _reference(value, known, info),
            serialization=core_schema.plain_serializer_function_ser_schema(repr),
        )


def _reference(value: Any, classes: tuple[type, ...], info: ValidationInfo) -> Reference:
    """Return `value` as a reference to a step that returns one of `classes`; any step will do if there are none."""
    if isinstance(value, str) and info.context and "reference_named" in info.context:
        value = info.context["reference_named"](value)
    if hasattr(value, "as_input"):  # a step
        value = value.as_input()
    if not isinstance(value, Reference):
        raise ValueError(f"{value!r} is not a step; pass the step itself, or step.at(step=...)")
    if classes:
        value.check_result(classes)
    return value
