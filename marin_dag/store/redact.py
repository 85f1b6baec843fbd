"""Redaction: keeps secrets of the environment, of URLs and of headers out of records, logs and the terminal.

`redact` removes secrets from text for the user. `redact_identity` removes them from an identity, which must stay the
same on each machine, so it ignores the environment. It replaces a secret by a fingerprint, so that two values stay
different. From a URL it removes user, password and signature without a trace: they say who may fetch an object, not
which, so two signed URLs of one object are one identity.
"""

import functools
import hashlib
import json
import os
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterable
from typing import IO, Any

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
LONGEST_LINE = 1 << 20
CONTEXT = 1 << 9
"""Characters of a flushed line that are redacted again with what comes next; a longer secret has no white space."""
MOST_CONTEXT = 32 * CONTEXT
NEAR = 200
"""Characters before a word in which the name of a secret makes it a whole word, up to white space."""
# Thai to Tibetan, Burmese, Khmer, Chinese and Japanese have no spaces between words.
SPACELESS = "\u0e00-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
SPACE = re.compile(r"(?s:.*\s)")
END_OF_WORD = re.compile(rf"(?s:.*[\s{SPACELESS}])")
FINGERPRINT_DIGITS = 12
OPTION = rf"--(?:token|{OTHER_SECRETS})"
ASSIGNED = rf"(?:{SECRET_NAME}(?:\\{{0,8}}[\"'])?\s*[=:]\s*|{OPTION}\s+)"
QUOTE = r"[bru]{0,2}[\"']"
# Unquoted values after a quoted name; they stay, so that JSON stays valid.
NO_JSON = r"(?!null\b|true\b|false\b|none\b|nan\b|-?\d|-?infinity\b|[\[{(])"
KEY_BEGIN = r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
OPEN_KEY = re.compile(rf"{KEY_BEGIN}(?!.*-----END)", re.DOTALL)
# Lines of a key may have a prefix: a process, a time, the border of a box. A short last line has none, or ends in "=".
BASE64 = re.compile(r"\A\s*[\w+/=]+(?=\s*\Z)|[A-Za-z0-9+/]{16,}={0,2}|[A-Za-z0-9+/]{2,15}={1,2}(?=[\s\"',│|]{0,300}\Z)")
MOST_LINES_BETWEEN = 20
"""Most lines of others between two lines of a key; a key that is cut short never ends."""
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
    _remember(text)
    return HIDDEN + _fingerprint(text)


def remember_field(name: object, value: object) -> None:
    """Let this process hide the text of a field with the name of a secret, wherever the text appears later."""
    if isinstance(name, str) and isinstance(value, str) and SECRET_FIELD.search(name):
        _remember(value)


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


class Redaction:
    """Redacts the lines of a text in their order: a private key ends lines after it began."""

    def __init__(self) -> None:
        self._lines_left = 0
        """Lines to come in which a key that has begun may go on."""

    @property
    def is_in_key(self) -> bool:
        return self._lines_left > 0

    def __call__(self, text: str) -> str:
        lines = iter(text.splitlines(keepends=True) if self.is_in_key else [text])
        shown = ""
        while self.is_in_key and (line := next(lines, "")):
            shown += self._line_of_key(line)
        rest = "".join(lines)
        if OPEN_KEY.search(rest):
            self._lines_left = MOST_LINES_BETWEEN
        return shown + redact(rest)

    def _line_of_key(self, line: str) -> str:
        shown = redact(BASE64.sub(HIDDEN, line))
        self._lines_left = self._lines_left - 1 if shown == line else MOST_LINES_BETWEEN
        if "-----END" in line and not OPEN_KEY.search(line):
            self._lines_left = 0
        return shown


