"""Redaction: keeps secrets of the environment, of URLs and of headers out of records, logs and the terminal.

`redact` removes secrets from text for the user. `redact_identity` removes them from an identity, which must stay the
same on each machine, so it ignores the environment. It replaces a secret by a fingerprint, so that two values stay
different. From a URL it removes user, password and signature without a trace: they say who may fetch an object, not
which, so two signed URLs of one object are one identity.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import urllib.parse
from collections.abc import Callable
from typing import Any

from marin_dag.errors import UserError

HIDDEN = "***"
OTHER_SECRETS = (
    r"secret|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|account[_-]?key|credentials?"
)
# Many tokens are no secrets: `num_tokens=12`, `eos_token=2`.
TOKENS = r"(?:(?<![\w-])|--|x-[\w-]{1,40}-|(?:auth|access|api|bearer|refresh|security|session|hf)[_-]?)token"
SECRET_NAME = rf"(?:{TOKENS}|{OTHER_SECRETS}|signature|(?<=[?&])(?:sig|key))"
SECRET_FIELD = re.compile(rf"^(?:\w+_)?(?:{OTHER_SECRETS})$|^{TOKENS}$", re.IGNORECASE)
ENVIRONMENT_NAME = re.compile(rf"TOKEN(?![A-Z])|{OTHER_SECRETS}|signature|_KEY$|_PASS$", re.IGNORECASE)
# Shorter values ("1", "true", "token") are ordinary words.
SHORTEST_SECRET = 8
FINGERPRINT_DIGITS = 12
OPTION = rf"--(?:token|{OTHER_SECRETS})"
ASSIGNED = rf"(?:{SECRET_NAME}(?:\\{{0,8}}[\"'])?\s*[=:]\s*|{OPTION}\s+)"
QUOTE = r"[bru]{0,2}[\"']"
# Unquoted values after a quoted name; they stay, so that JSON stays valid.
NO_JSON = r"(?!null\b|true\b|false\b|none\b|nan\b|-?\d|-?infinity\b|[\[{(])"
KEY_BEGIN = r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
# The first group of each match stays. Names in the patterns have a longest length, or a line of 100 kB takes minutes.
URL_PATTERNS = (
    re.compile(r"(\b[a-z][a-z0-9+.-]{0,30}://)[^/\s:@\"']*:[^/\s\"']+(?=@)", re.IGNORECASE),
    re.compile(r"(\b(?:https?|ftp)://)[^/\s@\"']+(?=@)", re.IGNORECASE),
)
PATTERNS = (
    re.compile(r"(\bauthorization[\"']?\s*[:=]\s*[\"']?(?:[\w-]+\s+)?)[^\s\"',}]+", re.IGNORECASE),
    re.compile(r"(\bbearer\s+)[\w.~+/=-]{8,}", re.IGNORECASE),
    re.compile(r"(\b(?:set-)?cookie[\"']?\s*:\s*[\"']?)[^\"'\n]+", re.IGNORECASE),
    # A quoted value ends at its own quote; within a quoted text its own quotes are escaped, too.
    re.compile(rf"({ASSIGNED}[bru]{{0,2}}([\"']))(?:\\.|(?!\2)[^\\\n])+", re.IGNORECASE),
    re.compile(rf"({ASSIGNED}(\\{{1,8}}([\"'])))(?:(?<=\\)[^\n]|(?!\2|\3)[^\n])+", re.IGNORECASE),
    re.compile(
        rf"({SECRET_NAME}(?:[\"']\s*[=:]\s*{NO_JSON}|\s*[=:]\s*))(?!{QUOTE})(?:[^\s\"'&,;\\]|\\(?!\\{{0,8}}[\"']))+",
        re.IGNORECASE,
    ),
    re.compile(rf"(<({TOKENS}|{OTHER_SECRETS})>)[^<\n]+(?=</\2>)", re.IGNORECASE),
    re.compile(rf"({OPTION}\s+)(?!-)[^\s\"']{{{SHORTEST_SECRET},}}", re.IGNORECASE),
    re.compile(
        r"(\b)(?:hf_[A-Za-z0-9]{16,}|npm_[A-Za-z0-9]{36}|(?:api_org_|dop_v1_|[sr]k_(?:live|test)_|gh[pousr]_|github_pat_|glpat-"
        r"|xox[abeprs]-|xapp-|AIza|ya29\.|GOCSPX-|pypi-AgEI|hvs\.|AGE-SECRET-KEY-1)[\w-]{8,}|dapi[0-9a-f]{32}"
        r"|SG\.[\w-]{16,}\.[\w-]{16,})"
    ),
    re.compile(r"(\b)sk-(?=[\w-]{0,100}\d)[\w-]{16,}"),
    re.compile(r"(\b)eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+"),
    re.compile(rf"({KEY_BEGIN}).+?(?=-----END|\Z)", re.DOTALL),
)
# Characters of user and password in a URL; an @ after others may belong to a query or to another word.
USER = re.compile(r"[\w.~!$&'*+=:%-]+")
URL = re.compile(r"\b[a-z][a-z0-9+.-]{0,30}://[^\s\"'<>]+", re.IGNORECASE)
# Every pattern needs one of these; most values of a config and most lines of a log contain none.
SUSPICIOUS = re.compile(
    rf"://|authorization|bearer|cookie|token|{OTHER_SECRETS}|signature|hf_|api_org_|npm_|dop_v1_|[sr]k_|gh[pousr]_"
    r"|github_|glpat-|xox|xapp-|AIza|ya29|GOCSPX|pypi-|hvs\.|AGE-|dapi|SG\.|sk-|eyJ|BEGIN|[?&](?:sig|key)\b",
    re.IGNORECASE,
)
# A shorter value, as in `signature=0`, is another parameter.
SHORTEST_SIGNATURE = 12
SIGNATURES = frozenset({"x-goog-signature", "x-amz-signature", "signature", "sig"})
# Parameters of signed URLs of Google, Amazon, CloudFront and Azure.
PARTS_OF_A_SIGNATURE = SIGNATURES | {
    "expires", "googleaccessid", "awsaccesskeyid", "key-pair-id", "policy",
    "se", "st", "sp", "sv", "sr", "ss", "srt", "spr", "sip", "sdd", "skoid", "sktid", "skt", "ske", "sks", "skv",
}  # fmt: skip


class SecretError(UserError):
    """A value that is stored and shown contains a secret."""


def redact(text: str) -> str:
    """Return `text` without values of secret environment variables and without what looks like a secret."""
    for secret in known_secrets():
        text = text.replace(secret, HIDDEN)
    if not SUSPICIOUS.search(text):
        return text
    for pattern in (*URL_PATTERNS, *PATTERNS):
        text = pattern.sub(rf"\g<1>{HIDDEN}", text)
    return text


@functools.lru_cache(maxsize=1 << 16)
def redact_identity(text: str) -> str:
    """Return `text` as identity documents contain it: equal on each machine, and different for different texts.

    User, password and signature of a URL are removed without a trace.
    """
    if not SUSPICIOUS.search(text):
        return text
    text = URL.sub(lambda found: _unsigned(found[0]), text)
    text = URL_PATTERNS[1].sub(_without_user, text)
    for pattern in (URL_PATTERNS[0], *PATTERNS):
        text = pattern.sub(_with_fingerprint, text)
    return text


def redact_field(name: str, text: str) -> str:
    """Return the text of a field as `redact_identity` does, but hide all of it if the name is that of a secret."""
    if not text or not SECRET_FIELD.search(name):
        return redact_identity(text)
    remember(text)
    return HIDDEN + _fingerprint(text)


def remember_field(name: object, value: object) -> None:
    """Let this process hide the text of a field with the name of a secret, wherever the text appears later."""
    if isinstance(name, str) and isinstance(value, str) and SECRET_FIELD.search(name):
        remember(value)


def redact_document(document: Any) -> Any:
    return _mapped(document, redact)


def without_known_secrets(document: Any) -> Any:
    """Return a JSON document without the secrets of this process's environment and configs."""
    secrets = known_secrets()
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


