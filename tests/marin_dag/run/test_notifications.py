"""Notifications reach a webhook in its format, hide the URL, and never hold a run up."""

import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marin_dag.errors import UserError
from marin_dag.ledger.progress import Progress
from marin_dag.run import notifications
from marin_dag.run.live import display_for
from marin_dag.run.notifications import Notifier, NotifyingDisplay, read_webhook
from tests.catalogue import check_message, expect_error
from tests.marin_dag.workbench import Workbench

SECRET = "T0KEN-of-the-webhook"


class Webhook:
    """A local web server that keeps what it is sent, and answers with `codes`, then with 200."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.codes: list[int] = []
        webhook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                code = webhook.codes.pop(0) if webhook.codes else 200
                if code == 200:
                    webhook.bodies.append(body)
                self.send_response(code)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Print nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/{SECRET}"


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    monkeypatch.setattr(notifications, "PAUSES_SECONDS", (0.0, 0.0))
    made = Webhook()
    yield made
    made.server.shutdown()
    made.server.server_close()


def notifier(url: str, warnings: list[str]) -> Notifier:
    return Notifier(url, pipeline="tootsie", prefix="gs://runs", warn=warnings.append)


def test_each_event_of_a_run_is_sent_in_order(webhook: Webhook) -> None:
    warnings: list[str] = []
    with NotifyingDisplay(display_for(False), notifier(webhook.url, warnings)) as shown:  # noqa: F841
        pass
    assert [body["event"] for body in webhook.bodies] == ["finished"]
    display = NotifyingDisplay(display_for(False), notifier(webhook.url, warnings))
    with display:
        display.begin(["kestrel", "ocelot"])
        display.event("kestrel", "started", "")
        display.progress("kestrel", Progress(10, 100, "steps", {"loss": 3.0}))
        display.progress("kestrel", Progress(20, 100, "steps", {"loss": 9.0, "alarms": 2}))
        display.progress("kestrel", Progress(30, 100, "steps", {"loss": 3.0, "alarms": 2}))
        display.event("kestrel", "done", "")
        display.event("ocelot", "failed", "ValueError: no such file")
    sent = [(body["event"], body["step"]) for body in webhook.bodies[1:]]
    assert sent == [("alarm", "kestrel"), ("failed", "ocelot"), ("finished", "")]
    assert webhook.bodies[0]["pipeline"] == "tootsie" and webhook.bodies[0]["prefix"] == "gs://runs"
    check_message("\n".join(body["text"] for body in webhook.bodies))
    assert warnings == []


def test_a_driver_that_dies_is_a_failure(webhook: Webhook) -> None:
    with pytest.raises(KeyboardInterrupt), NotifyingDisplay(display_for(False), notifier(webhook.url, [])):
        raise KeyboardInterrupt
    assert [(body["event"], body["step"]) for body in webhook.bodies] == [("failed", "")]


def test_only_started_steps_are_stopped_one_by_one(webhook: Webhook) -> None:
    display = NotifyingDisplay(display_for(False), notifier(webhook.url, []))
    with display:
        display.event("kestrel", "started", "")
        for name in ("kestrel", "ocelot", "phoenix"):
            display.event(name, "stopped", "")
    assert [(body["event"], body["step"]) for body in webhook.bodies] == [("stopped", "kestrel"), ("finished", "")]
    check_message("\n".join(body["text"] for body in webhook.bodies))


def test_slack_gets_its_own_format(webhook: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "SLACK_HOST", f"127.0.0.1:{webhook.server.server_port}")
    sender = notifier(webhook.url, [])
    sender.send("failed", "kestrel", "no space left")
    sender.close()
    assert webhook.bodies == [{"text": "tootsie: kestrel failed: no space left"}]


def test_a_busy_webhook_is_asked_again(webhook: Webhook) -> None:
    webhook.codes = [500, 429]
    sender = notifier(webhook.url, warnings := [])
    sender.send("stopped", "kestrel", "")
    sender.close()
    assert len(webhook.bodies) == 1 and warnings == []


@pytest.mark.parametrize("codes", [[404], [500, 500, 500]])
def test_a_notification_that_is_lost_is_a_warning_without_the_url(webhook: Webhook, codes: list[int]) -> None:
    webhook.codes = [*codes]
    sender = notifier(webhook.url, warnings := [])
    sender.send("failed", "kestrel", "")
    sender.send("failed", "ocelot", "")
    sender.close()
    (warning,) = warnings
    assert str(codes[-1]) in warning and SECRET not in warning
    assert [body["step"] for body in webhook.bodies] == ["ocelot"]


def test_a_webhook_that_does_not_answer_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "PAUSES_SECONDS", (0.0, 0.0))
    sender = notifier(f"http://127.0.0.1:9/{SECRET}", warnings := [])
    began = time.monotonic()
    sender.send("failed", "kestrel", "")
    assert time.monotonic() - began < 1
    sender.close()
    (warning,) = warnings
    assert SECRET not in warning


def test_secrets_in_an_error_are_hidden(webhook: Webhook) -> None:
    sender = notifier(webhook.url, [])
    sender.send("failed", "kestrel", "cannot read https://user:hunter2pass@host/data")
    sender.close()
    assert "hunter2pass" not in webhook.bodies[0]["text"]


def test_the_url_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "webhook").write_text("https://hooks.slack.com/services/x\n")
    assert read_webhook(str(tmp_path / "webhook")) == "https://hooks.slack.com/services/x"
    with expect_error(UserError):
        read_webhook(str(tmp_path / "none"))
    (tmp_path / "empty").write_text("")
    with expect_error(UserError):
        read_webhook(str(tmp_path / "empty"))


def test_a_run_notifies_the_webhook_of_the_file_and_stores_no_url(
    webhook: Webhook, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "webhook").write_text(webhook.url)
    bench = Workbench(tmp_path, capsys)
    bench.edit("text.txt", "missing/text.txt")
    assert bench("--notify", str(tmp_path / "webhook"))[0] == 1
    sent = [(body["event"], body["step"]) for body in webhook.bodies]
    assert sorted(sent[:-1]) == [("failed", "text/code"), ("failed", "text/web")]
    assert sent[-1] == ("finished", "")
    assert not [path for path in bench.prefix.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def test_a_webhook_file_that_is_missing_ends_the_run_before_it_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Workbench(tmp_path, capsys)
    assert bench("--notify", str(tmp_path / "none"))[0] == 1
    assert not bench.prefix.exists()
