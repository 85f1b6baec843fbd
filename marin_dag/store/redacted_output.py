"""Redacted output: streams that write text without secrets, also where a secret or a key comes in pieces."""

import os
import re
import threading
from collections.abc import Callable, Iterable
from typing import IO, Any

from marin_dag.store.redact import HIDDEN, KEY_BEGIN, OTHER_SECRETS, SUSPICIOUS, TOKENS, known_secrets, redact, remember

LONGEST_LINE = 1 << 20
CONTEXT = 1 << 9
"""Characters of a flushed line that are redacted again together with those that follow."""
MOST_CONTEXT = 32 * CONTEXT
NEAR = 200
"""Characters before a word in which the name of a secret makes it a whole word, up to white space."""
# Thai to Tibetan, Burmese, Khmer, Chinese and Japanese have no spaces between words.
SPACELESS = "\u0e00-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
SPACE = re.compile(r"(?s:.*\s)")
END_OF_WORD = re.compile(rf"(?s:.*[\s{SPACELESS}])")
OPEN_ELEMENT = re.compile(rf"<(?:{TOKENS}|{OTHER_SECRETS})>[^<\n]{{0,{NEAR}}}\Z", re.IGNORECASE)
OPEN_KEY = re.compile(rf"{KEY_BEGIN}(?!.*-----END)", re.DOTALL)
# Lines of a key may have a prefix: a process, a time, the border of a box. A short last line has none, or ends in "=".
BASE64 = re.compile(r"\A\s*[\w+/=]+(?=\s*\Z)|[A-Za-z0-9+/]{16,}={0,2}|[A-Za-z0-9+/]{2,15}={1,2}(?=[\s\"',│|]{0,300}\Z)")
MOST_LINES_BETWEEN = 20
"""Most other lines between two lines of a key. After that many, a key without an end is over."""


class Redaction:
    """Redacts the lines of a text in their order, since a private key has several."""

    def __init__(self) -> None:
        self._lines_left = 0
        """Further lines in which the key may continue; 0 outside a key."""

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
        """Part of the incomplete line that was written."""

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
    """Copy lines from descriptor `source` to `target` without secrets, and close `source`.

    `secrets` are hidden too, although this process may not know them.
    """
    for secret in secrets:
        remember(secret)
    redacted = Redaction()
    with open(source, encoding="utf-8", errors="replace", newline="") as lines:
        for line in iter(lambda: lines.readline(LONGEST_LINE), ""):
            data = redacted(line).encode(errors="replace")
            while data:
                data = data[os.write(target, data) :]


def _end_of_words(line: str) -> int:
    """Return the end of what may be shown of a line.

    The last word may go on, and so may an open element or the beginning of a known secret.
    """
    ends = SPACE if SUSPICIOUS.search(line, max(0, len(line) - NEAR)) else END_OF_WORD
    found = ends.match(line)
    end = found.end() if found else 0
    if element := OPEN_ELEMENT.search(line, 0, end):
        return element.start()
    beginnings = [
        length
        for secret in known_secrets()
        for length in range(1, len(secret))
        if line.endswith(secret[:length], 0, end)
    ]
    return end - max(beginnings, default=0)
