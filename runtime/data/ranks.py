"""Ranks: a `tokenizer.json` as what tiktoken reads, where the two give the same ids, and else why not.

tokenizers merges the pairs of its list, the first of the list first. tiktoken merges every two neighbours that make a
token together, the lowest id first. The two are one if ids grow along the list, and if no two neighbours ever make a
token that the list does not make of them. The second holds

- if each token, spelled out in bytes, is merged back into itself: two neighbours then can only be the last two pieces
  that their token is made of, which the list joins; or
- if the list joins each two tokens that make a token: so are the lists that are made of ranks, as Llama 3's.

And a piece that is a token as it stands, which tiktoken never takes apart, must come out whole: it does under the first
rule, and under the second with `ignore_merges`.
"""

import json
from typing import NamedTuple

from tokenizers import Tokenizer, models

from runtime.data.token_bytes import byte_alphabet

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What `ByteLevel` with `use_regex` splits by (GPT-2's encoder.py)."""


class NotConvertibleError(ValueError):
    """A tokenizer that only `tokenizers` can run; the message says what stands in the way."""


class Ranks(NamedTuple):
    """What `tiktoken.Encoding` takes."""

    mergeable_ranks: dict[bytes, int]
    pattern: str
    proof: str
    """Which of the two rules holds."""


def ranks_of(tokenizer_json: str) -> Ranks:
    """The ranks of a byte-level BPE.

    Raises:
        NotConvertibleError: it is something else, or tiktoken would merge otherwise.
    """
    document = json.loads(tokenizer_json)
    model = document["model"]
    _refuse_what_is_more_than_bpe(document, model)
    pattern = _pattern(document.get("pre_tokenizer"))
    added = {token["content"] for token in document.get("added_tokens") or []}
    alphabet = byte_alphabet()
    ids = {piece: index for piece, index in model["vocab"].items() if piece not in added}
    if any(character not in alphabet for piece in ids for character in piece):
        raise NotConvertibleError("its vocabulary holds pieces that are not written in GPT-2's alphabet of bytes")
    if any(character not in ids for character in alphabet):
        raise NotConvertibleError("its vocabulary lacks some of the 256 bytes")
    merges = [_pair(pair) for pair in model["merges"]]
    made = ["".join(pair) for pair in merges]
    if any(left not in ids or right not in ids or both not in ids for (left, right), both in zip(merges, made)):  # noqa: B905
        raise NotConvertibleError("a merge speaks of a token that is not in its vocabulary")
    order = [ids[both] for both in made]
    if order != sorted(order):
        raise NotConvertibleError("the ids of its tokens do not grow in the order of its merges")
    if set(made) != {piece for piece in ids if len(piece) > 1}:
        raise NotConvertibleError("a token of its vocabulary is made by no merge")
    ranks = {bytes(alphabet[character] for character in piece): index for piece, index in ids.items()}
    return Ranks(ranks, pattern, _proof(model, ids, merges))


def _pair(merge: str | list[str]) -> tuple[str, str]:
    """Two pieces, which older files write as one text."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def _refuse_what_is_more_than_bpe(document: dict, model: dict) -> None:
    if model["type"] != "BPE":
        raise NotConvertibleError(f"its model is {model['type']}")
    for name in ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(name):
            raise NotConvertibleError(f"its model sets {name}={model[name]!r}")
    if document.get("normalizer") is not None:
        raise NotConvertibleError(f"it has a normalizer ({document['normalizer']['type']})")
    plain = sorted(token["content"] for token in document.get("added_tokens") or [] if not token["special"])
    if plain:
        raise NotConvertibleError(f"it has added tokens that are not special ({plain[:3]})")


def _pattern(pre_tokenizer: dict | None) -> str:
    match pre_tokenizer:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return GPT2_PATTERN
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return pattern
    kinds = None if pre_tokenizer is None else [pre_tokenizer["type"], *_kinds(pre_tokenizer)]
    raise NotConvertibleError(f"its pre-tokenizer is {kinds}, not one pattern and the bytes of what it splits")


def _kinds(pre_tokenizer: dict) -> list[str]:
    return [part["type"] for part in pre_tokenizer.get("pretokenizers", [])]


def _proof(model: dict, ids: dict[str, int], merges: list[tuple[str, str]]) -> str:
    by_merges = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=False))
    pieces = list(ids)
    encoded = by_merges.encode_batch(pieces, add_special_tokens=False)
    changed = sum(encoding.ids != [ids[piece]] for piece, encoding in zip(pieces, encoded, strict=True))
    if not changed:
        return "each token is merged back into itself"
    joined = set(merges)
    apart = sum(
        (piece[:place], piece[place:]) not in joined
        for piece in pieces
        for place in range(1, len(piece))
        if piece[:place] in ids and piece[place:] in ids
    )
    if apart or not model.get("ignore_merges"):
        raise NotConvertibleError(
            f"{changed} of its tokens are not merged back into themselves, and {apart} pairs that make a token are not "
            "in its list of merges"
        )
    return "its merges join each two tokens that make a token"
