"""Redaction: secrets are hidden, and ordinary text is left as it is."""

import concurrent.futures
import io
import json
import os
import sys

import pytest

from marin_dag.run.ray.cluster import dashboard_line
from marin_dag.store.redact import (
    LinesWithoutSecrets,
    RedactingStream,
    SecretError,
    check_no_secrets,
    redact,
    redact_identity,
)
from tests.catalogue import expect_error


@pytest.mark.parametrize(
    "text",
    [
        "https://user:planted-secret@host/path",
        "Authorization: Bearer planted-secret-0123",
        "authorization: Basic planted-secret",
        "x-goog-signature=planted-secret&x=1",
        "api_key='planted-secret'",
        '{"access_token": "planted-secret"}',
        "--password planted-secret".replace(" ", "="),
        "--token=planted-secret",
        "--password planted-secret",
        "--api-key 'planted-secret'",
        "hf_plantedsecret0123",
        "gho_planted0123456789",
        "npm_planted01234567890123456789012345678",
        "xapp-1-planted-0123",
        "GOCSPX-planted0123",
        "sk_live_planted0123",
        "SG.planted0123456789.planted0123456789",
        "AccountKey=planted0123==;EndpointSuffix=core",
        "password='correct planted staple'",
        'passphrase: "a \\"planted\\" word"',
        r"{\"password\": \"planted\", \"n\": 1}",
        r"password=pl\anted-secret",
        r"password=planted\planted",
        "--password 'correct horse planted staple'",
        '--token "my planted phrase"',
        '--password "planted0 planted words"',
        "--api-key \\'its planted words\\'",
        'password="it\'s planted"',
        r"{\"password\": \"pla\\\"nted and planted\"}",
        "<password>planted</password>",
        "postgres://user:p@planted@host/db",
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\nplanted\n-----END PGP PRIVATE KEY BLOCK-----",
    ],
)
def test_text_like_a_secret_is_hidden(text: str):
    assert "planted" not in redact(text)


def test_the_value_of_a_secret_variable_is_hidden_everywhere(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    assert redact("posting 0123456789abcdef to the server") == "posting *** to the server"


def test_a_secret_of_several_lines_or_with_quotes_is_hidden_in_each_form(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DEPLOY_PASSWORD", 'one "planted" line\nanother planted\\line')
    for text in ('saw one "planted" line', "saw another planted\\line", json.dumps(os.environ["DEPLOY_PASSWORD"])):
        assert "planted" not in redact(text)


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


@pytest.mark.parametrize(
    "text",
    [
        dashboard_line("127.0.0.1:8265"),
        "num_tokens=12 of 30 tokens",
        "tokenizer: llama",
        "eos_token=2",
        "step phoenix failed at gs://bucket/a:b",
        "key 3 of 4",
        "pass --token to the command",
        "SG.1 of sk_test and npm_config",
        "the <token> embedding and <secret> of <other>",
        "npm_config_registry=x npm_package_dependencies_left_pad_version",
    ],
)
def test_ordinary_text_is_unchanged(text: str):
    assert redact(text) == text


def test_only_a_secret_is_refused_in_a_result():
    check_no_secrets({"sample": "the <token> embedding"}, "train: its result")
    with expect_error(SecretError):
        check_no_secrets({"sample": ["<token>planted</token>"]}, "train: its result")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://a.example?q=alice@x", "https://b.example?q=bob@x"),
        ("https://one.org#a@b", "https://two.org#c@b"),
        ("see https://one.org;x@y.org", "see https://two.org;z@y.org"),
        ("https://<user>@host", "https://<mail>@host"),
        ("https://h/api?signature=0&policy=lenient", "https://h/api?signature=0&policy=strict"),
        ("https://h/x?sig=1&st=10", "https://h/x?sig=1&st=20"),
    ],
)
def test_text_like_a_permission_keeps_two_identities_apart(one: str, other: str):
    assert redact_identity(one) != redact_identity(other)


def test_a_permission_leaves_no_trace_in_an_identity():
    assert redact_identity("https://me:first-p%40ss@host/x") == redact_identity("https://you:second@host/x")
    assert "p?ss" not in redact("https://me:p?ss@host/x") + redact_identity("https://me:p?ss@host/x")


@pytest.mark.parametrize("piece", ["ab-", "x-", "a.b ", "sk ", "sk-", "token ", "--token ", "SG.", "-----BEGIN ", "\\"])
def test_a_line_of_half_a_megabyte_is_unchanged(piece: str):
    """It would take hours if each possible start of a name were matched to the end."""
    text = piece * (2**19 // len(piece))
    assert redact(text) == text


@pytest.mark.parametrize("piece", ["\\", "\\'", '\\"', "'x", "token=\\"])
def test_backslashes_and_quotes_after_a_name_take_linear_time(piece: str):
    assert len(redact("password=" + piece * 50_000)) < 300_000


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("{'api_key': b'abcdefgh1234'}", "{'api_key': b'***'}"),
        ("{'hf_token': SecretBox, 'n': 1}", "{'hf_token': ***, 'n': 1}"),
        ("api_key=b'abcdefgh1234'", "api_key=b'***'"),
        ("{'api_key': None, 'secret': True, 'token': -1}", "{'api_key': None, 'secret': True, 'token': -1}"),
    ],
)
def test_a_value_is_hidden_in_every_form_of_repr(text: str, shown: str):
    assert redact(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (r"password=pl\anted", "password=***"),
        (r"\"password=planted\", \"n\": 1", r"\"password=***\", \"n\": 1"),
        ("password=\"it's planted\", n='1'", "password=\"***\", n='1'"),
        (r"{\"password\": \"pla\\\"nted\", \"n\": \"1\"}", r"{\"password\": \"***\", \"n\": \"1\"}"),
        ("--token 'my planted phrase' --steps 7", "--token '***' --steps 7"),
    ],
)
def test_a_value_is_hidden_up_to_its_end(text: str, shown: str):
    assert redact(text) == shown


def test_json_stays_valid():
    document = {"token": 50256, "signature": [1, 2], "hf_token": 1.0, "api_key": None, "password": "planted-secret"}
    kept = json.loads(redact(json.dumps(document, indent=1)))
    assert kept == document | {"password": "***"}


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

    monkeypatch.setattr("marin_dag.store.redact.redact", counted)
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
