"""The charset of a web page: UTF-8 if the bytes are, else what server or page declare, else a guess.

UTF-8 is tried first whatever is declared: text in another charset is hardly ever valid UTF-8, and servers that declare
another one for it are common. Only ISO-2022-JP consists of bytes that are valid UTF-8; its escapes are no text.
Labels and bytes mean what browsers take them for (WHATWG Encoding). Python's codecs follow older standards: they lack
characters that vendors added and pages use, which are added here. The first charset that decodes all bytes wins. A page
with a few bytes outside its declared charset is read with a U+FFFD for each: a guess would get those few right and the
rest wrong. Control characters of the upper half (C1) count as bytes outside the charset.
"""

import codecs
import functools
import re
from typing import NamedTuple

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

from runtime.text.extraction.charset_tables import ADDED, POINTS

C1_CONTROLS = re.compile("[\x80-\x9f]")
# Python's cp932 reads the bytes A0, FD, FE and FF as private characters; browsers do not read them.
_NO_CHARACTERS = re.compile("[\x80-\x9f\uf8f0-\uf8f3]")
_BYTE_ORDER_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_UTF_16 = ("utf-16-le", "utf-16-be")
_META = re.compile(rb"<meta\b[^>]*?charset\s*=\s*[\"']?\s*([\w:.+-]+)", re.I)
_COMMENT = re.compile(rb"<!--.*?(?:-->|\Z)", re.S)
_XML_ENCODING = re.compile(rb"<\?xml\b[^>]*?encoding\s*=\s*[\"']\s*([\w:.+-]+)")
# Browsers search 1,024 bytes (HTML, "prescan a byte stream"), but pages of 2008 begin with long scripts.
_PRESCAN_BYTES = 2_048
_SHIFTS = re.compile(rb"\x1b\$|\x0e|~\{")
_JAPANESE_ESCAPE = re.compile(rb"\x1b\$[@B]")
_ISO_2022_JP = "iso2022_jp_ext"
# Python's larger codecs for names of the standard.
_CODECS = {
    "big5": "big5hkscs",
    "euc_kr": "cp949",
    "gbk": "gb18030",
    "iso2022_jp": _ISO_2022_JP,
    "iso8859-11": "cp874",
    "shift_jis": "cp932",
}
# Resiliparse knows every label of the standard but these two.
_LABELS = {"x-mac-cyrillic": "mac-cyrillic", "x-mac-ukrainian": "mac-cyrillic"}
# Browsers refuse charsets whose ASCII bytes stand for other characters.
_REFUSED = ("hz-gb-2312", "iso-2022-cn", "iso-2022-cn-ext", "iso-2022-kr", "csiso2022kr")


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

    A body that `is_cut` may end inside a character. The declared charset may lack `max_replaced_share` of the text.
    """
    for mark, charset in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            text = _strictly(data[len(mark) :], charset, is_cut)
            return None if text is None else Decoded(text, charset, "bytes")
    beginning = _COMMENT.sub(b"", data[:_PRESCAN_BYTES])
    found = _META.search(beginning) or _XML_ENCODING.match(beginning)
    given = ((server_charset, "server"), (found and found[1].decode("ascii"), "page"))
    labels = [(label.strip().lower(), source) for label, source in given if label]
    if any(label in _REFUSED for label, _ in labels) and data.isascii() and _SHIFTS.search(data):
        return None
    first = _ISO_2022_JP if _JAPANESE_ESCAPE.search(data) else "utf-8"
    declared = [(first, "bytes")]
    for label, source in labels:
        codec = codec_of(label)
        if source == "page" and codec in _UTF_16:
            # The declaration was read as ASCII, so it is wrong (HTML, "prescan a byte stream").
            codec = "utf-8"
        if codec is not None:
            declared.append((codec, source))
    for charset, source in declared:
        text = _strictly(data, charset, is_cut)
        if text is not None:
            return Decoded(text, charset, source)
    for charset, source in declared[1:]:
        text = _NO_CHARACTERS.sub("\ufffd", decode(data, charset, replaces=True))
        num_replaced = text.count("\ufffd")
        if num_replaced <= max_replaced_share * len(text) and "\0" not in text:
            return Decoded(text, charset, source, num_replaced)
    guess = codec_of(detect_encoding(data) or "")
    text = _strictly(data, guess, is_cut) if guess else None
    return None if guess is None or text is None else Decoded(text, guess, "guess")


def _strictly(data: bytes, charset: str, is_cut: bool) -> str | None:
    try:
        text = decode(data, charset, is_cut=is_cut)
    except (UnicodeDecodeError, LookupError):
        return None
    is_legacy = charset != "utf-8"
    return None if "\0" in text or (is_legacy and _NO_CHARACTERS.search(text)) else text


def codec_of(label: str) -> str | None:
    """Return Python's codec for the label of a server or page; None if browsers know no charset of that label."""
    label = label.strip().lower()
    codec = _LABELS.get(label) or map_encoding_to_html5(label, fallback_utf8=False)
    return _CODECS.get(codec, codec) if codec else None


def decode(data: bytes, codec: str, *, is_cut: bool = False, replaces: bool = False) -> str:
    """Decode bytes as browsers do by a codec of `codec_of`; they may be `is_cut` inside a character.

    Raise UnicodeDecodeError for bytes without a meaning, unless U+FFFD replaces them. Raise LookupError if Python has
    no such codec.
    """
    handler = _error_handler(codec, replaces)
    # An incremental decoder with `final` loses bytes behind those that a handler has read at the very end.
    text = codecs.getincrementaldecoder(codec)(handler).decode(data) if is_cut else data.decode(codec, handler)
    return text.translate(POINTS[codec]) if codec in POINTS else text


@functools.cache
def _error_handler(codec: str, replaces: bool) -> str:
    """Register and return a handler that adds the characters that a codec lacks."""

    def handle(error: UnicodeError) -> tuple[str | bytes, int]:
        if not isinstance(error, UnicodeDecodeError):
            raise error
        found = _missing_character(codec, error.object[error.start : error.start + 2])
        if found is not None:
            return found[0], error.start + found[1]
        if replaces:
            return "\ufffd", error.end
        raise error

    name = f"web-{codec}-{replaces}"
    codecs.register_error(name, handle)
    return name


def _missing_character(codec: str, data: bytes) -> tuple[str, int] | None:
    """Return a character that Python's codec lacks at the beginning of the bytes, and how many bytes it takes."""
    first, second = (*data, 0, 0)[:2]
    added = ADDED.get(codec, {})
    for size in (1, 2):
        if (character := added.get(data[:size])) is not None:
            return character, size
    if codec == "euc_jp" and min(first, second) >= 0xA1 and max(first, second) <= 0xFE:
        return _of_vendor(first - 0xA0, second - 0xA0)
    if codec == _ISO_2022_JP and min(first, second) >= 0x21 and max(first, second) <= 0x7E:
        return _of_vendor(first - 0x20, second - 0x20)
    return None


def _of_vendor(row: int, cell: int) -> tuple[str, int] | None:
    """Return a character that NEC or IBM added to JIS X 0208, by way of its place in Shift_JIS."""
    lead = (row - 1) // 2 + (0x81 if row <= 62 else 0xC1)
    trail = cell + 0x9E if row % 2 == 0 else cell + (0x3F if cell <= 63 else 0x40)
    try:
        return bytes((lead, trail)).decode("cp932"), 2
    except UnicodeDecodeError:
        return None
