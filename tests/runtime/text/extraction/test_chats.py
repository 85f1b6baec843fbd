"""Chats: a conversation becomes a text, or an error that says which turn is at fault."""

import pytest

from runtime.text.extraction.chats import ChatError, chat_text
from tests.catalogue import expect_error

QUESTION = {"role": "user", "content": "2 + 2?"}


def test_turns_of_both_forms_parts_and_tool_calls_are_written() -> None:
    call = {"function": {"name": "add", "arguments": {"a": 2}}}
    turns = [QUESTION, {"from": "gpt", "value": "4"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    last = {"role": "user", "content": [{"type": "text", "text": "and"}, {"type": "text", "text": "3?"}]}
    text = 'User: 2 + 2?\n\nAssistant: 4\n\nAssistant: add({"a": 2})\n\nUser: and\n3?'
    assert chat_text([*turns, last]) == text


@pytest.mark.parametrize("content", [None, ""])
def test_a_single_call_under_its_older_name_is_written(content: str | None) -> None:
    nulls = {"name": None, "arguments": None}
    call = {"role": "assistant", "content": content, "function_call": {"name": "add", "arguments": "[2, 2]"}}
    assert chat_text([{**QUESTION, "function_call": nulls}, call]) == "User: 2 + 2?\n\nAssistant: add([2, 2])"


@pytest.mark.parametrize(
    "turn",
    [
        "4",
        {"content": "4"},
        {"role": "assistant", "content": [{"type": "image"}]},
        {"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]},
    ],
    ids=["text", "no role", "image", "nameless call"],
)
def test_a_turn_without_role_or_text_is_named_by_its_number(turn: object) -> None:
    with expect_error(ChatError):
        chat_text([QUESTION, turn])


@pytest.mark.parametrize("turns", [None, {"role": "user"}], ids=["none", "object"])
def test_what_is_no_list_of_turns_is_refused(turns: object) -> None:
    with expect_error(ChatError):
        chat_text(turns)
