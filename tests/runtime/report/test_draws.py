"""Draws by the log: counts between two steps, and shares by segment of the mixture."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runtime.data.allocation import allocate, drawn
from runtime.data.mixture import MixtureSchedule, MixtureSegment, apportioned
from runtime.report.readings import drawn_between, drawn_spans, read_draws
from runtime.tables.parquet_bytes import TableError
from runtime.tracking.source_losses import SourceLosses, SourceLossesTable
from tests.catalogue import expect_error

MIXTURE = MixtureSchedule(
    (MixtureSegment(0, {"web": 12.0, "code": 1.0}), MixtureSegment(60, {"web": 5.0, "code": 2.0, "math": 0.3}))
)


def tokens_at(step):
    return 4096 * step


def log_of(path, counts_of):
    """Return a log of 100 updates of 16 sequences; the function gives the counts of the update after a step."""
    table = SourceLossesTable()
    for step in range(100):
        shares = MIXTURE.shares_at(step)
        counts = counts_of(step, apportioned(shares))
        table.append(
            SourceLosses(step + 1, name, f"digest of {name}", shares[name], counts.get(name, 0), 0, 0.0, 0.0)
            for name in sorted(shares)
        )
    path.write_bytes(table.to_parquet())
    return read_draws(str(path)), table


@pytest.fixture
def allotted(tmp_path):
    carry = {}

    def counts(step, weights):
        nonlocal carry
        found, carry = allocate(weights, carry, 16)
        return found

    return log_of(tmp_path / "source_losses.parquet", counts)


def test_counts_between_two_steps_are_those_of_the_updates_after_the_one_and_up_to_the_other(allotted):
    draws, table = allotted
    expected = dict.fromkeys(("web", "code", "math"), 0)
    for index in range(len(table)):
        row = table[index]
        if 50 < row.step <= 70:
            expected[row.source] += row.num_sequences
    assert drawn_between(draws, 50, 70) == expected
    assert drawn_between(draws, 0, 60) == {name: sum(drawn_between(draws, step, step + 1)[name] for step in range(60))
                                    for name in ("web", "code")}  # fmt: skip
    assert drawn_between(draws, 70, 70) == {} == drawn_between(draws, 100, 200)


def test_an_allotment_is_shown_as_counted_near_the_mixture(allotted):
    spans = drawn_spans(allotted[0], MIXTURE, 0, 100, tokens_at)
    for span, segment in zip(spans, MIXTURE.segments, strict=True):
        assert span.begin_tokens == tokens_at(segment.start_step)
        assert span.shares == pytest.approx(segment.shares(), abs=2 / 640)
    (later,) = drawn_spans(allotted[0], MIXTURE, 80, 100, tokens_at)
    assert (later.begin_tokens, later.end_tokens) == (tokens_at(80), tokens_at(100))
    assert later.shares == pytest.approx(MIXTURE.shares_at(60), abs=2 / 320)


def test_a_policys_choice_is_shown_as_counted(tmp_path):
    draws, _ = log_of(tmp_path / "even.parquet", lambda step, weights: {"web": 8, "code": 8})
    first, second = drawn_spans(draws, MIXTURE, 0, 100, tokens_at)
    assert first.shares == {"web": 0.5, "code": 0.5}
    assert second.shares == {"web": 0.5, "code": 0.5, "math": 0.0}

    def at_random(step, weights):
        return drawn(weights, seed=0, step=step, num_draws=16)

    draws, _ = log_of(tmp_path / "drawn.parquet", at_random)
    first, _ = drawn_spans(draws, MIXTURE, 0, 100, tokens_at)
    code = sum(at_random(step, apportioned(MIXTURE.shares_at(step)))["code"] for step in range(60))
    assert first.shares["code"] == code / 960 != MIXTURE.shares_at(0)["code"]
    assert np.isclose(first.shares["code"], 1 / 13, atol=0.03)


def test_a_table_that_is_no_log_of_draws_is_named(tmp_path):
    path = tmp_path / "source_losses.parquet"
    pq.write_table(pa.table({"step": [1]}), path)
    with expect_error(TableError):
        read_draws(str(path))
