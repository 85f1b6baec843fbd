"""No secret reaches a record or a log, and ordinary text is left alone."""

import dataclasses

import pytest
from pydantic import BaseModel

from marin_dag.redact import redact, remember_secrets


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
def test_what_looks_like_a_secret_is_hidden(text: str):
    assert "planted" not in redact(text)


def test_the_value_of_a_secret_variable_is_hidden_wherever_it_stands(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    assert redact("posting 0123456789abcdef to the server") == "posting *** to the server"


@pytest.mark.parametrize(
    "text",
    [
        "Ray dashboard http://127.0.0.1:8265  (it asks for a token; to see it: cat ~/.ray/auth_token)",
        "num_tokens=12 of 30 tokens",
        "tokenizer: llama",
        "eos_token=2",
        "step phoenix failed at gs://bucket/a:b",
        "key 3 of 4",
    ],
)
def test_ordinary_text_stays(text: str):
    assert redact(text) == text


class Login(BaseModel, frozen=True):
    password: str


@dataclasses.dataclass(frozen=True)
class Mirror:
    logins: tuple[Login, ...]


class Places(BaseModel, frozen=True):
    mirrors: dict[str, Mirror]


def test_a_secret_however_deep_in_a_config_is_hidden_wherever_it_comes_up():
    remember_secrets(Places(mirrors={"a": Mirror((Login(password="planted-deep-0123"),))}))
    assert redact("401 for planted-deep-0123") == "401 for ***"
