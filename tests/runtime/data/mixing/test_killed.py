"""A hundred kills at random steps, under other numbers of hosts, change no draw, position, share or batch.

tests/runtime/training/test_online_mixing.py kills whole training runs. Here a run is the loader, the policy and their
checkpoint, so a kill costs only a fork. The logs of these runs are also compared with the shares that they record.
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

from runtime.data.mixing.loss_drop import LossDrop
from runtime.data.mixing.odm import OdmPaper, OdmReleased
from runtime.data.mixing.policies import MixingPolicy
from runtime.tracking.source_losses import SourceLossesTable
from tests.runtime.data.mixing.killed_run import GLOBAL_BATCH_SIZE, PLACES, SAVE_EVERY_STEPS, SOURCES, make_caches

UNTIL_STEP = 70
KILLS_OF_A_POLICY = 25
POLICIES: dict[str, MixingPolicy] = {
    "odm_paper": OdmPaper(alpha=0.9, warmup_steps=10),
    "odm_released": OdmReleased(alpha=0.5, warmup_steps=10, lag_steps=2),
    "odm_paper_without_lag": OdmPaper(alpha=0.5, lag_steps=1),
    "loss_drop": LossDrop(warmup_steps=12, window_updates=24, lag_steps=5, max_epochs={"papers": 0.3}),
}
DRAWING = sorted(name for name, policy in POLICIES.items() if policy.sequences_per_draw)


def kills(seed: int) -> list[tuple[int, str]]:
    """Return random steps and a place in each; only every fifth step saves."""
    numbers = random.Random(seed)
    steps = sorted(numbers.sample(range(UNTIL_STEP - 1), KILLS_OF_A_POLICY))
    return [
        (step, numbers.choice(PLACES if (step + 1) % SAVE_EVERY_STEPS == 0 else PLACES[:2])) for step in steps
    ]  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an undisturbed run of each policy on one host, and a killed one."""
    root = tmp_path_factory.mktemp("runs")
    make_caches(root / "caches")
    plan = {}
    for seed, (name, policy) in enumerate(POLICIES.items()):
        hosts = random.Random(seed)
        attempts = [(hosts.choice((1, 1, 1, 2, 4, 8)), kill) for kill in kills(seed)]
        run = {"policy": dataclasses.asdict(policy), "until_step": UNTIL_STEP}
        plan[str(root / "whole" / name)] = {**run, "attempts": [(1, None)]}
        plan[str(root / "killed" / name)] = {**run, "attempts": [*attempts, (4, None)]}
    (root / "plan.json").write_text(json.dumps({"caches": str(root / "caches"), "runs": plan}))
    environment = os.environ | {"PYTHONPATH": str(Path.cwd()), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.runtime.data.mixing.killed_run", str(root / "plan.json")]
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return root


def test_a_hundred_kills_cover_every_place_of_a_step():
    planned = [kill for seed in range(len(POLICIES)) for kill in kills(seed)]
    assert len(planned) == 100
    assert {place for _, place in planned} == set(PLACES)


@pytest.mark.parametrize("name", POLICIES)
def test_a_run_killed_at_random_steps_and_read_by_other_hosts_draws_the_same(runs, name):
    lines = {
        kind: [json.loads(line) for line in (runs / kind / name / "log").read_text().splitlines()]
        for kind in ("whole", "killed")
    }
    undisturbed = {line["step"]: line for line in lines["whole"]}
    assert list(undisturbed) == list(range(UNTIL_STEP))
    assert len(lines["killed"]) > UNTIL_STEP + KILLS_OF_A_POLICY, "steps after a checkpoint are repeated"
    for line in lines["killed"]:
        assert line == undisturbed[line["step"]], "draws, positions, shares, memory of the policy, tokens"
    ends = [runs / kind / name / f"step-{UNTIL_STEP}" for kind in ("whole", "killed")]
    for file in ("position.json", "source_losses.parquet"):
        assert (ends[0] / file).read_bytes() == (ends[1] / file).read_bytes()
    if name == "loss_drop":
        windows = 60 * 14 // 8
        assert undisturbed[UNTIL_STEP - 1]["position"]["consumed"]["digest of papers"] == int(0.3 * windows)
    assert len({json.dumps(line["position"]["shares"]) for line in lines["whole"]}) > 30, "it learned"


def logged(runs: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return sequences and shares of each update of a killed run, by source, from its table."""
    data = (runs / "killed" / name / f"step-{UNTIL_STEP}" / "source_losses.parquet").read_bytes()
    table = SourceLossesTable.from_parquet(data)
    found = [table[index] for index in range(len(table))]
    counts, shares = np.zeros((2, UNTIL_STEP, len(SOURCES)))
    for row in found:
        place = row.step - 1, sorted(SOURCES).index(row.source)
        counts[place], shares[place] = row.num_sequences, row.share
    return counts, shares


@pytest.mark.parametrize("name", DRAWING)
def test_the_draws_of_a_log_agree_with_its_shares(runs, name):
    """Chi-square of sums of draws whose shares change at each update: their covariances add up."""
    from scipy import stats  # each worker imports this module, and one runs it

    counts, shares = logged(runs, name)
    assert np.all(counts.sum(axis=1) == GLOBAL_BATCH_SIZE)
    off = (counts - GLOBAL_BATCH_SIZE * shares).sum(axis=0)[:-1]
    covariance = GLOBAL_BATCH_SIZE * (np.diag(shares.sum(axis=0)) - shares.T @ shares)[:-1, :-1]
    chi_square = off @ np.linalg.solve(covariance, off)
    assert stats.chi2.sf(chi_square, len(off)) > 1e-4
    # Counts of single updates spread as independent draws do, more than an allotment would.
    spread = ((counts - GLOBAL_BATCH_SIZE * shares) ** 2 / (GLOBAL_BATCH_SIZE * shares)).sum()
    freedom = UNTIL_STEP * (len(SOURCES) - 1)
    assert abs(spread - freedom) < 6 * np.sqrt(2 * freedom)


def test_allotted_sequences_stay_near_the_shares_of_the_log(runs):
    counts, shares = logged(runs, "loss_drop")
    off = np.abs(np.cumsum(counts - GLOBAL_BATCH_SIZE * shares, axis=0))
    assert off.max() < 1 + len(SOURCES) / 2
