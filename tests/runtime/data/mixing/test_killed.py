"""A hundred kills at random steps, and other numbers of hosts: draws, positions, shares and batches stay the same.

Whole training runs are cut and killed in tests/runtime/training/test_online_mixing.py; here a run is the loader, the
policy and their checkpoint alone, so that a kill costs a fork. The logs of these runs are held against the shares that
they tell, too.
"""

import dataclasses
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from runtime.data.mixing.exp3 import Exp3
from runtime.data.mixing.loss_drop import LossDrop
from runtime.data.mixing.odm_paper import OdmPaper
from runtime.data.mixing.odm_released import OdmReleased
from runtime.data.mixing.policies import MixingPolicy
from runtime.tracking.source_losses import SourceLossesTable
from tests.runtime.data.mixing.killed_run import GLOBAL_BATCH_SIZE, PLACES, SAVE_EVERY_STEPS, SOURCES, make_caches

UNTIL_STEP = 70
KILLS_OF_A_POLICY = 25
POLICIES: dict[str, MixingPolicy] = {
    "odm_paper": OdmPaper(alpha=0.9, warmup_steps=10),
    "odm_released": OdmReleased(alpha=0.5, warmup_steps=10, lag_steps=2),
    "exp3": Exp3(lag_steps=1),
    "loss_drop": LossDrop(warmup_steps=12, window_updates=24, lag_steps=5, max_epochs={"papers": 0.3}),
}
DRAWING = sorted(name for name, policy in POLICIES.items() if policy.sequences_per_draw)


def kills(seed: int) -> list[tuple[int, str]]:
    """Random steps, and for each a place in it that is there: it saves in every fifth alone."""
    numbers = random.Random(seed)
    steps = sorted(numbers.sample(range(UNTIL_STEP - 1), KILLS_OF_A_POLICY))
    return [
        (step, numbers.choice(PLACES if (step + 1) % SAVE_EVERY_STEPS == 0 else PLACES[:2])) for step in steps
    ]  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with each policy's run on one host, undisturbed, and one that was killed."""
    root = tmp_path_factory.mktemp("runs")
    make_caches(root / "caches")
    plan = {}
    for seed, (name, policy) in enumerate(POLICIES.items()):
        hosts = random.Random(seed)
        attempts = [(hosts.choice((1, 1, 1, 2, 4, 8)), kill) for kill in kills(seed)]
        told = {"policy": dataclasses.asdict(policy), "until_step": UNTIL_STEP}
        plan[str(root / "whole" / name)] = {**told, "attempts": [(1, None)]}
        plan[str(root / "killed" / name)] = {**told, "attempts": [*attempts, (4, None)]}
    (root / "plan.json").write_text(json.dumps({"caches": str(root / "caches"), "runs": plan}))
    environment = os.environ | {"PYTHONPATH": str(Path.cwd()), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.runtime.data.mixing.killed_run", str(root / "plan.json")]
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return root


def test_a_hundred_kills_fall_into_every_place_of_a_step():
    planned = [kill for seed in range(len(POLICIES)) for kill in kills(seed)]
    assert len(planned) == 100
    assert {place for _, place in planned} == set(PLACES)


@pytest.mark.parametrize("name", POLICIES)
def test_killed_at_random_steps_and_read_by_other_hosts_a_run_draws_what_it_would_have_drawn(runs, name):
    told = {
        kind: [json.loads(line) for line in (runs / kind / name / "log").read_text().splitlines()]
        for kind in ("whole", "killed")
    }
    undisturbed = {line["step"]: line for line in told["whole"]}
    assert list(undisturbed) == list(range(UNTIL_STEP))
    assert len(told["killed"]) > UNTIL_STEP + KILLS_OF_A_POLICY, "steps after a checkpoint are made again"
    for line in told["killed"]:
        assert line == undisturbed[line["step"]], "draws, positions, shares, what the policy knows, tokens"
    ends = [runs / kind / name / f"step-{UNTIL_STEP}" for kind in ("whole", "killed")]
    for file in ("position.json", "source_losses.parquet"):
        assert (ends[0] / file).read_bytes() == (ends[1] / file).read_bytes()
    if name == "loss_drop":
        windows = 60 * 14 // 8
        assert undisturbed[UNTIL_STEP - 1]["position"]["consumed"]["digest of papers"] == int(0.3 * windows)
    assert len({json.dumps(line["position"]["shares"]) for line in told["whole"]}) > 30, "it learned"


def logged(runs: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Sequences and shares of each update of a killed run, by source, as its table tells them."""
    data = (runs / "killed" / name / f"step-{UNTIL_STEP}" / "source_losses.parquet").read_bytes()
    table = SourceLossesTable.from_parquet(data)
    found = [table[index] for index in range(len(table))]
    counts, shares = np.zeros((2, UNTIL_STEP, len(SOURCES)))
    for row in found:
        place = row.step - 1, sorted(SOURCES).index(row.source)
        counts[place], shares[place] = row.num_sequences, row.share
    return counts, shares


@pytest.mark.parametrize("name", DRAWING)
def test_the_draws_of_a_log_are_as_likely_as_the_shares_that_it_tells(runs, name):
    """Chi-square of the sums of draws whose shares change from update to update: their covariances add up."""
    counts, shares = logged(runs, name)
    assert np.all(counts.sum(axis=1) == GLOBAL_BATCH_SIZE)
    off = (counts - GLOBAL_BATCH_SIZE * shares).sum(axis=0)[:-1]
    covariance = GLOBAL_BATCH_SIZE * (np.diag(shares.sum(axis=0)) - shares.T @ shares)[:-1, :-1]
    chi_square = off @ np.linalg.solve(covariance, off)
    assert stats.chi2.sf(chi_square, len(off)) > 1e-4
    # And not as an allotment would: the counts of single updates spread as those of independent draws do.
    spread = ((counts - GLOBAL_BATCH_SIZE * shares) ** 2 / (GLOBAL_BATCH_SIZE * shares)).sum()
    freedom = UNTIL_STEP * (len(SOURCES) - 1)
    assert abs(spread - freedom) < 6 * np.sqrt(2 * freedom)


def test_what_is_allotted_stays_within_a_few_sequences_of_the_shares_of_the_log(runs):
    counts, shares = logged(runs, "loss_drop")
    off = np.abs(np.cumsum(counts - GLOBAL_BATCH_SIZE * shares, axis=0))
    assert off.max() < 1 + len(SOURCES) / 2
