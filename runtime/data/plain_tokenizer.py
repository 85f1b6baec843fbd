"""Plain tokenizer: a `tokenizer.json` that encodes any text as plain characters, the same way at each call."""

import json
import re

from tokenizers import Regex, Tokenizer, pre_tokenizers

MOST_IDS = 1 << 22
"""Four times the largest published vocabulary."""
_BYTE_PIECE = "<0x41>"
_REST_OF_BYTE_PIECE = "0x[0-9A-Fa-f]{2}>"


class TokenizerFileError(ValueError):
    """A file that is no tokenizer, or one whose ids no embedding can hold."""


def plain_document(content: str, special_ids: frozenset[int] = frozenset()) -> dict:
    """Return a tokenizer.json as the tokenizers library understands it, every field written out.

    Dropout, which would change the ids from call to call, is off, and the tokens `special_ids` are special.
    """
    try:
        tokenizer = Tokenizer.from_str(content)
    except Exception as error:
        raise TokenizerFileError(
            f"not a tokenizer.json that the tokenizers library reads ({error}). Save the tokenizer again with it."
        ) from error
    ids = tokenizer.get_vocab().values()
    if not ids:
        raise TokenizerFileError("the tokenizer has no tokens. Save the tokenizer again, with its vocabulary.")
    if max(ids) >= MOST_IDS:
        raise TokenizerFileError(
            f"the largest id is {max(ids)}, of {len(ids)} tokens: a model has an embedding for each id up to the "
            f"largest, at most {MOST_IDS}. Number the tokens from 0 on."
        )
    if hasattr(tokenizer.model, "dropout"):
        tokenizer.model.dropout = None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    document: dict = json.loads(tokenizer.to_str())
    for token in document["added_tokens"]:
        token["special"] = token["special"] or token["id"] in special_ids
    return document


def plain_tokenizer(document: dict) -> Tokenizer:
    """Return a tokenizer whose ids of a text never hold a special token, whatever the text spells.

    A model that knows the spelling of a special token as a piece of its own, as Unigram models do, never sees the whole
    spelling: it is cut behind its first character.
    """
    tokenizer = Tokenizer.from_str(json.dumps(document))
    # Text that spells the end of a document must not end it.
    tokenizer.encode_special_tokens = True
    spelled = _spelled_specials(tokenizer, document)
    if spelled:
        # By first characters, so that any other character of a text costs a few comparisons, however many tokens.
        cut = "|".join(f"{re.escape(first)}(?={'|'.join(rests)})" for first, rests in spelled.items())
        parts = [] if tokenizer.pre_tokenizer is None else [tokenizer.pre_tokenizer]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*parts, pre_tokenizers.Split(Regex(cut), "isolated")])
    return tokenizer


def _spelled_specials(tokenizer: Tokenizer, document: dict) -> dict[str, list[str]]:
    """Return the special tokens that the model makes of their spelling: patterns of the rest, by first character."""
    tokens = {token["content"]: token["id"] for token in document["added_tokens"] if token["special"]}
    if document["model"].get("byte_fallback") and (byte := tokenizer.token_to_id(_BYTE_PIECE)) is not None:
        tokens[_BYTE_PIECE] = byte
    found: dict[str, list[str]] = {}
    for content, number in tokens.items():
        texts = (content, f"a{content}b", f" {content} ")
        if any(number in _ids(tokenizer, text) for text in texts):
            spelling = content if content == _BYTE_PIECE else _as_model_sees(tokenizer, content)
            rest = _REST_OF_BYTE_PIECE if content == _BYTE_PIECE else re.escape(spelling[1:])
            found.setdefault(spelling[0], []).append(rest)
    return found


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    try:
        return tokenizer.encode(text, add_special_tokens=False).ids
    except Exception:  # a model without an unknown token cannot encode these characters
        return []


def _as_model_sees(tokenizer: Tokenizer, content: str) -> str:
    """Return the text after normaliser and pre-tokenizer, without a space that these put before it."""

    def seen(text: str) -> str:
        if tokenizer.normalizer is not None:
            text = tokenizer.normalizer.normalize_str(text)
        if tokenizer.pre_tokenizer is not None:
            text = "".join(piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text))
        return text

    # Between two letters, nothing is put before it.
    return seen(f"a{content}b")[len(seen("a")) : -1]
