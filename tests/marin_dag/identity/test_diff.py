"""Differences of identity documents."""

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from marin_dag.identity.canonical import canonical
from marin_dag.identity.diff import (
    ABSENT,
    CodeChanged,
    DeclarationChanged,
    FieldChanged,
    InputChanged,
    differences,
)
from marin_dag.identity.identity import digest_of_document
from tests.marin_dag.toy import TextConfig, text


def test_documents_of_two_schemas_differ_in_that_alone():
    new = text("text", TextConfig(text="new")).identity
    old = {**text("text", TextConfig(text="old")).identity, "schema": 1}
    assert differences(old, new) == (DeclarationChanged("identity schema", "1", str(new["schema"])),)
    assert len(differences({**old, "schema": new["schema"]}, new)) == 1


def test_a_changed_field_of_a_list_item_comes_with_the_name_of_the_item():
    def files(**contents: str) -> dict[str, Any]:
        items = [["model", "ContentFile", ["name", name], ["sha256", text]] for name, text in contents.items()]
        config = ["model", "Config", ["files", ["list", *items]]]
        return {**text("text", TextConfig(text="a")).identity, "config": config}

    old = files(config="1", weights="2")
    assert differences(old, files(config="1", weights="3")) == (FieldChanged("files.1.sha256 (weights)", '"2"', '"3"'),)
    added = differences(old, files(config="1", head="3", weights="2"))
    assert [each.field for each in added if isinstance(each, FieldChanged)] == ["files.head"]
    swapped = differences(old, files(weights="2", config="1", head="3"))
    assert [each.field for each in swapped if isinstance(each, FieldChanged)] == ["files"]
    moved = differences(old, files(config="1", head="3"))
    assert [each.field for each in moved if isinstance(each, FieldChanged)] == ["files.1.name", "files.1.sha256"]


def document(value: Any, **code: Any) -> dict[str, Any]:
    """Return the document of a step whose config has one field."""
    declared = {"policy": "tracked", "version": None, "packages": {}, "fingerprint": "f", "definitions": {}}
    config = ["model", "Config", ["field", canonical(value, "field")]]
    return {"schema": 2, "kind": "kind", "code": declared | code, "config": config}


scalars = (
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, -0.0, 1.0, 0.1 + 0.2, 0.3, "", "1", b"1"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(scalars, inner, max_size=3) | st.frozensets(scalars),
    max_leaves=4,
)


@given(values, values)
@example(1, True)
@example(1, 1.0)
@example({1: "a"}, {"1": "a"})
@example({1: "a", "1": "b"}, {1: "a", "1": "c"})
@example([1, 2], {1, 2})
def test_two_identities_differ_in_something_and_one_in_nothing(old: Any, new: Any):
    """A stale step always has a reason that a plan can show."""
    before, after = document(old), document(new)
    found = differences(before, after)
    assert bool(found) == (digest_of_document(before) != digest_of_document(after))
    assert all(isinstance(each, FieldChanged) and each.old != each.new for each in found)


def test_changed_declarations_are_listed_in_full():
    old = document(1, packages={"tokenizers": "0.21", "numpy": "2.0"})
    new = document(1, packages={"tokenizers": "0.22", "regex": "1.0"})
    assert differences(old, new) == (
        DeclarationChanged("package numpy", "2.0", ABSENT),
        DeclarationChanged("package regex", ABSENT, "1.0"),
        DeclarationChanged("package tokenizers", "0.21", "0.22"),
    )
    other = {"fingerprint": "g", "definitions": {"a": "1"}}
    versioned = {"policy": "versioned", "version": "1"}
    assert differences(document(1, **versioned), document(1, **{**versioned, "version": "2"}, **other)) == (
        DeclarationChanged("version", "1", "2"),
    ), "other code of a versioned step is no other identity"
    assert differences(document(1), document(1, **other)) == (CodeChanged((), ("a",), ()),)
    assert differences(document(1), document(1, **versioned, **other)) == (
        DeclarationChanged("policy", "tracked", "versioned"),
        CodeChanged((), ("a",), ()),
    )


def test_an_input_differs_by_its_step_its_milestone_or_its_folder():
    def reading(digest: str, milestone: int | None, folder: str) -> dict[str, Any]:
        return document(1) | {
            "config": ["model", "Config", ["texts", ["dict", [7, ["input", digest, milestone, folder]]]]]
        }

    old = reading("a", 10, "train")
    assert differences(old, reading("a", 10, "test")) == (FieldChanged("texts.7 (folder)", '"train"', '"test"'),)
    assert differences(old, reading("a", 20, "train")) == (InputChanged("texts.7", "a@10", "a@20"),)
    assert differences(old, reading("b", None, "test")) == (InputChanged("texts.7", "a@10", "b"),)