class LinesWithoutSecrets:
    """Collects text until a line is complete, so that a secret in two pieces is hidden; CR ends a line, too.

    Several threads may write. A line of more than `LONGEST_LINE` characters is written in pieces.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._redact = Redaction()
        self._lock = threading.RLock()  # a signal handler may print while its thread holds the lock
        self._incomplete: list[str] = []
        self._size = 0
        self._shown = ""
        """What was written of the incomplete line."""

    def write(self, text: str) -> int:
        with self._lock:
            end = max(text.rfind("\n"), text.rfind("\r")) + 1
            if end:
                self._append(text[:end])
                self.close()
            if end < len(text):
                self._append(text[end:])
            if self._size > LONGEST_LINE:
                self.close()
        return len(text)

    def show(self) -> None:
        """Write the incomplete line so far, except for a last word, which may go on and be a secret."""
        with self._lock:
            if self._redact.is_in_key or self._size > MOST_CONTEXT:
                return
            line = "".join(self._incomplete)
            self._incomplete = [line]
            if "\x1b" in line:  # a display that moves the cursor; half a control sequence would break it
                return
            end = _end_of_words(line)
            shown = redact(line[:end])
            if len(shown) > len(self._shown) and shown.startswith(self._shown):
                self._write(shown[len(self._shown) :])
                self._shown = shown
            if end > 2 * CONTEXT:
                self._forget(line, end)

    def close(self) -> None:
        with self._lock:
            text, self._incomplete, self._size = "".join(self._incomplete), [], 0
            shown, self._shown = self._shown, ""
            if text and (whole := self._redact(text)):
                # Later words may hide earlier ones, as in a pair of name and value.
                self._write(whole[len(shown) :] if whole.startswith(shown) else f"\n{whole}")

    def _append(self, text: str) -> None:
        self._incomplete.append(text)
        self._size += len(text)

    def _forget(self, line: str, end: int) -> None:
        """Forget the written beginning of a line, or each flush would redact the whole line again."""
        cut = _end_of_words(line[: end - CONTEXT])
        first, rest = redact(line[:cut]), redact(line[cut:end])
        # At another cut a secret might begin before it and end after it.
        if first + rest == self._shown:
            self._incomplete, self._shown, self._size = [line[cut:]], rest, len(line) - cut


class RedactingStream(LinesWithoutSecrets):
    """A terminal or a pipe that redacts what is printed, by lines, or by words where a line is flushed."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__(stream.write)
        self._stream = stream

    def __enter__(self) -> "RedactingStream":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
        self._stream.flush()

    def flush(self) -> None:
        self.show()
        self._stream.flush()

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def pass_on(source: int, target: int, secrets: Iterable[str]) -> None:
    """Copy lines from one descriptor to another without secrets, those given among them; close the first one."""
    for secret in secrets:
        _remember(secret)
    redacted = Redaction()
    with open(source, encoding="utf-8", errors="replace", newline="") as lines:
        for line in iter(lambda: lines.readline(LONGEST_LINE), ""):
            data = redacted(line).encode(errors="replace")
            while data:
                data = data[os.write(target, data) :]


def _end_of_words(line: str) -> int:
    """Return where the last word of a line begins, or a known secret whose beginning the line ends with."""
    ends = SPACE if SUSPICIOUS.search(line, max(0, len(line) - NEAR)) else END_OF_WORD
    found = ends.match(line)
    end = found.end() if found else 0
    begun = [
        length
        for secret in known_secrets()
        for length in range(1, len(secret))
        if line.endswith(secret[:length], 0, end)
    ]
    return end - max(begun, default=0)


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


def _remember(secret: str) -> None:
    global _remembered
    if len(secret) >= SHORTEST_SECRET and secret not in _remembered:
        _remembered |= {secret}


@functools.lru_cache(maxsize=1)
def _secrets_of(environment: frozenset[tuple[str, str]], remembered: frozenset[str]) -> tuple[str, ...]:
    found = {value for name, value in environment if ENVIRONMENT_NAME.search(name) and len(value) >= SHORTEST_SECRET}
    # The path of a secret is not secret, and hiding paths would make logs useless.
    found = {value for value in found if not value.startswith("/")} | remembered
    # Output comes line by line, and in JSON and `repr` some characters are escaped.
    found |= {line.strip() for value in found for line in value.splitlines() if len(line.strip()) >= SHORTEST_SECRET}
    found |= {urllib.parse.quote(value, safe="") for value in found} | {json.dumps(value)[1:-1] for value in found}
    return tuple(sorted(found, key=len, reverse=True))
