"""Token bytes: how many bytes of text each token id stands for, exactly; and the text that a token adds.

Decoding a token to text and measuring that is wrong: half a UTF-8 character decodes to U+FFFD, three bytes for one, and
bits per byte come out three times too good on Japanese. So pieces are turned back into their bytes.
"""

import re
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int32
from tokenizers import Tokenizer

BYTE_FALLBACK = re.compile(r"<0x[0-9A-Fa-f]{2}>")
SPACE_MARK = "\u2581"
"""SentencePiece and Metaspace write it for a space."""
REPLACEMENT = "\ufffd"
MOST_TOKENS_OF_A_CHARACTER = 4


class TokenBytesError(ValueError):
    """A tokenizer whose pieces cannot be turned back into bytes."""


def token_bytes(document: dict) -> Int32[np.ndarray, "vocab_size"]:
    """Return the bytes of each id of a `tokenizer.json`; special tokens and ids without a piece have none.

    Added tokens that are not special stand for text and count their own UTF-8 bytes. The sum over an encoded document
    is its UTF-8 length wherever the tokenizer is lossless (no normaliser, no added space). `document` is the JSON, as
    `plain_document` returns it.
    """
    vocabulary = document["model"]["vocab"]
    if isinstance(vocabulary, list):  # Unigram: [piece, score] by id
        vocabulary = {piece: index for index, (piece, _) in enumerate(vocabulary)}
    added = document["added_tokens"]
    size = 1 + max([*vocabulary.values(), *(token["id"] for token in added)])
    lengths = np.zeros(size, np.int32)
    measure = _measure(document)
    for piece, index in vocabulary.items():
        lengths[index] = measure(piece)
    for token in added:
        lengths[token["id"]] = 0 if token["special"] else len(token["content"].encode())
    unknown = document["model"].get("unk_token")
    if unknown in vocabulary:
        lengths[vocabulary[unknown]] = 0
    return lengths


def byte_alphabet() -> dict[str, int]:
    """Return the byte of each printable character that byte-level BPE writes for one (GPT-2's table)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + offset): byte for offset, byte in enumerate(others)}


def _measure(document: dict) -> Callable[[str], int]:
    parts = _kinds(document.get("decoder")) | _kinds(document.get("pre_tokenizer"))
    if "ByteLevel" in parts:
        alphabet = byte_alphabet()
        # A piece with other characters is an added token that the vocabulary lists too.
        return lambda piece: len(piece) if all(each in alphabet for each in piece) else len(piece.encode())
    if "ByteFallback" in parts or document["model"].get("byte_fallback") or "Metaspace" in parts:
        return lambda piece: 1 if BYTE_FALLBACK.fullmatch(piece) else len(piece.replace(SPACE_MARK, " ").encode())
    raise TokenBytesError(
        f"tokenizer.json: decoder and pre-tokenizer are {sorted(parts)}; only pieces of ByteLevel, ByteFallback and "
        "Metaspace turn back into bytes, which bits per byte needs. Use a byte-level BPE tokenizer."
    )


def _kinds(part: dict | None) -> set[str]:
    if part is None:
        return set()
    nested = part.get("decoders") or part.get("pretokenizers") or []
    return {part["type"]}.union(*(_kinds(item) for item in nested))


def token_texts(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    """Return one text for each token; joined, they are the decoded sequence.

    A character that several tokens spell is the text of the last one, and the others have none. Special tokens are
    written by their names.
    """
    texts: list[str] = []
    done = 0
    before: list[int] = []
    for end in range(1, len(tokens) + 1):
        # Some decoders drop a space at the beginning, so the token before stays in front.
        known = tokenizer.decode(before, skip_special_tokens=False)
        text = tokenizer.decode([*before, *tokens[done:end]], skip_special_tokens=False)[len(known) :]
        if text.endswith(REPLACEMENT) and end - done < MOST_TOKENS_OF_A_CHARACTER:
            texts.append("")
            continue
        texts.append(text)
        done, before = end, [tokens[end - 1]] if not text.endswith(REPLACEMENT) and end - done == 1 else []
    return texts
