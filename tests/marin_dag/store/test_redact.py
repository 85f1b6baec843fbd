"""Redaction: secrets are hidden, and ordinary text is left as it is."""

import json
import os

import pytest

from marin_dag.run.ray.cluster import dashboard_line
from marin_dag.store.redact import SecretError, check_no_secrets, redact, redact_identity
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


def test_a_secret_with_both_quotes_is_hidden_in_its_repr(monkeypatch: pytest.MonkeyPatch):
    value = "ab'cd\"efghij"
    monkeypatch.setenv("DEPLOY_PASSWORD", value)
    assert redact(f"{[value]} {json.dumps(value)} {value}") == "['***'] \"***\" ***"


def test_only_the_secret_fields_of_a_json_document_are_hidden(monkeypatch: pytest.MonkeyPatch):
    key = "-----BEGIN PRIVATE KEY-----\nplanted+0123456789\n-----END PRIVATE KEY-----\n"
    account = {"type": "service_account", "project_id": "my-project", "inner": [{"private_key": key}]}
    monkeypatch.setenv("GOOGLE_CREDENTIALS", json.dumps(account, indent=2))
    ordinary = '  "type": "service_account",\n  "project_id": "my-project",'
    assert redact(ordinary) == ordinary
    assert redact("saw planted+0123456789 here") == "saw *** here"
    assert redact("-----END PRIVATE KEY-----") == "-----END PRIVATE KEY-----"
    assert "planted" not in redact(json.dumps(key)) + redact(json.dumps(account, indent=1)) + redact(repr(key))


@pytest.mark.parametrize("depth", [400, 60_000])
def test_a_secret_of_many_brackets_is_hidden(monkeypatch: pytest.MonkeyPatch, depth: int):
    monkeypatch.setenv("DEEP_TOKEN", "[" * depth + "]" * depth)
    assert redact("saw " + "[" * depth + "]" * depth) == "saw ***"


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
