"""Redaction: no secret of the environment, of a URL or of a header reaches a record, a log or the terminal.

Text for people loses its secrets (`redact`). An identity loses them too (`redact_identity`), but stays an identity: it
takes no notice of the environment, which differs between machines, and where a secret might be more than a permission
it leaves a fingerprint, so that two values never become one. Of a URL the permission is known for what it is: user and
password, and the signature with all that belongs to it. They say who may fetch and not what is fetched, so that two
signed URLs of one object are one identity.
"""

import dataclasses
import functools
import hashlib
import json
import os
import re
import urllib.parse
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import IO, Any

from pydantic import BaseModel

from marin_dag.errors import UserError

HIDDEN = "***"
OTHER_SECRETS = r"secret|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|credentials?"
# A language-model project is full of tokens that are no secret: `num_tokens=12`, `eos_token=2`, `tokenizer: llama`.
TOKENS = r"(?:(?<![\w-])|--|x-[\w-]{1,40}-|(?:auth|access|api|bearer|refresh|security|session|hf)[_-]?)token"
SECRET_NAME = rf"(?:{TOKENS}|{OTHER_SECRETS}|signature|(?<=[?&])(?:sig|key))"
SECRET_FIELD = re.compile(rf"^(?:\w+_)?(?:{OTHER_SECRETS})$|^{TOKENS}$", re.IGNORECASE)
ENVIRONMENT_NAME = re.compile(rf"TOKEN(?![A-Z])|{OTHER_SECRETS}|signature|_KEY$|_PASS$", re.IGNORECASE)
# Shorter values ("1", "true", "token") would blot out ordinary words.
SHORTEST_SECRET = 8
FINGERPRINT_DIGITS = 12
QUOTE = r"[bru]{0,2}[\"']"
# What follows a quoted name without quotes, and is left as it is: else JSON is JSON no more.
NO_JSON = r"(?!null\b|true\b|false\b|none\b|nan\b|-?\d|-?infinity\b|[\[{(])"
# Of each match the first group stays. A name that a pattern looks for, such as that of a scheme, has a longest length:
# else a line of a hundred kilobytes takes minutes.
URL_PATTERNS = (
    re.compile(r"(\b[a-z][a-z0-9+.-]{0,30}://)[^/\s:@\"']*:[^/\s@\"']+(?=@)", re.IGNORECASE),
    re.compile(r"(\b(?:https?|ftp)://)[^/\s@\"']+(?=@)", re.IGNORECASE),
)
PATTERNS = (
    re.compile(r"(\bauthorization[\"']?\s*[:=]\s*[\"']?(?:[\w-]+\s+)?)[^\s\"',}]+", re.IGNORECASE),
    re.compile(r"(\bbearer\s+)[\w.~+/=-]{8,}", re.IGNORECASE),
    re.compile(r"(\b(?:set-)?cookie[\"']?\s*:\s*[\"']?)[^\"'\n]+", re.IGNORECASE),
    re.compile(
        rf"({SECRET_NAME}(?:[\"']\s*[=:]\s*(?:{QUOTE}|{NO_JSON})|\s*[=:]\s*(?:{QUOTE})?))[^\s\"'&,;]+", re.IGNORECASE
    ),
    re.compile(r"(\b)(?:hf_[A-Za-z0-9]{16,}|(?:ghp_|github_pat_|glpat-|xox[bp]-|AIza|ya29\.)[\w-]{8,})"),
    re.compile(r"(\b)sk-(?=[\w-]{0,100}\d)[\w-]{16,}"),
    re.compile(r"(\b)eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+"),
    re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).+?(?=-----END|\Z)", re.DOTALL),
)
# What a user and a password in a URL are of; an @ behind anything else may stand in a query or in another word.
USER = re.compile(r"[\w.~!$&'*+=:%-]+")
URL = re.compile(r"\b[a-z][a-z0-9+.-]{0,30}://[^\s\"'<>]+", re.IGNORECASE)
# What any of the patterns needs; most values of a config hold none of it.
SUSPICIOUS = re.compile(
    rf"://|authorization|bearer|cookie|token|{OTHER_SECRETS}|signature|hf_|ghp_|github_|glpat-|xox|AIza|ya29|sk-|eyJ|BEGIN",
    re.IGNORECASE,
)
# `signature=0` may ask a server for something else.
SHORTEST_SIGNATURE = 12
SIGNATURES = frozenset({"x-goog-signature", "x-amz-signature", "signature", "sig"})
# What Google, Amazon, CloudFront and Azure put into a signed URL beside the signature itself.
PARTS_OF_A_SIGNATURE = SIGNATURES | {
    *("expires", "googleaccessid", "awsaccesskeyid", "key-pair-id", "policy"),
    *("se", "st", "sp", "sv", "sr", "ss", "srt", "spr", "sip", "sdd", "skoid", "sktid", "skt", "ske", "sks", "skv"),
}

