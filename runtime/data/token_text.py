"""Token text: the text that each token of a sequence adds, for people to read."""

from collections.abc import Sequence

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"
MOST_TOKENS_OF_A_CHARACTER = 4


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
