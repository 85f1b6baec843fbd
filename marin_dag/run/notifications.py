"""Notifications: messages of a run to a webhook, in Slack's format or as plain JSON.

Events are a failed or stopped step, a new alarm of a running one, and the end of the run. A thread sends them, so the
run never waits for the webhook, and a webhook that does not answer costs a warning.
"""

import http.client
import json
import queue
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

from marin_dag.errors import UserError
from marin_dag.ledger.progress import Progress
from marin_dag.ledger.provenance import now
from marin_dag.ledger.records import first_lines
from marin_dag.quantities import counted
from marin_dag.run.live import LineDisplay
from marin_dag.store.redact import redact

SCHEMA = "marin_dag.notification/1"
SLACK_HOST = "hooks.slack.com"
TIMEOUT_SECONDS = 10.0
PAUSES_SECONDS = (1.0, 5.0)
CLOSE_SECONDS = 30.0
"""Longest wait for unsent notifications at the end of a run."""
ALARMS = "alarms"
"""Figure of a step's progress that counts its alarms."""


def read_webhook(path: str) -> str:
    """Return the URL in a file; a URL on the command line would be in the process list and in every record."""
    try:
        url = Path(path).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no text"
        raise UserError(
            f"--notify {path}: cannot read it ({reason}). Write the webhook's URL into this file."
        ) from None
    if not url.startswith(("https://", "http://")) or len(url.split()) != 1:
        raise UserError(
            f"--notify {path}: its content is no URL. Write only the webhook's https:// URL into this file."
        )
    return url


class Notifier:
    """Sends notifications in their order, from a thread; the URL is in no message, log or record.

    `warn` gets one line where a notification could not be sent.
    """

    def __init__(self, url: str, *, pipeline: str, prefix: str, warn: Any) -> None:
        self._url, self._pipeline, self._prefix, self._warn = url, pipeline, prefix, warn
        self._unsent: queue.Queue[bytes | None] = queue.Queue()
        self._thread = threading.Thread(target=self._send_all, name="notifications", daemon=True)
        self._thread.start()

    def send(self, event: str, step: str | None, text: str) -> None:
        """Queue a notification: "failed", "stopped", "alarm" or "finished"; `step` is None for the run as a whole."""
        subject = f"{self._pipeline}: {step}" if step else self._pipeline
        line = redact(f"{subject} {event}{': ' if text else ''}{text}")
        body = {"text": line}
        if urllib.request.Request(self._url).host != SLACK_HOST:
            body |= {"schema": SCHEMA, "event": event, "pipeline": self._pipeline, "step": step or ""}
            body |= {"prefix": self._prefix, "time": now()}
        self._unsent.put(json.dumps(body).encode())

    def close(self) -> None:
        self._unsent.put(None)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self._warn(f"{counted(self._unsent.qsize(), 'notification')} not sent: the webhook took too long")

    def _send_all(self) -> None:
        while (body := self._unsent.get()) is not None:
            if problem := self._post(body):
                self._warn(f"a notification was not sent: {problem}")

    def _post(self, body: bytes) -> str:
        """Return why `body` could not be sent after all tries; "" if it was."""
        problem = ""
        for pause_seconds in (*PAUSES_SECONDS, 0.0):
            request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
            try:
                urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS).close()
            except urllib.error.HTTPError as error:
                problem = f"the webhook answers {error.code}"
                if error.code < 500 and error.code != 429:
                    return problem
            except (OSError, ValueError, http.client.HTTPException) as error:  # the text of the error may hold the URL
                problem = f"the webhook does not answer ({type(error).__name__})"
            else:
                return ""
            time.sleep(pause_seconds)
        return problem


class NotifyingDisplay:
    """A display that also sends notifications."""

    def __init__(self, display: LineDisplay, notifier: Notifier) -> None:
        self._display, self._notifier = display, notifier
        self._num_alarms: dict[str, int] = {}
        self._started: set[str] = set()
        self._num_ended = {"done": 0, "failed": 0, "stopped": 0, "skipped": 0}

    def __enter__(self) -> object:
        return self._display.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._display.__exit__(kind, error, trace)
        ended = ", ".join(f"{number} {what}" for what, number in self._num_ended.items() if number)
        if error is None:
            self._notifier.send("finished", None, ended or "nothing had to run")
        else:
            self._notifier.send("failed", None, f"the driver ended: {first_lines(error)}")
        self._notifier.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._display, name)  # what sends nothing: begin, say, complain

    def event(self, name: str, what: str, detail: str) -> None:
        """See `LineDisplay`; send the end of a step that did not succeed."""
        self._display.event(name, what, detail)
        if what in self._num_ended:
            self._num_ended[what] += 1
        if what == "started":
            self._started.add(name)
        elif what == "failed" or (what == "stopped" and name in self._started):  # one stop may end hundreds of others
            self._notifier.send(what, name, detail)

    def progress(self, name: str, progress: Progress) -> None:
        self._display.progress(name, progress)
        num_alarms = int(progress.figures.get(ALARMS, 0))
        before = self._num_alarms.get(name, 0)
        self._num_alarms[name] = num_alarms
        if num_alarms > before:
            new = counted(num_alarms - before, "new alarm")
            self._notifier.send("alarm", name, f"{new} at {progress.done:,} {progress.unit}; see its log")
