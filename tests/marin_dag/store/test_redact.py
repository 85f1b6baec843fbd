"""Redaction: secrets are hidden, and ordinary text is left as it is."""

import dataclasses
import io
import json

import pytest
from pydantic import BaseModel

from marin_dag.run.ray.cluster import dashboard_line
from marin_dag.store.redact import LinesWithoutSecrets, RedactingStream, redact, redact_identity, remember_secrets


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
        "hf_plantedsecret0123",
    ],
)
def test_text_like_a_secret_is_hidden(text: str):
    assert "planted" not in redact(text)


def test_the_value_of_a_secret_variable_is_hidden_everywhere(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    assert redact("posting 0123456789abcdef to the server") == "posting *** to the server"


@pytest.mark.parametrize(
    "text",
    [
        dashboard_line("127.0.0.1:8265"),
        "num_tokens=12 of 30 tokens",
        "tokenizer: llama",
        "eos_token=2",
        "step phoenix failed at gs://bucket/a:b",
        "key 3 of 4",
    ],
)
def test_ordinary_text_is_unchanged(text: str):
    assert redact(text) == text


class Login(BaseModel, frozen=True):
    password: str


@dataclasses.dataclass(frozen=True)
class Mirror:
    logins: tuple[Login, ...]


class Places(BaseModel, frozen=True):
    mirrors: dict[str, Mirror]


def test_a_secret_deep_in_a_config_is_hidden_everywhere():
    remember_secrets(Places(mirrors={"a": Mirror((Login(password="planted-deep-0123"),))}))
    assert redact("401 for planted-deep-0123") == "401 for ***"


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


@pytest.mark.parametrize("piece", ["ab-", "x-", "a.b ", "sk ", "sk-", "token "])
def test_a_line_of_half_a_megabyte_is_unchanged(piece: str):
    """It would take hours if each possible start of a name were matched to the end."""
    text = piece * (2**19 // len(piece))
    assert redact(text) == text


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


def test_json_stays_valid():
    document = {"token": 50256, "signature": [1, 2], "hf_token": 1.0, "api_key": None, "password": "planted-secret"}
    kept = json.loads(redact(json.dumps(document, indent=1)))
    assert kept == document | {"password": "***"}


def test_many_pieces_are_written_in_order_and_a_progress_bar_at_once():
    written: list[str] = []
    lines = LinesWithoutSecrets(written.append)
    for _ in range(300_000):
        lines.write("..........")
    assert written == []
    lines.write(" --token=plan")
    lines.write("ted\r 50%\r 60")
    assert "".join(written) == "." * 3_000_000 + " --token=***\r 50%\r"
    lines.close()
    assert written[-1] == " 60"


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


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (("--token=pla", "nted", "-secret on"), "--token=*** on"),
        (("Bearer ", "plan", "ted-secret"), "Bearer ***"),
        (("Authorization: Basic ", "planted-secret ", "on"), "Authorization: *** \nAuthorization: Basic *** on"),
        (("my own ", "word of ", "magic on"), "*** on"),
        (("my own ", "word"), "my own word"),
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
