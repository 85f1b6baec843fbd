"""Charsets: bytes mean what browsers take them for, and a charset that does not fit is none."""

import pytest

from runtime.text.extraction.charset import C1_CONTROLS, codec_of, decode, decode_page


@pytest.mark.parametrize(
    ("label", "data", "text"),
    [
        # Characters that vendors added to a standard, and places where Python and the standard's index differ.
        ("Shift_JIS", b"\x87\x40 \xfa\x40 \x81\x60", "① ⅰ ～"),
        ("euc-jp", b"\xad\xa1 \xf9\xa1 \xa1\xc1 \x8f\xb0\xa1", "① 纊 ～ 丂"),
        ("iso-2022-jp", b"\x1b$B-!!A\x1b(B \x1b(I1\x1b(J\\\x1b(B", "①～ ｱ¥"),
        ("euc-kr", b"\x8c\x63 \xb0\xa1", "똠 가"),
        ("big5", b"\xa3\xe1 \x87\x40 \xa3\xc0 \xa3\xe0 \xa1\x45", "€ 䏰 ␀ ␡ ‧"),
        ("big5-hkscs", b"\x87\x7a \x87\xdf \x8e\xcd \xfd\xbb \xf9\xfe", "㡵 鿋 者 港 ￭"),
        ("gbk", b"\x80 \x80\x33\x30 \xb0\xa1", "€ €30 啊"),
        ("gb2312", b"a\x80", "a€"),
        ("x-mac-cyrillic", b"\xff\x8f", "€П"),
        ("x-mac-ukrainian", b"\xff", "€"),
        ("gb18030", b"\xa8\xbc \xa6\xd9 \xfe\x59 \xa3\xa0", "ḿ ︐ 龴 \u3000"),
        ("windows-1255", b"\xe7\xca\xec", "ח\u05baל"),
        ("koi8-u", b"\xae\xbe\xb3", "ўЎЁ"),
        ("tis-620", b"\xca \x85", "ส …"),
        (" ISO-8859-1\n", b"\x80 \x93a\x94", "€ “a”"),
        ("latin5", b"\xfd \x80", "ı €"),
        ("macintosh", b"\xdb", "€"),
        ("ibm866", b"\x8f", "П"),
        ("iso-8859-8-i", b"\xe0", "א"),
    ],
)
def test_bytes_are_decoded_as_browsers_do(label, data, text):
    codec = codec_of(label)
    assert codec is not None
    assert decode(data, codec) == text
    page = decode_page(b"<p>" + data + b"</p>", server_charset=label)
    assert page is not None
    assert page.text == f"<p>{text}</p>"


@pytest.mark.parametrize(
    ("label", "data"),
    [("euc-jp", b"\xa9\xa1"), ("gbk", b"\xff\xff"), ("big5", b"\x80"), ("euc-kr", b"\xff"), ("shift_jis", b"\x85\x41")],
)
def test_bytes_without_a_meaning_are_an_error_or_replaced(label, data):
    codec = codec_of(label)
    with pytest.raises(UnicodeDecodeError):
        decode(data, codec)
    assert "\ufffd" in decode(b"a" + data + b"b", codec, replaces=True)


@pytest.mark.parametrize("label", ["UTF-16", "utf-16be", "unicode", "ucs-2"])
def test_a_declaration_that_is_read_as_ascii_never_stands_for_utf_16(label):
    data = f"<meta charset={label}>".encode() + b"<p>caf\xe9 " + b"and so on " * 200
    data += b" " * (len(data) % 2)  # UTF-16 would decode it
    page = decode_page(data, server_charset=None, max_replaced_share=0.001)
    assert page is not None
    assert (page.charset, page.source, page.num_replaced) == ("utf-8", "page", 1)
    assert "and so on" in page.text


@pytest.mark.parametrize("byte", [0xA0, 0xFD, 0xFE, 0xFF])
def test_a_byte_that_browsers_do_not_read_as_shift_jis_is_replaced(byte):
    data = "こんにちは".encode("cp932") * 300 + bytes([byte])
    page = decode_page(data, server_charset="shift_jis", max_replaced_share=0.001)
    assert page is not None
    assert page.text == "こんにちは" * 300 + "\ufffd"


@pytest.mark.parametrize("label", ["no-such-charset", "", "hz-gb-2312", "iso-2022-kr", "x-user-defined"])
def test_a_label_without_a_charset_is_none(label):
    assert codec_of(label) is None


@pytest.mark.parametrize(("label", "codec"), [("hz-gb-2312", "hz"), ("ISO-2022-KR", "iso2022_kr")])
def test_a_charset_that_browsers_refuse_is_not_read_as_ascii(label, codec):
    data = "<p>中文</p>".encode(codec)
    assert decode_page(data, server_charset=label) is None
    assert decode_page(f"<meta charset={label}>".encode() + data, server_charset=None) is None
    plain = decode_page(b"<p>toys</p>", server_charset=label)
    assert plain is not None
    assert plain.text == "<p>toys</p>"


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_page_that_was_cut_may_end_inside_a_character(cut):
    for label, text in (
        ("shift_jis", "日本語の"),
        ("iso-2022-jp", "日本語の"),
        ("gbk", "中文网页"),
        ("euc-jp", "日本語の"),
    ):
        codec = codec_of(label)
        data = text.encode(codec)[:-cut]
        page = decode_page(data, server_charset=label, is_cut=True)
        assert page is None or text.startswith(page.text.rstrip())


@pytest.mark.parametrize("server_charset", [None, "utf-8", "iso-2022-jp", "windows-1252"])
def test_escapes_of_iso_2022_jp_are_no_utf_8(server_charset):
    page = decode_page("<p>日本語のページ</p>".encode("iso2022_jp"), server_charset=server_charset)
    assert page is not None
    assert page.text == "<p>日本語のページ</p>"


def test_control_characters_show_that_a_page_is_in_another_charset():
    text = "<p>Žluťoučký kůň úpěl ďábelské ódy, a šest štěňat žvýkalo.</p>" * 20
    page = decode_page(text.encode("cp1250"), server_charset="iso-8859-2")
    assert page is None or not C1_CONTROLS.search(page.text)
    page = decode_page(b"<p>" + b"a " * 5_000 + b"\x85</p>", server_charset="iso-8859-2", max_replaced_share=0.001)
    assert page is not None
    assert (page.num_replaced, page.text.count("\ufffd")) == (1, 1)