CONTAINERS = (dict, list, tuple, set, frozenset, BaseModel)


class SecretError(UserError):
    """A value that is kept and shown holds a secret."""


def redact(text: str) -> str:
    """`text` without the values of secret environment variables and without what looks like a secret."""
    for secret in _known_secrets():
        text = text.replace(secret, HIDDEN)
    for pattern in (*URL_PATTERNS, *PATTERNS):
        text = pattern.sub(rf"\g<1>{HIDDEN}", text)
    return text


@functools.lru_cache(maxsize=1 << 16)
def redact_identity(text: str) -> str:
    """`text` as an identity document holds it; the same on each machine, and different texts stay different.

    Except for URLs: user, password, signature and what belongs to the signature are cut out and leave no trace.
    """
    if not SUSPICIOUS.search(text):
        return text
    text = URL.sub(lambda found: _unsigned(found[0]), text)
    text = URL_PATTERNS[1].sub(_without_user, text)
    for pattern in (URL_PATTERNS[0], *PATTERNS):
        text = pattern.sub(_with_fingerprint, text)
    return text


def redact_field(name: str, text: str) -> str:
    """The same for a field whose name says that it is a secret, whatever it looks like."""
    if not text or not SECRET_FIELD.search(name):
        return redact_identity(text)
    _remember(text)
    return HIDDEN + _fingerprint(text)


def remember_secrets(config: object) -> None:
    """From now on this process hides the values of the fields of `config` that are named like secrets, wherever they
    come up: an error that quotes a password does not say that it is one."""
    if isinstance(config, (list, tuple, set, frozenset)):
        for item in config:
            remember_secrets(item)
        return
    fields = config if isinstance(config, dict) else getattr(config, "__dict__", {})
    for name, value in fields.items():
        if isinstance(value, str) and isinstance(name, str) and SECRET_FIELD.search(name):
            _remember(value)
        elif isinstance(value, CONTAINERS) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
            remember_secrets(value)


def redact_document(document: Any) -> Any:
    """JSON data whose texts are those that `redact` makes."""
    return _mapped(document, redact)


def without_known_secrets(document: Any) -> Any:
    """A JSON document as it is kept: no secret of this process's environment or of its configs is in it."""
    secrets = _known_secrets()
    if not secrets:
        return document
    text = json.dumps(document)
    if not any(json.dumps(secret)[1:-1] in text for secret in secrets):
        return document

    def hide(leaf: str) -> str:
        for secret in secrets:
            leaf = leaf.replace(secret, HIDDEN)
        return leaf

    return _mapped(document, hide)


def refuse_secrets(data: Any, path: str) -> None:
    """Raises SecretError if JSON data that is to be kept holds a secret; what is kept must be what was returned."""
    if isinstance(data, dict):
        for name, item in data.items():
            if isinstance(item, str) and item and SECRET_FIELD.search(name):
                raise _secret_error(f"{path}.{name}")
            refuse_secrets(item, f"{path}.{name}")
    elif isinstance(data, list):
        for index, item in enumerate(data):
            refuse_secrets(item, f"{path}[{index}]")
    elif isinstance(data, str) and redact(data) != data:
        raise _secret_error(path)


