"""Warnings about outputs: kept in the record, and shown by the run, by each later plan and by `why`."""

from pathlib import Path

import pytest

from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.ledger.marks import add_mark
from marin_dag.ledger.output_warning import SAMPLE_CHARACTERS, OutputWarning, output_warning
from marin_dag.plan.explain import explain
from marin_dag.plan.plan import make_plan
from marin_dag.plan.planned import Verdict
from marin_dag.plan.reasons import Warned
from marin_dag.run.task import Backend
from marin_dag.store.local import LocalStore
from tests.catalogue import check_message
from tests.marin_dag.run.test_driver import record, run
from tests.marin_dag.toy_steps import Text, WarnConfig, WriteConfig, warn, write

SAMPLES = ("one", "two", "three", "four")


def a_warning_step() -> Step[Text]:
    return warn("filter", WarnConfig(text="rule `length` drops 77 % of the bytes", samples=SAMPLES, file="text.txt"))


def test_a_warning_is_stored_and_shown_by_the_run_and_each_plan(tmp_path: Path, backend: Backend):
    item, other = a_warning_step(), write("other", WriteConfig(text="other"))
    code, display = run(str(tmp_path), [item, other], backend)
    assert code == 0
    assert display.lines.count(f"filter: warning: {item.config.text}") == 1
    (warning,) = record(str(tmp_path), item).warnings
    assert warning == OutputWarning(text=item.config.text, samples=SAMPLES[:3], file="text.txt")
    store = LocalStore(str(tmp_path))
    plan = make_plan(Graph([item, other]), store)
    (reason,) = plan["filter"].reasons
    assert isinstance(reason, Warned) and plan["filter"].verdict is Verdict.DONE and not plan["other"].reasons
    assert (reason.text, reason.samples) == (warning.text, warning.samples)
    assert Path(reason.file).read_text() == item.config.text
    check_message("\n".join(explain(plan, "filter", store).splitlines()[:6]))


def test_a_forced_step_keeps_its_warnings_and_repeats_them(tmp_path: Path):
    item = a_warning_step()
    assert run(str(tmp_path), [item])[0] == 0
    before = record(str(tmp_path), item)
    code, display = run(str(tmp_path), [item], force=frozenset({item.key}))
    assert code == 0 and f"filter: warning: {item.config.text}" in display.lines
    assert record(str(tmp_path), item) == before


def test_a_mark_without_a_warned_record_shows_nothing(tmp_path: Path):
    store, item = LocalStore(str(tmp_path)), write("plain", WriteConfig(text="plain"))
    assert run(str(tmp_path), [item])[0] == 0
    add_mark(store, item.key, "warned")  # of an attempt that was killed before another one committed
    add_mark(store, "ab" * 32, "warned")
    assert make_plan(Graph([item]), store)["plain"].reasons == ()


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("a\nb\r\n\tc", "a b c"),
        ("\x1b[31mred\x07", "\N{REPLACEMENT CHARACTER}[31mred\N{REPLACEMENT CHARACTER}"),
        ("\x9b1mc1 \u202eright to left", "\N{REPLACEMENT CHARACTER}1mc1 \N{REPLACEMENT CHARACTER}right to left"),
        ("x" * 10**6, "x" * (SAMPLE_CHARACTERS - 1) + "…"),
        ("", ""),
        ("中文 é 🦙", "中文 é 🦙"),
    ],
)
def test_a_sample_is_one_short_line_that_a_terminal_only_prints(given: str, kept: str):
    assert output_warning("text", [given], "").samples == (kept,)


def test_a_warning_shows_no_secret(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SERVICE_TOKEN", "a-long-secret-value")
    found = output_warning("drops a-long-secret-value", ["x" * 150 + "a-long-secret-value"], "")
    assert "secret" not in found.text and "secret" not in found.samples[0]
