"""The table of mixing policies has the figures of NumPy and SciPy."""

import logging
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from scipy import stats

from marin_dag.graph.step import Input
from runtime.tracking.source_losses import SourceLosses, SourceLossesTable
from runtime.training import checkpoint
from steps.ema_eval import EmaEvalResult
from steps.mixing_table import MixingTableConfig, mixing_table
from steps.phase_result import TrainPhaseResult
from tests.catalogue import expect_error

SOURCES, SEEDS = ("code", "math", "web"), ("0", "1", "2")
PRIOR = {"web": 6.0, "code": 3.0, "math": 1.0}
# Bits per byte by policy, seed and source: loss_drop is better with each seed, by less than seeds differ.
BITS = {
    "static": np.array([[2.0, 3.0, 1.5], [2.3, 3.4, 1.9], [1.8, 2.9, 1.4]]),
    "loss_drop": np.array([[1.9, 2.99, 1.48], [2.25, 3.36, 1.86], [1.76, 2.86, 1.38]]),
    "odm_paper": np.array([[2.4, 2.6, 1.9], [2.2, 2.7, 2.4], [2.5, 2.4, 1.7]]),
}
# Sequences of two updates by policy, seed, update and source.
DRAWN = {
    "static": np.array([[[3, 1, 6], [3, 1, 6]]] * 3),
    "loss_drop": np.array([[[3, 1, 6], [4, 2, 4]], [[3, 1, 6], [2, 1, 7]], [[3, 1, 6], [3, 0, 7]]]),
    "odm_paper": np.array([[[3, 3, 4], [4, 4, 2]], [[0, 5, 5], [3, 3, 4]], [[9, 1, 0], [1, 8, 1]]]),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Return phases and evaluations by policy and seed, each with a log of draws beside its checkpoint."""
    root = tmp_path_factory.mktemp("inputs")

    def phase(policy, seed):
        table = SourceLossesTable()
        for step, counts in enumerate(DRAWN[policy][int(seed)].tolist(), start=1):
            table.append(
                SourceLosses(step, name, f"digest of {name}", 1 / 3, count, 9 * count, 27.0 * count, 36.0 * count)
                for name, count in zip(SOURCES, counts, strict=True)
            )
        folder = root / f"{policy}-{seed}"
        beside = {"source_losses.parquet": table.to_parquet}
        state = {"w": jax.device_put(np.zeros(1, np.float32))}
        checkpoint.save(f"{folder}/checkpoint", state, {"step": 2}, beside=beside).wait()
        result = TrainPhaseResult(
            step=2, consumed_tokens=160, checkpoint="checkpoint", metrics="metrics.parquet", final_loss=3.0,
        )  # fmt: skip
        return Input(name="phase", digest="a" * 64, path=str(folder), result=result)

    def evaluation(policy, seed):
        hot = dict(zip(SOURCES, BITS[policy][int(seed)].tolist(), strict=True))
        hot["held out by its publisher"] = 99.0  # of no source of the mixture
        result = EmaEvalResult(
            step=2, consumed_tokens=160, hot=hot, hot_mean=0.0, averages=(),
            num_bytes={}, num_tokens={},
        )  # fmt: skip
        return Input(name="evaluation", digest="b" * 64, path=str(root), result=result)

    return {
        field: {policy: {seed: make(policy, seed) for seed in SEEDS} for policy in BITS}
        for field, make in (("phases", phase), ("evaluations", evaluation))
    }


def tabled(inputs, folder, seeds=SEEDS):
    chosen = {
        field: {policy: {seed: by_seed[seed] for seed in seeds} for policy, by_seed in found.items()}
        for field, found in inputs.items()
    }
    config = MixingTableConfig(**chosen, baseline="static", prior=PRIOR)
    context = SimpleNamespace(output_path=str(folder), log=logging.getLogger("test"), name="table")
    folder.mkdir()
    return mixing_table.function(config, context)


@pytest.fixture(scope="module")
def result(inputs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("outputs") / "table"
    made = tabled(inputs, folder)
    return made, (folder / made.table).read_text()


def assert_compared(found, values):
    """Compare `found` with NumPy and SciPy over `values`, one for each seed."""
    for policy in BITS:
        own, difference = values[policy], values[policy] - values["static"]
        assert found[policy].mean == pytest.approx(np.mean(own), rel=1e-12)
        assert found[policy].standard_error == pytest.approx(stats.sem(own), rel=1e-12)
        assert found[policy].against_baseline == pytest.approx(np.mean(difference), abs=1e-12)
        assert found[policy].against_baseline_error == pytest.approx(stats.sem(difference), abs=1e-12)
        if policy != "static":  # the difference is taken seed by seed: its t is that of SciPy's paired test
            t = stats.ttest_rel(own, values["static"]).statistic
            assert found[policy].against_baseline / found[policy].against_baseline_error == pytest.approx(t, rel=1e-9)


def test_means_errors_and_paired_differences_are_those_of_numpy_and_scipy(result):
    made, _ = result
    assert_compared(made.mean_of_sources, {policy: bits.mean(axis=1) for policy, bits in BITS.items()})
    weights = np.array([PRIOR[name] for name in SOURCES]) / 10
    assert_compared(made.mean_by_prior, {policy: bits @ weights for policy, bits in BITS.items()})
    assert set(made.by_source) == set(SOURCES)
    for place, name in enumerate(SOURCES):
        assert_compared(made.by_source[name], {policy: bits[:, place] for policy, bits in BITS.items()})


def test_a_difference_in_every_seed_has_a_smaller_error_than_the_means(result):
    found = result[0].mean_of_sources["loss_drop"]
    assert found.against_baseline < 0
    assert abs(found.against_baseline) > 3 * found.against_baseline_error
    assert abs(found.against_baseline) < found.standard_error


def test_shares_are_of_drawn_sequences_averaged_over_seeds(result):
    made, _ = result
    for policy, drawn in DRAWN.items():
        expected = (drawn.sum(axis=1) / drawn.sum(axis=(1, 2))[:, None]).mean(axis=0)
        found = [made.shares[name][policy] for name in SOURCES]
        assert found == pytest.approx(expected, rel=1e-12)


def test_the_page_shows_these_figures(result):
    made, page = result
    summary, by_source, shares = page.split("\n\n")[0], page.split("\n\n")[2], page.split("\n\n")[4]
    head, _, *rows = summary.splitlines()
    assert head == "| policy | mean of sources | against static | mean by written shares | against static |"
    weights = [np.full(3, 1 / 3), np.array([PRIOR[name] for name in SOURCES]) / 10]
    for row, (policy, bits) in zip(rows, BITS.items(), strict=True):
        cells = []
        for weight in weights:
            own, difference = bits @ weight, (bits - BITS["static"]) @ weight
            cells.append(f"{np.mean(own):.4f} ± {stats.sem(own):.4f}")
            cells.append(f"{np.mean(difference):+.4f} ± {stats.sem(difference):.4f}")
        assert row == f"| {policy} | " + " | ".join(cells) + " |"
    assert by_source.splitlines()[2] == "| code | 2.033 | 1.970 | 2.367 |"
    assert shares.splitlines()[2:] == [
        f"| {name} | " + " | ".join(f"{made.shares[name][policy]:.1%}" for policy in BITS) + " |" for name in SOURCES
    ]


def test_runs_with_different_seeds_are_refused(inputs):
    config = MixingTableConfig(**inputs, baseline="static", prior=PRIOR)
    mixing_table.check(config)
    without_a_seed = inputs["phases"] | {"odm_paper": {"0": inputs["phases"]["odm_paper"]["0"]}}
    without_a_policy = {name: found for name, found in inputs["evaluations"].items() if name != "loss_drop"}
    for changes in (
        {"baseline": "statik"},
        {"phases": without_a_seed},
        {"evaluations": without_a_policy},
        {"phases": {policy: {} for policy in BITS}},
    ):
        with expect_error(ValueError):
            mixing_table.check(config.model_copy(update=changes))


def test_a_single_seed_has_no_error(inputs, tmp_path):
    made = tabled(inputs, tmp_path / "table", seeds=("1",))
    found = made.mean_of_sources["odm_paper"]
    assert (found.standard_error, found.against_baseline_error) == (None, None)
    assert found.mean == pytest.approx(BITS["odm_paper"][1].mean())
    assert "±" not in (tmp_path / "table" / made.table).read_text()
