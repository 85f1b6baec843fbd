"""Characters of legacy charsets that Python's codecs lack, or read unlike browsers do (WHATWG Encoding)."""


def _numbered(runs: str) -> dict[bytes, str]:
    """Return characters by their two bytes; a run is the bytes of its first character, and characters in order."""
    trails = [*range(0x40, 0x7F), *range(0xA1, 0xFF)]
    found: dict[bytes, str] = {}
    for run in runs.split():
        lead, trail = bytes.fromhex(run[:4])
        for character, second in zip(run[4:], trails[trails.index(trail) :], strict=False):
            found[bytes((lead, second))] = character
    return found


# The additions of 2008 to HKSCS, second places of characters, and the control pictures and euro of ETEN.
_BIG5_RUNS = (
    "877a㡵𡵓𣚞𦀡㻬 87a1𥣞㫵竼龗𤅡𨤍𣇪𠪊𣉞䌊蒄龖鐯䤰蘓墖靊鈘秐稲晠権袝瑌篅枂稬剏遆㓦珄𥶹 "
    "87c1瓆鿇垳䤯呌䄱𣚎堘穲𧭥讏䚮𦺈䆁𥶙箮𢒼鿈𢓁𢓉𢓌鿉蔄𣖻䂴鿊䓡𪷿拁灮鿋 8e69箸 8e6f簆 8e7e糎 8eab緒 8eb4縝 8ecd者 "
    "8ed0耨 8f57菁 8f69蒨 8f6e萏 8fcb覦覩 8ffe起 906d都 907a銹 90dc靜 90f1響 91bf鼖 9244蔃 92af兙兛兝兞 92c8鍮 "
    "92d1瑹 9447浧 94ca禛 95d9邗 9644靝 96ed瀞 96fc嬨 9b76爁 9b78矗 9b7b纇 9bc6駖 9bde釔 9bec惞 9bf6澶 9c42輶 "
    "9c53侻 9c62營 9c68鄄 9c6b鷰 9c77菏 9cbc尐秣 9cd0婧 9d57輋 9d5a筑 9dc4拐 9ea9恢 9eef痹 9efd汊 9f60鬮 9f66鼗 "
    "9fcb僭 9fd8弌 a063蠏 a077拎 a0d5瑨 a0df煢 a0e4牐 a3c0␀␁␂␃␄␅␆␇␈␉␊␋␌␍␎␏␐␑␒␓␔␕␖␗␘␙␚␛␜␝␞␟␡€ c6cf廴 c6d3无 c6d5癶 "
    "c6d7隶 c6de〃仝 fa5f倩 fa66偽 fabd包 fac5卄 fad5卿 fb48嘅 fbb8婷 fbf3幵 fbf9廐 fc4f彘 fc6c悤 fcb9撐 fce2晴 "
    "fcf1杞 fdb7沜渝 fdbb港 fdf1煮 fe52猪 fe6f瑜 feaa瓩 fedd砉 "
)

ADDED: dict[str, dict[bytes, str]] = {
    "big5hkscs": _numbered(_BIG5_RUNS),
    "cp1255": {b"\xca": "\u05ba"},
    "gb18030": {b"\x80": "€"},
}
"""Characters that a codec lacks, by their bytes."""

_JIS_POINTS = str.maketrans("〜‖−¢£¬", "～∥－￠￡￢")
# Python's table is of 2000, the standard's of 2005 and 2022: private characters have become real ones.
_GB18030_POINTS = str.maketrans(
    "\ue5e5\ue78d\ue78e\ue78f\ue790\ue791\ue792\ue793\ue794\ue795\ue796"
    "\ue7c7\ue81e\ue826\ue82b\ue82c\ue832\ue843\ue854\ue864",
    "\u3000︐︒︑︓︔︕︖︗︘︙ḿ龴龵龶龷龸龹龺龻",
)
POINTS = {
    "big5hkscs": str.maketrans("•､‾∼♁☉¥¢£", "‧﹑¯～⊕⊙￥￠￡"),
    "euc_jp": _JIS_POINTS,
    "gb18030": _GB18030_POINTS,
    "iso2022_jp_ext": _JIS_POINTS,
    "koi8-u": str.maketrans("╝╬", "ўЎ"),
}
"""Characters for which a codec and the standard's index have different code points."""
