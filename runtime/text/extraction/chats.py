"""Chats: the text of a conversation, from the turns that chat datasets hold."""

import json
from typing import Any

_SPEAKERS = {"human": "User", "gpt": "Assistant"}
"""Speakers of ShareGPT's rows by their usual names."""


class ChatError(ValueError):
    """A conversation without a text; the message says which turn is at fault."""


def chat_text(turns: object) -> str:
    """Return a conversation as turns, `User: ...` and `Assistant: ...`, with a blank line between them.

    A turn is `{role, content}` or `{from, value}`. Content is a text, a list of text parts, or none beside tool calls,
    which are written as `name(arguments)`, a line each. Raise ChatError if a turn has no role, or no content that is
    text.
    """
    if not isinstance(turns, list):
        raise ChatError("is none" if turns is None else f"is a {type(turns).__name__}")
    return "\n\n".join(_turn(turn, number) for number, turn in enumerate(turns, start=1))


def _turn(turn: object, number: int) -> str:
    if not isinstance(turn, dict):
        raise ChatError(f"has a {type(turn).__name__} as turn {number}, and no role and content")
    role = _text(_first(turn, "role", "from"))
    if role is None:
        raise ChatError(f"has a turn {number} without a role")
    content = _first(turn, "content", "value")
    stored = turn.get("tool_calls") or []
    if not isinstance(stored, list):
        raise ChatError(f"has a turn {number} whose tool calls are a {type(stored).__name__}")
    single = turn.get("function_call")  # the older name, of one call
    if isinstance(single, dict) and any(single.values()):  # tables may hold one of nulls in every turn
        stored = [*stored, single]
    calls = [_call(call, number) for call in stored]
    if content is None and calls:
        content = ""
    parts = content if isinstance(content, list) and content else [content]
    texts = [_text(part.get("text") if isinstance(part, dict) else part) for part in parts]
    if None in texts:
        kinds = ", ".join(str(part.get("type")) if isinstance(part, dict) else type(part).__name__ for part in parts)
        raise ChatError(f"has a turn {number} whose content is not text ({kinds})")
    speaker = _SPEAKERS.get(role, role.capitalize())
    return f"{speaker}: " + "\n".join(filter(None, [*texts, *calls]))


def _call(call: object, number: int) -> str:
    function = call.get("function") or call if isinstance(call, dict) else None
    name = _text(function.get("name")) if isinstance(function, dict) else None
    if not isinstance(function, dict) or name is None:
        raise ChatError(f"has a turn {number} with a tool call without a name")
    arguments = function.get("arguments")
    written = _text(arguments)
    if written is None:  # tables hold bytes and dates, too
        written = json.dumps(arguments, ensure_ascii=False, default=lambda value: _text(value) or str(value))
    return f"{name}({written})"


def _first(turn: dict[str, Any], *names: str) -> object:
    """Return the first of these fields that holds something: tables fill the fields of other turns with nulls."""
    return next((turn[name] for name in names if turn.get(name) is not None), None)


def _text(value: object) -> str | None:
    """Return a text, decoded where a table stores it as bytes; raise UnicodeDecodeError for bytes that are no UTF-8."""
    if isinstance(value, bytes):
        return value.decode()
    return value if isinstance(value, str) else None
