"""The charset of a web page: UTF-8 if the bytes are, else what server or page declare, else a guess.

UTF-8 is tried first whatever is declared: text in another charset is hardly ever valid UTF-8, and servers that declare
another one for it are common. Only ISO-2022-JP consists of bytes that are valid UTF-8; its escapes are no text.
Labels mean what browsers take them for (`web_codecs`). The first charset that decodes all bytes wins. A page with a few
bytes outside its declared charset, such as a visitor's name, is read with a U+FFFD for each: a guess would get those
few right and the rest wrong. Control characters of the upper half (C1) count as bytes outside the charset: pages that
use those bytes are in another charset than they declare.
"""

import codecs
import re
from typing import NamedTuple

from resiliparse.parse.encoding import detect_encoding

from runtime.text.extraction.web_codecs import ISO_2022_JP, codec_of, decode, is_refused

_BYTE_ORDER_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_META = re.compile(rb"<meta\b[^>]*?charset\s*=\s*[\"']?\s*([\w:.+-]+)", re.I)
# Browsers search 1,024 bytes (HTML, "prescan a byte stream"), but pages of 2008 begin with long scripts.
_PRESCAN_BYTES = 2_048
_SHIFTS = re.compile(rb"\x1b\$|\x0e|~\{")
_JAPANESE_ESCAPE = re.compile(rb"\x1b\$[@B]")
C1_CONTROLS = re.compile("[\x80-\x9f]")


class Decoded(NamedTuple):
    text: str
    charset: str
    """The name of a Python codec."""
    source: str
    """The origin of the charset: "bytes", "server", "page" or "guess"."""
    num_replaced: int = 0
    """How many characters are U+FFFD because their bytes have no meaning in the charset."""


def decode_page(
    data: bytes, *, server_charset: str | None, is_cut: bool = False, max_replaced_share: float = 0.0
) -> Decoded | None:
    """Decode a page; return None if no charset fits or the text holds NUL, which no page does.

    Args:
        data: The body.
        server_charset: The label in the Content-Type, if any.
        is_cut: The body may end inside a character.
        max_replaced_share: The share of characters that the declared charset may lack.
    """
    for mark, charset in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            text = _strictly(data[len(mark) :], charset, is_cut)
            return None if text is None else Decoded(text, charset, "bytes")
    labels = _labels(data, server_charset)
    if any(is_refused(label) for label, _ in labels) and data.isascii() and _SHIFTS.search(data):
        return None
    first = ISO_2022_JP if _JAPANESE_ESCAPE.search(data) else "utf-8"
    declared = [(first, "bytes"), *((codec, source) for label, source in labels if (codec := codec_of(label)))]
    for charset, source in declared:
        text = _strictly(data, charset, is_cut)
        if text is not None:
            return Decoded(text, charset, source)
    for charset, source in declared[1:]:
        text = C1_CONTROLS.sub("\ufffd", decode(data, charset, replaces=True))
        num_replaced = text.count("\ufffd")
        if num_replaced <= max_replaced_share * len(text) and "\0" not in text:
            return Decoded(text, charset, source, num_replaced)
    guess = codec_of(detect_encoding(data) or "")
    text = _strictly(data, guess, is_cut) if guess else None
    return None if guess is None or text is None else Decoded(text, guess, "guess")


def _labels(data: bytes, server_charset: str | None) -> list[tuple[str, str]]:
    """Return the labels that server and page declare, with the name of who does."""
    meta = _META.search(data, 0, _PRESCAN_BYTES)
    labels = ((server_charset, "server"), (meta and meta[1].decode("ascii"), "page"))
    return [(label, source) for label, source in labels if label]


def _strictly(data: bytes, charset: str, is_cut: bool) -> str | None:
    try:
        text = decode(data, charset, is_cut=is_cut)
    except (UnicodeDecodeError, LookupError):
        return None
    is_legacy = charset != "utf-8"
    return None if "\0" in text or (is_legacy and C1_CONTROLS.search(text)) else text
