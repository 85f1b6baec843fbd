"""Work code: by which code the work that waits to be gone on with was left.

Of a versioned step the code is not in the identity, so an edit between two attempts changes no digest, and what one
code had saved another would go on from: one trajectory of two codes, and a record that names the last. Attempts
therefore leave beside what they save by which code they ran, and a plan compares.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from marin_dag.store.store import Store, StoreError

FOLDER = "code"


class _Code(BaseModel, frozen=True, extra="allow"):
    """What a plan compares of the part of an identity that is the code."""

    fingerprint: str
    definitions: dict[str, str]


class _Mark(BaseModel, frozen=True, extra="ignore"):
    """What an attempt leaves."""

    code: _Code


def leave_code(
    store: Store, work: str, identity: dict[str, Any], resumes_at: Callable[[Sequence[str]], Iterable[int]] | None
) -> None:
    """Before anything is saved in the folder `work`; where nothing of it can be gone on with, nobody else has left any.

    An attempt that ended before it saved, often for the very error that its code was then changed for, left its code.
    """
    path = f"{work}/{FOLDER}/{identity['code']['fingerprint']}.json"
    files = [entry.path.removeprefix(f"{work}/") for entry in store.list(work)]
    if resumes_at is not None and not list(resumes_at(files)):
        for other in files:
            if other.startswith(f"{FOLDER}/") and f"{work}/{other}" != path:
                store.delete(f"{work}/{other}")
    if not store.exists(path):
        store.write(path, json.dumps({"code": identity["code"]}, sort_keys=True).encode())


def codes_left(store: Store, digest: str, paths: Iterable[str]) -> list[dict[str, Any]]:
    """The part of an identity that is the code, of each that has left something; `paths` are those in the work."""
    marks = sorted(path for path in paths if path.startswith(f"{FOLDER}/"))
    found = []
    for path in marks:
        try:
            found.append(_Mark.model_validate_json(store.read(f"work/{digest}/{path}")).model_dump())
        except FileNotFoundError:  # another attempt has begun since the listing, and nothing was saved under it
            continue
        except ValidationError as error:
            raise StoreError(
                f"{store.url(f'work/{digest}/{path}')}: does not say by which code the work beside it was left "
                f"({error.error_count()} errors). Delete it, if that was the code of today; else delete the folder "
                f"{digest} with all of it."
            ) from None
    return found
