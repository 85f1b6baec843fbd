"""A run under a policy that learns: cut, killed or on another mesh, it draws what it would have drawn."""

import itertools
import multiprocessing
import signal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.data.mixing.loss_drop import LossDrop
from runtime.data.mixing.mixer import MixerState
from runtime.data.mixing.odm import OdmPaper, OdmReleased
from runtime.data.mixing.policies import MixingPolicy
from runtime.data.mixture import WHOLE
from runtime.data.sampler import DataPosition
from runtime.tracking.events import read_events
from runtime.tracking.source_losses import SourceLossesTable
from runtime.training import checkpoint
from runtime.training.control import Control
from runtime.training.loop import PREFETCH_BATCHES, TrainingStopped
from tests.catalogue import expect_error
from tests.runtime.training import small_run
from tests.runtime.training.small_run import committed_bytes

UNTIL_STEP = 40
POLICIES: dict[str, MixingPolicy] = {
    "odm_paper": OdmPaper(alpha=0.9, warmup_steps=3),
    "odm_released": OdmReleased(alpha=0.5, warmup_steps=3, lag_steps=2),
    "odm_paper_without_lag": OdmPaper(alpha=0.5, lag_steps=1),
    "loss_drop": LossDrop(warmup_steps=10, window_updates=8, lag_steps=3),
}
FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["jax", "equinox", "tensorstore", "pyarrow.parquet", "runtime.training.loop"])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {}
    for name, policy in POLICIES.items():
        folders[name] = tmp_path_factory.mktemp(name)
        small_run.run(folders[name], UNTIL_STEP, lease_epoch=1, policy=policy)
    return folders


def table_of(folder: Path, step: int = UNTIL_STEP) -> SourceLossesTable:
    return SourceLossesTable.from_parquet(
        (small_run.records(folder)[step] / "source_losses.parquet/000000.parquet").read_bytes()
    )


def rows(table: SourceLossesTable) -> list:
    return [table[index] for index in range(len(table))]


@settings(max_examples=6)
@given(
    name=st.sampled_from(sorted(POLICIES)),
    cuts=st.sets(st.integers(1, UNTIL_STEP - 1), min_size=1, max_size=4),
    every=st.integers(5, UNTIL_STEP),
)
def test_a_run_cut_anywhere_draws_and_ends_as_the_uncut_one(tmp_path_factory, undisturbed, name, cuts, every):
    """Cut six runs at up to four random steps each."""
    folder = tmp_path_factory.mktemp("cut")
    for epoch, until_step in enumerate([*sorted(cuts), UNTIL_STEP], start=1):
        small_run.run(folder, until_step, lease_epoch=epoch, checkpoint_every_steps=every, policy=POLICIES[name])
    ends = [
        {key: value for key, value in committed_bytes(where).items() if key.startswith(f"{UNTIL_STEP}/")}
        for where in (folder, undisturbed[name])
    ]
    assert ends[0] == ends[1]


@pytest.mark.parametrize(("name", "step"), list(zip(sorted(POLICIES), (1, 17, 26, 39), strict=True)))
def test_killed_at_a_random_step_the_next_run_commits_the_same_bytes(tmp_path, undisturbed, name, step):
    child = FORKSERVER.Process(target=small_run.run_and_die_at_step, args=(tmp_path, step, POLICIES[name], UNTIL_STEP))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    small_run.run(tmp_path, UNTIL_STEP, lease_epoch=2, policy=POLICIES[name])
    assert committed_bytes(tmp_path) == committed_bytes(undisturbed[name])


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_the_policy_moves_the_shares_and_the_table_has_every_draw(undisturbed, name):
    logged = rows(table_of(undisturbed[name]))
    assert [row.source for row in logged] == ["code", "web"] * UNTIL_STEP
    for step, of_step in itertools.groupby(logged, key=lambda row: row.step):
        found = list(of_step)
        assert sum(row.num_sequences for row in found) == small_run.GLOBAL_BATCH_SIZE, step
        assert sum(row.share for row in found) == pytest.approx(1.0)
        assert all((row.num_targets == 0) == (row.num_sequences == 0) for row in found)
    assert len({row.share for row in logged}) > 4
    position = checkpoint.read_metadata(f"{small_run.records(undisturbed[name])[UNTIL_STEP]}/checkpoint")[
        "data_position"
    ]
    drawn = {"digest of code": 0, "digest of web": 0}
    for row in logged:
        drawn[row.identity] += row.num_sequences
    assert position["consumed"] == {identity: count for identity, count in drawn.items() if count}
    assert [step for step, _ in position["mixer"]["awaiting"]] == list(
        range(UNTIL_STEP - POLICIES[name].lag_steps, UNTIL_STEP)
    )


