"""Differences of identity documents."""

from marin_dag.diff import DeclarationChanged, differences
from tests.marin_dag.toy import TextConfig, text


def test_documents_of_two_schemas_differ_in_that_alone():
    new = text("text", TextConfig(text="new")).identity
    old = {**text("text", TextConfig(text="old")).identity, "schema": 1}
    assert differences(old, new) == (DeclarationChanged("identity schema", "1", str(new["schema"])),)
    assert len(differences({**old, "schema": new["schema"]}, new)) == 1
