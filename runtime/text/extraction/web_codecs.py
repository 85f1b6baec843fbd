"""Decoders of the WHATWG Encoding standard, which browsers follow, made of Python's codecs.

Python's codecs of these names follow older standards: they lack characters that vendors added and pages use. Python has
the larger codec for most of them (`_CODECS`); a few characters of the others are added here.
"""

import codecs
import functools

from resiliparse.parse.encoding import map_encoding_to_html5

_CODECS = {
    "big5": "big5hkscs",
    "euc_kr": "cp949",
    "gbk": "gb18030",
    "iso2022_jp": "iso2022_jp_ext",
    "iso8859-11": "cp874",
    "shift_jis": "cp932",
}
# Resiliparse knows every label of the standard but these two.
_LABELS = {"x-mac-cyrillic": "mac-cyrillic", "x-mac-ukrainian": "mac-cyrillic"}
ISO_2022_JP = "iso2022_jp_ext"
_REFUSED = ("hz-gb-2312", "iso-2022-cn", "iso-2022-cn-ext", "iso-2022-kr", "csiso2022kr")
# Characters for which Python and the standard's index have different code points.
_JIS_POINTS = str.maketrans("〜‖−¢£¬", "～∥－￠￡￢")
_BIG5_POINTS = str.maketrans("•､‾∼♁☉¥¢£￭", "‧﹑¯～⊕⊙￥￠￡▓")
_POINTS = {"euc_jp": _JIS_POINTS, ISO_2022_JP: _JIS_POINTS, "big5hkscs": _BIG5_POINTS}


def codec_of(label: str) -> str | None:
    """Return Python's codec for the label of a server or page; None if browsers know no charset of that label."""
    label = label.strip().lower()
    codec = _LABELS.get(label) or map_encoding_to_html5(label, fallback_utf8=False)
    return _CODECS.get(codec, codec) if codec else None


def is_refused(label: str) -> bool:
    """Return whether browsers refuse a charset, whose ASCII bytes stand for other characters."""
    return label.strip().lower() in _REFUSED


def decode(data: bytes, codec: str, *, is_cut: bool = False, replaces: bool = False) -> str:
    """Decode bytes as browsers do.

    Args:
        data: The bytes.
        codec: A codec that `codec_of` returned.
        is_cut: The bytes may end inside a character.
        replaces: Give U+FFFD for bytes without a meaning.

    Raises:
        UnicodeDecodeError: bytes without a meaning, unless they are replaced.
        LookupError: Python has no such codec.
    """
    handler = _error_handler(codec, replaces)
    # An incremental decoder with `final` loses bytes behind those that a handler has read at the very end.
    text = codecs.getincrementaldecoder(codec)(handler).decode(data) if is_cut else data.decode(codec, handler)
    return text.translate(_POINTS[codec]) if codec in _POINTS else text


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
    if codec == "gb18030" and first == 0x80:
        return "€", 1
    if codec == "big5hkscs" and first == 0xA3 and 0xC0 <= second <= 0xE1:
        return ("€" if second == 0xE1 else "␡" if second == 0xE0 else chr(0x2400 + second - 0xC0)), 2
    if codec == "euc_jp" and min(first, second) >= 0xA1 and max(first, second) <= 0xFE:
        return _of_vendor(first - 0xA0, second - 0xA0)
    if codec == ISO_2022_JP and min(first, second) >= 0x21 and max(first, second) <= 0x7E:
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