def check_no_secrets(data: Any, path: str) -> None:
    """Raise SecretError if JSON data contain a secret; for results, which must be stored unchanged."""
    if isinstance(data, dict):
        for name, item in data.items():
            if isinstance(item, str) and item and SECRET_FIELD.search(name):
                raise _secret_error(f"{path}.{name}")
            check_no_secrets(item, f"{path}.{name}")
    elif isinstance(data, list):
        for index, item in enumerate(data):
            check_no_secrets(item, f"{path}[{index}]")
    elif isinstance(data, str) and redact(data) != data:
        raise _secret_error(path)


def known_secrets() -> tuple[str, ...]:
    """Return the secrets of this process's environment and configs, the longest first."""
    return _secrets_of(frozenset(os.environ.items()), _remembered)


def _secret_error(path: str) -> SecretError:
    return SecretError(
        f"{path} would be stored, and contains what looks like a secret or the value of a secret environment variable. "
        "Leave it out, and read the secret from the environment where it is used."
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


def remember(secret: str) -> None:
    """Let this process hide a secret wherever it appears later."""
    global _remembered
    if len(secret) >= SHORTEST_SECRET and secret not in _remembered:
        _remembered |= {secret}


@functools.lru_cache(maxsize=1)
def _secrets_of(environment: frozenset[tuple[str, str]], remembered: frozenset[str]) -> tuple[str, ...]:
    found = {value for name, value in environment if ENVIRONMENT_NAME.search(name) and len(value) >= SHORTEST_SECRET}
    # The path of a secret is not secret, and hiding paths would make logs useless.
    found = {value for value in found if not value.startswith("/")} | remembered
    found |= {line for value in found for part in _secret_parts(value) for line in _secret_lines(part)}
    found |= {form for value in found for form in (urllib.parse.quote(value, safe=""), *_escaped(value))}
    return tuple(sorted(found, key=len, reverse=True))


def _secret_parts(value: str) -> list[str]:
    """Return the secret fields of a JSON document, such as a service account's; otherwise the value itself."""
    parts: list[str] = []

    def collect(item: Any) -> None:
        if isinstance(item, dict):
            parts.extend(text for name, text in item.items() if isinstance(text, str) and SECRET_FIELD.search(name))
        for inner in item.values() if isinstance(item, dict) else item if isinstance(item, list) else ():
            collect(inner)

    with contextlib.suppress(ValueError, RecursionError):
        collect(json.loads(value))
    return parts or [value]


def _secret_lines(value: str) -> list[str]:
    """Return the lines of a secret, because output comes line by line, without the frame of a private key."""
    lines = [line.strip() for line in (value, *value.splitlines())]
    return [line for line in lines if len(line) >= SHORTEST_SECRET and not re.fullmatch("-----[^-]*-----", line)]


def _escaped(value: str) -> tuple[str, str]:
    return json.dumps(value)[1:-1], repr(value)[1:-1]
