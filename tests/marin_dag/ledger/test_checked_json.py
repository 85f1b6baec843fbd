"""Checked JSON: no change of a byte and no truncation goes unseen."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from marin_dag.ledger.checked_json import ChecksumError, checked_body, checked_json


class Note(BaseModel):
    text: str
    number: int


NOTES = st.builds(Note, text=st.text(), number=st.integers(-(2**70), 2**70))


@given(note=NOTES)
def test_it_is_json_and_reads_back_unchanged(note: Note):
    data = checked_json(note)
    assert {"text", "number"} < set(json.loads(data))
    assert Note.model_validate_json(checked_body(data)) == note


@given(note=NOTES, data=st.data())
def test_each_flipped_bit_is_seen(note: Note, data: st.DataObject):
    written = bytearray(checked_json(note))
    bit = data.draw(st.integers(0, 8 * len(written) - 1))
    written[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ChecksumError):
        checked_body(bytes(written))


@given(note=NOTES, data=st.data())
def test_each_truncation_and_addition_is_seen(note: Note, data: st.DataObject):
    written = checked_json(note)
    with pytest.raises(ChecksumError):
        checked_body(written[: data.draw(st.integers(0, len(written) - 1))])
    with pytest.raises(ChecksumError):
        checked_body(written + data.draw(st.binary(min_size=1)))
