"""Redaction: no secret of the environment, of a URL or of a header reaches a record or a log."""

import functools
import os
import re

HIDDEN = "***"
OTHER_SECRETS = r"secret|passw(?:or)?d|api[_-]?key|access[_-]?key|private[_-]?key|credentials?|signature"
# A language-model project is full of tokens that are no secret: `num_tokens=12`, `eos_token=2`, `tokenizer: llama`.
SECRET_NAME = rf"(?:(?:(?<![\w-])|--|(?:auth|access|api|bearer|refresh|session|hf)[_-]?)token|{OTHER_SECRETS})"
ENVIRONMENT_NAME = re.compile(rf"TOKEN(?![A-Z])|{OTHER_SECRETS}|_KEY$|_PASS$", re.IGNORECASE)
# Shorter values ("1", "true", "token") would blot out ordinary words.
SHORTEST_SECRET = 8
PATTERNS = (
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s:@]+:[^/\s@]+@", re.IGNORECASE), rf"\g<1>{HIDDEN}@"),
    (
        re.compile(r"(\bbearer\s+|\bauthorization[\"']?\s*[:=]\s*[\"']?basic\s+)[\w.~+/=-]{8,}", re.IGNORECASE),
        rf"\g<1>{HIDDEN}",
    ),
    (re.compile(rf"({SECRET_NAME}[\"']?\s*[=:]\s*[\"']?)[^\s\"'&,;]+", re.IGNORECASE), rf"\g<1>{HIDDEN}"),
    (re.compile(r"\b(?:hf_|ghp_|github_pat_|xox[bp]-|sk-|AIza|ya29\.)[\w-]{8,}"), HIDDEN),
)


def redact(text: str) -> str:
    """`text` without the values of secret environment variables and without what looks like a secret."""
    for secret in _environment_secrets(frozenset(os.environ.items())):
        text = text.replace(secret, HIDDEN)
    for pattern, replacement in PATTERNS:
        text = pattern.sub(replacement, text)
    return text


@functools.lru_cache(maxsize=1)
def _environment_secrets(environment: frozenset[tuple[str, str]]) -> tuple[str, ...]:
    found = {value for name, value in environment if ENVIRONMENT_NAME.search(name) and len(value) >= SHORTEST_SECRET}
    # A path is where a secret lies, not the secret; hiding it would blot paths out of every log.
    return tuple(sorted((value for value in found if not value.startswith("/")), key=len, reverse=True))
