"""Added tokens: tokens of a tokenizer_config.json that the tokenizer.json beside it lacks.

Some programs write tokens such as EOS only to `added_tokens_decoder`. `transformers` adds them when it loads a
folder.
"""

import dataclasses
import json
from collections.abc import Sequence


class AddedTokensError(ValueError):
    """A file with unreadable tokens, or a token that cannot keep its id."""


@dataclasses.dataclass(frozen=True)
class AddedToken:
    """An entry of `added_tokens` in a tokenizer.json."""

    id: int
    content: str
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool
    special: bool


def missing_tokens(content: str, config: str) -> tuple[AddedToken, ...]:
    """Return the tokens of a tokenizer_config.json that the tokenizer.json `content` lacks, by id.

    Raise AddedTokensError if the tokens of either file cannot be read.
    """
    try:
        known = {token["content"] for token in json.loads(content).get("added_tokens") or ()}
        described = json.loads(config).get("added_tokens_decoder") or {}
        missing = [(int(number), token) for number, token in described.items() if token["content"] not in known]
        return tuple(_token(number, token) for number, token in sorted(missing, key=lambda each: each[0]))
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
        raise AddedTokensError(
            f"the tokens of tokenizer.json or tokenizer_config.json cannot be read ({type(error).__name__}: {error}). "
            "Save the tokenizer again."
        ) from error


def _token(number: int, token: dict) -> AddedToken:
    single_word, lstrip, rstrip, is_special = (
        bool(token.get(name)) for name in ("single_word", "lstrip", "rstrip", "special")
    )
    is_normalized = bool(token.get("normalized", not is_special))
    return AddedToken(number, str(token["content"]), single_word, lstrip, rstrip, is_normalized, is_special)


def with_tokens(content: str, tokens: Sequence[AddedToken]) -> str:
    """Return a tokenizer.json with these tokens added; raise AddedTokensError if one would get another id."""
    from tokenizers import Tokenizer

    if not tokens:
        return content
    document = json.loads(content)
    document["added_tokens"] = [*(document.get("added_tokens") or ()), *map(dataclasses.asdict, tokens)]
    written = json.dumps(document, ensure_ascii=False)
    tokenizer = Tokenizer.from_str(written)
    for token in tokens:
        if (number := tokenizer.token_to_id(token.content)) != token.id:
            raise AddedTokensError(
                f"tokenizer_config.json gives {token.content!r} the id {token.id}, and after the tokens of "
                f"tokenizer.json its id is {number}. Save the tokenizer again, with all tokens in tokenizer.json."
            )
    return written