def test_hosts_that_read_their_rows_of_a_learned_batch_read_it_together(undisturbed):
    table = table_of(undisturbed["loss_drop"])
    loader = small_run.small_loader(undisturbed["loss_drop"] / "caches", POLICIES["loss_drop"])

    def drawn(num_hosts: int) -> list[np.ndarray]:
        position, tokens = DataPosition(), []
        for step in range(UNTIL_STEP):
            parts = [
                loader.batch(
                    position, step, 8, rows=slice(8 // num_hosts * host, 8 // num_hosts * (host + 1)),
                    feedback=lambda earlier: table.seen(earlier + 1),
                )
                for host in range(num_hosts)
            ]  # fmt: skip
            position = parts[0][1]
            assert all(after == position for _, after in parts)
            tokens.append(np.concatenate([batch.tokens for batch, _ in parts]))
        return tokens

    assert all(map(np.array_equal, drawn(8), drawn(4)))


def test_batches_are_read_ahead_of_the_losses_that_they_need(tmp_path):
    """The reading thread never waits for the loop at the default lag: its batches depend on older losses."""
    policy = OdmPaper(alpha=0.9)
    small_run.run(tmp_path, 2, lease_epoch=1, policy=policy)
    table = table_of(tmp_path, 2)
    position = DataPosition()
    loader = small_run.small_loader(tmp_path / "caches", policy)
    asked = []

    def feedback(step: int):
        asked.append(step)
        return table.seen(1)

    for step in range(20):
        _, position = loader.batch(position, step, 4, feedback=feedback)
        assert max(asked, default=step - 8) == step - 8 and step - 8 < step - PREFETCH_BATCHES - 2
    assert asked == list(range(12))


def test_a_stop_ends_the_thread_that_waits_for_losses(tmp_path):
    """The reader waits for each step at a lag of one; it must not keep a run from ending."""
    for epoch, asked in enumerate((0, 1, 5), start=1):
        calls = itertools.count()
        control = Control(small_run.stop_when(lambda calls=calls, asked=asked: next(calls) == asked))
        with pytest.raises(TrainingStopped):
            small_run.run(tmp_path, lease_epoch=epoch, control=control, policy=POLICIES["odm_paper_without_lag"])


def test_another_policy_restarts_at_the_position_of_the_old_one(tmp_path, undisturbed):
    folder = str(small_run.records(undisturbed["odm_paper_without_lag"])[UNTIL_STEP])
    before = DataPosition.from_json(checkpoint.read_metadata(f"{folder}/checkpoint")["data_position"])
    loader = small_run.small_loader(undisturbed["odm_paper_without_lag"] / "caches", OdmPaper(alpha=0.5))
    _, after = loader.batch(before, UNTIL_STEP, 4)
    assert (after.mixer.policy["kind"], after.mixer.begin_step) == ("odm_paper", UNTIL_STEP)
    assert after.mixer.memory == {"rewards": {}} and len(after.mixer.awaiting) == 1
    static = small_run.small_loader(undisturbed["odm_paper_without_lag"] / "caches")
    _, plain = static.batch(before, UNTIL_STEP, 4)
    assert plain.mixer is None
    assert sum(plain.consumed.values()) == sum(before.consumed.values()) + 4


def test_a_mixer_s_state_survives_json():
    state = MixerState({"kind": "odm_paper"}, 3, {"rewards": {"a": 0.1}}, ((7, {"a": WHOLE}),))
    assert MixerState.from_json(state.to_json()) == state


def test_a_source_at_its_limit_is_logged_and_never_read_again(tmp_path):
    policy = LossDrop(warmup_steps=5, window_updates=8, max_epochs={"code": 0.25})
    small_run.run(tmp_path, UNTIL_STEP, lease_epoch=1, policy=policy)
    loader = small_run.small_loader(tmp_path / "caches")
    windows = loader._order.num_sequences("digest of code")
    by_step = {row.step: row for row in rows(table_of(tmp_path)) if row.source == "code"}
    assert sum(row.num_sequences for row in by_step.values()) == windows // 4
    (event,) = (event for event in read_events(str(tmp_path / "events" / "1.jsonl")) if event["event"] == "exhausted")
    assert event["source"] == "code"
    assert by_step[event["step"]].num_sequences > 0
    assert max(by_step) == event["step"]


def test_draws_that_do_not_divide_the_batch_are_refused(tmp_path):
    with expect_error(ValueError):
        small_run.run(tmp_path, lease_epoch=1, policy=OdmPaper(alpha=0.9, sequences_per_draw=3))
    with expect_error(ValueError):
        small_run.run(tmp_path, lease_epoch=1, policy=LossDrop(max_epochs={"cod": 1.0}))
