"""Identity of a step: the document of all that its output depends on, and the digest of that document."""

import json
from typing import Any, NamedTuple

from pydantic import BaseModel

from marin_dag.code.audit import CodeChangedError
from marin_dag.code.fingerprint import module_name
from marin_dag.identity.canonical import canonical, sha256
from marin_dag.identity.code_identity import CodeIdentity
from marin_dag.values.fields import identity_fields, once_fields
from marin_dag.values.reference import Reference

SCHEMA_VERSION = 2
"""Version of the rules for documents and fingerprints; a new one changes every digest."""


class Identity(NamedTuple):
    """Digest and document of a step. The document is stored with the output; that of a versioned step also has fields
    that the digest does not cover."""

    digest: str
    document: dict[str, Any]


def identity_of(
    function: Any, code: CodeIdentity, config: BaseModel, *, name: str, continues: str | None, start: Identity | None
) -> Identity:
    """Return the identity of a step, or that of its `start` if the step changes nothing but the stop.

    `name` is the step's, for errors; `continues` is the field of the config that names the start, if there is one.
    """
    document = {
        "schema": SCHEMA_VERSION,
        "kind": f"{module_name(function)}.{function.__name__}",
        "code": code.document(),
        "config": canonical(config, name),
    }
    if start is not None and continues is not None and _is_continued(document, start.document, config, continues):
        return start
    return Identity(digest_of_document(document), document)


def digest_of_document(document: dict[str, Any]) -> str:
    """Return the SHA-256 of a stored document; of a versioned step's code only the version counts."""
    code = document["code"]
    if code["policy"] == "versioned":
        what = {"version": code["version"]}
    else:
        what = {"fingerprint": code.get("counts_as", code["fingerprint"])}
    counted = {"policy": code["policy"], **what, "packages": code["packages"]}
    return sha256({**document, "code": counted})


def _is_continued(own: dict[str, Any], before: dict[str, Any], config: BaseModel, continues: str) -> bool:
    """Return whether a step changes nothing of what it starts from, so that it is the same run.

    A `Once` field acts where a step begins. Any value but its default makes another identity; the start's own value
    does not matter here.
    """
    if own["kind"] != before["kind"] or own["code"] != before["code"]:
        return False
    config_type: Any = type(config)
    counted = identity_fields(config_type)
    once = {name: default for name, default in once_fields(config_type).items() if name in counted}
    if any(canonical(getattr(config, name), name) != canonical(default, name) for name, default in once.items()):
        return False
    fields, others = (
        {name: node for name, node in document["config"][2:] if name != continues and name not in once}
        for document in (own, before)
    )
    return json.dumps(fields) == json.dumps(others)  # as texts: 1, 1.0 and True are equal to `==`


def check_config(name: str, function: Any, config: BaseModel, continues: str | None, identity: dict[str, Any]) -> None:
    """Raise CodeChangedError if a list or mapping in the config changed after the digest was computed."""
    start = None if continues is None else getattr(config, continues)
    if function.__module__ == "__main__" or isinstance(start, Reference):
        return  # classes of a script have another name here; a step that continues a run has the run's document
    if canonical(config, name) != identity["config"]:
        raise CodeChangedError(
            f"{name}: its config is not what it was when its digest was computed; a list or mapping inside it was "
            "changed after that. Build the step again instead of changing what it holds."
        )
