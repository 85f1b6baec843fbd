"""Work code: which code version wrote a step's resumable state.

The code of a versioned step is not in its identity, so an edit between two attempts changes no digest, and the second
attempt would resume from a state that other code has written. Attempts therefore leave a mark of their code beside the
state, and a plan compares it with the code at hand.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from marin_dag.store.store import Store, StoreError

FOLDER = "code"


class _Code(BaseModel, frozen=True, extra="allow"):
    fingerprint: str
    definitions: dict[str, str]


class _Mark(BaseModel, frozen=True, extra="ignore"):
    code: _Code


def write_work_code(
    store: Store, work: str, identity: dict[str, Any], resumes_at: Callable[[Sequence[str]], Iterable[int]] | None
) -> None:
    """Mark the folder `work` with the code of this attempt, before the attempt saves anything there.

    The marks of other code are deleted if there is no state to resume from: such attempts ended before they saved,
    often by the error for which the code was then changed.
    """
    path = f"{work}/{FOLDER}/{identity['code']['fingerprint']}.json"
    files = [entry.path.removeprefix(f"{work}/") for entry in store.list(work)]
    if resumes_at is not None and not list(resumes_at(files)):
        for other in files:
            if other.startswith(f"{FOLDER}/") and f"{work}/{other}" != path:
                store.delete(f"{work}/{other}")
    if not store.exists(path):
        store.write(path, json.dumps({"code": identity["code"]}, sort_keys=True).encode())


def work_codes(store: Store, digest: str, paths: Iterable[str]) -> list[dict[str, Any]]:
    """Return the code part of the identity of each attempt that left a mark; `paths` are those of the work folder."""
    marks = sorted(path for path in paths if path.startswith(f"{FOLDER}/"))
    found = []
    for path in marks:
        try:
            found.append(_Mark.model_validate_json(store.read(f"work/{digest}/{path}")).model_dump())
        except FileNotFoundError:  # an attempt has started since the listing and deleted the mark
            continue
        except ValidationError as error:
            raise StoreError(
                f"{store.url(f'work/{digest}/{path}')}: not readable ({error.error_count()} errors), so it is not "
                f"known which code wrote the state beside it. If it was today's code, delete the file; otherwise "
                f"delete the folder {digest}."
            ) from None
    return found
