"""Terminals without UTF-8: no print fails."""

import io

import pytest

from marin_dag.cli.main import replace_unprintable


@pytest.mark.parametrize(
    ("encoding", "errors", "printed"),
    [
        ("ascii", "strict", b"0 -> 3e-3 - ... 2 x +-1 \\xe9\\u21c4 \\udcff"),
        ("ascii", "surrogateescape", b"0 -> 3e-3 - ... 2 x +-1 \\xe9\\u21c4 \\udcff"),  # in the C locale
        ("ascii", "backslashreplace", b"0 -> 3e-3 - ... 2 x +-1 \\xe9\\u21c4 \\udcff"),  # on standard error
        ("latin-1", "strict", b"0 -> 3e-3 - ... 2 \xd7 \xb11 \xe9\\u21c4 \\udcff"),
        ("utf-8", "strict", "0 → 3e-3 – … 2 × ±1 é⇄ ".encode() + b"\\udcff"),
        ("ascii", "replace", b"0 ? 3e-3 ? ? 2 ? ?1 ?? ?"),  # chosen by the user
    ],
)
def test_characters_that_an_encoding_lacks_are_written_in_ascii(encoding: str, errors: str, printed: bytes) -> None:
    terminal = io.BytesIO()
    stream = io.TextIOWrapper(terminal, encoding=encoding, errors=errors)
    replace_unprintable(stream)
    stream.write("0 → 3e-3 – … 2 × ±1 é⇄ \udcff")
    stream.flush()
    assert terminal.getvalue() == printed