class RedactingStream:
    """A terminal or a pipe that what is printed reaches without its secrets, line by line; a context."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._lines = LinesWithoutSecrets(stream.write)

    def __enter__(self) -> "RedactingStream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.flush()

    def write(self, text: str) -> int:
        """As a stream has it."""
        self._lines.write(text)
        return len(text)

    def flush(self) -> None:
        """As a stream has it."""
        self._lines.flush()
        self._stream.flush()

    def writelines(self, lines: Iterable[str]) -> None:
        """As a stream has it."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class LinesWithoutSecrets:
    """Gathers what is written until a line is whole: a secret that comes in two pieces is hidden as well.

    A progress bar ends its lines by a carriage return.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._begun: list[str] = []

    def write(self, text: str) -> None:
        """Takes a piece of text."""
        end = max(text.rfind("\n"), text.rfind("\r")) + 1
        if end:
            self._begun.append(text[:end])
            self.flush()
        if end < len(text):
            self._begun.append(text[end:])

    def flush(self) -> None:
        """Writes the line that is not whole yet."""
        text, self._begun = "".join(self._begun), []
        if text:
            self._write(redact(text))


def _secret_error(path: str) -> SecretError:
    return SecretError(
        f"{path} holds what looks like a secret (or the value of a secret environment variable); what is kept "
        "holds none. Leave it out, and read the secret from the environment where it is used."
    )


def _unsigned(url: str) -> str:
    base, question, rest = url.partition("?")
    query, hash_, fragment = rest.partition("#")
    parts = query.split("&")
    names = [urllib.parse.unquote(part.partition("=")[0]).lower() for part in parts]
    if not question or not any(map(_is_signature, parts, names)):
        return url
    kept = [
        part
        for part, name in zip(parts, names, strict=True)
        if name not in PARTS_OF_A_SIGNATURE and not name.startswith(("x-goog-", "x-amz-"))
    ]
    return base + (f"?{'&'.join(kept)}" if kept else "") + hash_ + fragment


def _is_signature(part: str, name: str) -> bool:
    return name in SIGNATURES and (name.startswith("x-") or len(part.partition("=")[2]) >= SHORTEST_SIGNATURE)


def _without_user(found: re.Match[str]) -> str:
    is_user = USER.fullmatch(found[0], len(found[1]))
    return f"{found[1]}{HIDDEN}" if is_user else _with_fingerprint(found)


def _with_fingerprint(found: re.Match[str]) -> str:
    return f"{found[1]}{HIDDEN}{_fingerprint(found[0][len(found[1]) :])}"


def _fingerprint(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()[:FINGERPRINT_DIGITS]


def _mapped(document: Any, change: Callable[[str], str]) -> Any:
    match document:
        case str():
            return change(document)
        case list():
            return [_mapped(item, change) for item in document]
        case dict():
            return {change(name): _mapped(item, change) for name, item in document.items()}
    return document


_remembered: frozenset[str] = frozenset()


def _remember(secret: str) -> None:
    global _remembered
    if len(secret) >= SHORTEST_SECRET and secret not in _remembered:
        _remembered |= {secret}


def _known_secrets() -> tuple[str, ...]:
    return _secrets_of(frozenset(os.environ.items()), _remembered)


@functools.lru_cache(maxsize=1)
def _secrets_of(environment: frozenset[tuple[str, str]], remembered: frozenset[str]) -> tuple[str, ...]:
    found = {value for name, value in environment if ENVIRONMENT_NAME.search(name) and len(value) >= SHORTEST_SECRET}
    # A path is where a secret lies, not the secret; hiding it would blot paths out of every log.
    found = {value for value in found if not value.startswith("/")} | remembered
    found |= {urllib.parse.quote(value, safe="") for value in found}
    return tuple(sorted(found, key=len, reverse=True))
