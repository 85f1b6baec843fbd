"""Differences of identity documents."""

from typing import Any

from marin_dag.diff import DeclarationChanged, FieldChanged, differences
from tests.marin_dag.toy import TextConfig, text


def test_documents_of_two_schemas_differ_in_that_alone():
    new = text("text", TextConfig(text="new")).identity
    old = {**text("text", TextConfig(text="old")).identity, "schema": 1}
    assert differences(old, new) == (DeclarationChanged("identity schema", "1", str(new["schema"])),)
    assert len(differences({**old, "schema": new["schema"]}, new)) == 1


def test_a_changed_field_of_a_named_item_of_a_list_is_told_with_the_name():
    def files(**contents: str) -> dict[str, Any]:
        items = [["model", "ContentFile", ["name", name], ["sha256", text]] for name, text in contents.items()]
        config = ["model", "Config", ["files", ["list", *items]]]
        return {**text("text", TextConfig(text="a")).identity, "config": config}

    old = files(config="1", weights="2")
    assert differences(old, files(config="1", weights="3")) == (FieldChanged("files.1.sha256 (weights)", "'2'", "'3'"),)
    moved = differences(old, files(config="1", head="3"))
    assert [each.field for each in moved if isinstance(each, FieldChanged)] == ["files.1.name", "files.1.sha256"]
