"""Ranks: a `tokenizer.json` in tiktoken's form, where tiktoken makes the same ids.

tokenizers merges the pairs of its list in order. tiktoken merges every two neighbours that together are a token, lowest
id first. Their ids agree if ids grow along the list, and no two neighbours ever make a token that the list does not
make of them. The second condition holds

- if each token, spelled out in bytes, is merged back into itself: two neighbours that make a token are then the last
  two pieces that the token is made of, which the list joins; or
- if the list joins every two tokens that make a token, as in lists made from ranks (Llama 3), and a piece that is a
  token is never taken apart (`ignore_merges`), as tiktoken never does.
"""

from typing import NamedTuple

from tokenizers import Tokenizer, models

from runtime.data.normalizing import Normalizing
from runtime.data.token_bytes import byte_alphabet

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The pattern of `ByteLevel` with `use_regex` (GPT-2's encoder.py)."""


class NotConvertibleError(ValueError):
    """A tokenizer that only `tokenizers` can run; the message says why."""


class Ranks(NamedTuple):
    """Arguments of `tiktoken.Encoding`, which makes the same ids of normalised texts without an added token."""

    mergeable_ranks: dict[bytes, int]
    pattern: str
    added_texts: tuple[str, ...]
    """Added tokens that are not special: tokenizers finds them in texts, tiktoken does not."""


def ranks_of(document: dict) -> Ranks:
    """Return the ranks of a byte-level BPE, from the JSON of its `tokenizer.json` (`plain_document`).

    Raise NotConvertibleError if it is another kind of tokenizer, or tiktoken would make other ids.
    """
    model, added = document["model"], document["added_tokens"]
    _check_plain_bpe(document, model)
    pattern = _pattern(document["pre_tokenizer"])
    alphabet, specials = byte_alphabet(), {token["content"] for token in added}
    ids = {piece: index for piece, index in model["vocab"].items() if piece not in specials}
    if not alphabet.keys() <= ids.keys() or any(character not in alphabet for piece in ids for character in piece):
        raise NotConvertibleError("its vocabulary is not of the 256 bytes in GPT-2's alphabet and pieces made of them")
    merges = [tuple(pair) for pair in model["merges"]]
    made = ["".join(pair) for pair in merges]
    if set(made) != {piece for piece in ids if len(piece) > 1} or not all(
        left in ids and right in ids for left, right in merges
    ):
        raise NotConvertibleError("its merges do not make the tokens of its vocabulary from one another")
    order = [ids[piece] for piece in made]
    if order != sorted(order):
        raise NotConvertibleError("the ids of its tokens do not grow in the order of its merges")
    _check_merges(ids, merges, ignores_merges=bool(model.get("ignore_merges")))
    ranks = {bytes(alphabet[character] for character in piece): index for piece, index in ids.items()}
    return Ranks(ranks, pattern, tuple(sorted(token["content"] for token in added if not token["special"])))


def _check_plain_bpe(document: dict, model: dict) -> None:
    if model["type"] != "BPE":
        raise NotConvertibleError(f"its model is {model['type']}")
    for name in ("unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(name):
            raise NotConvertibleError(f"its model sets {name}={model[name]!r}")
    if not Normalizing(document["normalizer"]).is_unicode_form:
        raise NotConvertibleError(f"it has a normalizer ({document['normalizer']['type']})")


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
    parts = [] if pre_tokenizer is None else [pre_tokenizer, *pre_tokenizer.get("pretokenizers", [])]
    kinds = [part["type"] for part in parts]
    raise NotConvertibleError(f"its pre-tokenizer is {kinds}, not one pattern followed by ByteLevel")


def _check_merges(ids: dict[str, int], merges: list, *, ignores_merges: bool) -> None:
    by_merges = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=False))
    encoded = by_merges.encode_batch(list(ids), add_special_tokens=False)
    changed = sum(encoding.ids != [index] for index, encoding in zip(ids.values(), encoded, strict=True))
    if not changed:
        return
    joined = set(merges)
    unjoined = sum(
        (piece[:place], piece[place:]) not in joined
        for piece in ids
        for place in range(1, len(piece))
        if piece[:place] in ids and piece[place:] in ids
    )
    if unjoined or not ignores_merges:
        raise NotConvertibleError(
            f"{changed} of its tokens are not merged back into themselves, and its merges lack {unjoined} pairs that "
            "make a token"
        )
