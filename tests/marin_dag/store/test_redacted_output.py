"""Redacted output: a secret that comes in pieces is hidden, and a line is shown as it grows."""

import concurrent.futures
import io
import sys

import pytest

from marin_dag.store.redact import redact
from marin_dag.store.redacted_output import LinesWithoutSecrets, RedactingStream


def written_by_lines(lines: list[str]) -> str:
    written: list[str] = []
    stream = LinesWithoutSecrets(written.append)
    for line in lines:
        stream.write(line)
    return "".join(written)


KEY = ["-----BEGIN RSA PRIVATE KEY-----\n", "Proc-Type: 4,ENCRYPTED\n", "\n", "planted+/0123456789/0\n", "plan/ted\n"]
END = "-----END RSA PRIVATE KEY-----\n"


@pytest.mark.parametrize("last", [END, "loss 2.5 at step 7\n"])
def test_a_private_key_that_comes_line_by_line_is_hidden_and_what_follows_is_not(last: str):
    shown = written_by_lines([*KEY, last, "planted after it\n"])
    assert shown == f"-----BEGIN RSA PRIVATE KEY-----***Proc-Type: 4,ENCRYPTED\n\n***\n***\n{last}planted after it\n"


@pytest.mark.parametrize("prefix", ["(pid=3) ", "2026-01-02 03:04:05 INFO ", "\x1b[36m(worker pid=3)\x1b[0m ", "│ "])
def test_each_line_of_a_key_is_hidden_after_a_prefix(prefix: str):
    key = [
        f"{prefix}{line}" for line in ["planted+/0123456789/0\n", "step 7 of 9\n", "planted=\n", END, "is planted\n"]
    ]
    shown = written_by_lines([f"{prefix}{KEY[0]}", *key])
    lines = ["***\n", "step 7 of 9\n", "***\n", END, "is planted\n"]
    assert shown == f"{prefix}-----BEGIN RSA PRIVATE KEY-----***" + "".join(prefix + line for line in lines)


def test_a_key_of_one_long_line_is_hidden_and_one_that_never_ends_hides_a_few_lines_only():
    assert "plan" not in written_by_lines([KEY[0], "plan" * 500 + "\n", END])
    word = "internationalization\n"
    assert written_by_lines([KEY[0], *["loss 2.5 at step 7\n"] * 30, word]).endswith(word)


@pytest.mark.parametrize("piece", ["a=", "/=", "a ", "a|", "= ", "a" * 15 + "= "])
def test_a_long_line_within_a_key_takes_linear_time(piece: str):
    assert written_by_lines([KEY[0], piece * 50_000 + "-x\n"])


def test_many_pieces_are_written_in_order_and_a_progress_bar_at_once():
    written: list[str] = []
    lines = LinesWithoutSecrets(written.append)
    for _ in range(20_000):
        lines.write("..........")
    assert written == []
    lines.write(" --token=plan")
    lines.write("ted\r 50%\r 60")
    assert "".join(written) == "." * 200_000 + " --token=***\r 50%\r"
    lines.close()
    assert written[-1] == " 60"


def test_a_line_without_an_end_is_written_in_pieces():
    written: list[str] = []
    lines = LinesWithoutSecrets(written.append)
    for _ in range(3):
        lines.write("." * (1 << 19))
    assert written == ["." * (3 << 19)]


@pytest.mark.parametrize("words", ["the sea is ", "the secret is a token ", "token=planted-one of "])
def test_a_line_of_many_flushes_is_redacted_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch, words: str):
    num_redacted = 0

    def counted(text: str) -> str:
        nonlocal num_redacted
        num_redacted += len(text)
        return redact(text)

    monkeypatch.setattr("marin_dag.store.redacted_output.redact", counted)
    out = io.StringIO()
    with RedactingStream(out) as stream:
        for _ in range(400):
            stream.write(words)
            stream.flush()
        assert len(out.getvalue()) > 300 * len(redact(words))
    assert out.getvalue() == redact(words * 400)
    assert num_redacted < 400 * 1_024


def test_threads_that_print_and_flush_lose_and_repeat_nothing():
    out = io.StringIO()
    with RedactingStream(out) as stream, concurrent.futures.ThreadPoolExecutor(4) as pool:

        def print_words(thread: int) -> None:
            for number in range(100):
                stream.write(f"<{thread}-{number}> ")
                stream.flush()

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            list(pool.map(print_words, range(4)))
        finally:
            sys.setswitchinterval(interval)
    expected = [f"<{thread}-{number}>" for thread in range(4) for number in range(100)]
    assert sorted(out.getvalue().split()) == sorted(expected)


def test_a_flushed_line_is_written_word_by_word():
    out = io.StringIO()
    with RedactingStream(out) as stream:
        for piece, shown in (
            ("The", ""),
            (" sea", "The "),
            (" is wi", "The sea is "),
            ("de, 猫", "The sea is wide, 猫"),
        ):
            stream.write(piece)
            stream.flush()
            assert out.getvalue() == shown
        stream.write("\n")
        assert out.getvalue() == "The sea is wide, 猫\n"
        stream.write("running \x1b[2K")
        stream.flush()
        assert out.getvalue() == "The sea is wide, 猫\n", "no half of a control sequence"


BEGIN = "-----BEGIN PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (("--token=pla", "nted", "-secret on"), "--token=*** on"),
        (("Bearer ", "plan", "ted-secret"), "Bearer ***"),
        (("Authorization: Basic ", "planted-secret ", "on"), "Authorization: *** \nAuthorization: Basic *** on"),
        (("my own ", "word of ", "magic on"), "*** on"),
        (("my own ", "word"), "my own word"),
        (("<password>correct ", "horse ", "staple</password> on"), "<password>***</password> on"),
        (("the <token> ", "embedding ", "is"), "the <token> embedding is"),
        (("see https://user:pä", "ssword-planted@host on"), "see https://***@host on"),
        (("see https://user:猫", "ssword-planted@host on"), "see https://***@host on"),
        (("--token пар", "оль-planted on"), "--token *** on"),
        (("Bearer plантed", "-猫planted on"), "Bearer *** on"),
        (
            (f"{BEGIN}\n", "plan", "ted+1\n", "-----END PRIVATE KEY-----\n"),
            f"{BEGIN}******\n-----END PRIVATE KEY-----\n",
        ),
    ],
)
def test_a_secret_that_is_flushed_in_pieces_is_hidden(
    monkeypatch: pytest.MonkeyPatch, pieces: tuple[str, ...], shown: str
):
    monkeypatch.setenv("MY_TOKEN", "my own word of magic")
    out = io.StringIO()
    with RedactingStream(out) as stream:
        for piece in pieces:
            stream.write(piece)
            stream.flush()
    assert out.getvalue() == shown
