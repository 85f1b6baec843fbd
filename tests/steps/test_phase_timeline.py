"""Phases: what changes, which changes must be meant, and exact token arithmetic."""

import dataclasses
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.data.mixing.loss_drop import LossDrop
from runtime.data.mixing.policies import MixingPolicy, Static
from runtime.data.mixture import MixtureSchedule
from runtime.model.config import LLAMA2_ROPE, LLAMA3_ROPE, Rope
from runtime.model.llama.config import LlamaConfig
from runtime.optim.ema import Ema
from runtime.optim.optimizer import Muon
from runtime.optim.schedule import Constant, Linear, Schedule
from runtime.optim.skip_rule import SkipRule
from steps.phase_timeline import changes, check_acknowledged, place_phases
from tests.catalogue import expect_error


@dataclasses.dataclass(frozen=True)
class Settings:
    until_step: int = 100
    restore: str = "everything"
    skip_batches: int = 0
    model: LlamaConfig = dataclasses.field(default_factory=lambda: LlamaConfig(64, 16, 32, 1, 2, 1, 8, 32))
    rope: Rope = LLAMA2_ROPE
    sequence_length: int = 32
    global_batch_size: int = 8
    learning_rate: Schedule = dataclasses.field(default_factory=lambda: Constant(1e-3))
    optimizer: Muon | None = None
    weight_decay: float = 0.05
    b1: float = 0.9
    b2: float = 0.95
    eps: float = 1e-8
    max_norm: float = 1.0
    averages: tuple[Ema, ...] = ()
    z_loss: float = 0.0
    mixture: MixtureSchedule = dataclasses.field(default_factory=lambda: MixtureSchedule.constant({"web": 1.0}))
    mixing: MixingPolicy = dataclasses.field(default_factory=Static)
    caches: Mapping[str, object] = dataclasses.field(default_factory=lambda: {"web": "a cache"})
    compute_dtype: str = "bfloat16"
    reduce_dtype: str = "float32"
    skip: SkipRule | None = None
    seed: int = 0
    acknowledge: tuple[str, ...] = ()


BEFORE = Settings()


def then(**settings) -> Settings:
    return dataclasses.replace(BEFORE, **{"until_step": 200} | settings)


def test_a_rate_that_meets_the_one_before_needs_no_acknowledgement():
    check_acknowledged(BEFORE, then(learning_rate=Linear(1e-3, 1e-4, start_step=100, decay_steps=100)))


def test_an_unacknowledged_jump_of_the_learning_rate_is_an_error():
    with expect_error(ValueError) as caught:
        check_acknowledged(BEFORE, then(learning_rate=Constant(1.7e-3)))
    assert caught.value.cure == {"acknowledge": '["learning_rate"]'}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weight_decay", 0.1),
        ("b1", 0.8),
        ("b2", 0.99),
        ("eps", 1e-6),
        ("max_norm", 0.5),
        ("rope", LLAMA3_ROPE),
        ("sequence_length", 16),
        ("seed", 1),
        ("restore", "weights"),
        ("mixing", LossDrop()),
        ("restore", "everything_but_optimizer"),
        ("compute_dtype", "float32"),
        ("reduce_dtype", "bfloat16"),
        ("optimizer", Muon()),
    ],
)
def test_each_abrupt_change_is_refused_until_it_is_acknowledged(field, value):
    with expect_error(ValueError):
        check_acknowledged(BEFORE, then(**{field: value}))
    check_acknowledged(BEFORE, then(**{field: value, "acknowledge": (field,)}))


def test_gradual_changes_need_no_acknowledgement():
    after = then(global_batch_size=24, averages=(Ema(0.995),), z_loss=1e-4)
    check_acknowledged(BEFORE, after)
    assert [change.field for change in changes(BEFORE, after)] == ["global_batch_size", "averages", "z_loss"]


def test_averages_need_no_acknowledgement():
    field, value = "averages", (Ema(0.99), Ema(0.999, "slow"))
    after = then(**{field: value})
    check_acknowledged(BEFORE, after)
    (change,) = changes(BEFORE, after)
    assert (change.field, change.before, change.after) == (field, getattr(BEFORE, field), value)


def test_another_cache_is_an_error_until_it_is_acknowledged():
    after = then(caches={"web": "another cache"})
    with expect_error(ValueError) as caught:
        check_acknowledged(BEFORE, after)
    assert caught.value.cure == {"acknowledge": '["caches"]'}
    check_acknowledged(BEFORE, dataclasses.replace(after, acknowledge=("caches",)))


def test_a_source_that_the_mixture_adds_or_drops_changes_no_cache():
    both = MixtureSchedule.constant({"web": 1.0, "code": 1.0})
    after = then(mixture=both, caches={"web": "a cache", "code": "its cache"})
    assert [change.field for change in changes(BEFORE, after)] == ["mixture"]
    assert [change.field for change in changes(after, then())] == ["mixture"]


def test_restore_is_no_change_of_the_next_phase():
    before = dataclasses.replace(BEFORE, restore="weights")
    assert changes(before, then()) == ()


def test_skipped_batches_are_an_error_until_acknowledged_and_no_change_of_the_next_phase():
    with expect_error(ValueError) as e:
        check_acknowledged(BEFORE, then(skip_batches=300))
    assert e.value.cure == {"acknowledge": '["skip_batches"]'}
    left_out = then(skip_batches=300, acknowledge=("skip_batches",))
    check_acknowledged(BEFORE, left_out)
    (change,) = changes(BEFORE, left_out)
    assert (change.field, change.before, change.after, change.is_abrupt) == ("skip_batches", 0, 300, True)
    assert changes(left_out, then()) == ()
    (again,) = changes(left_out, then(skip_batches=300))
    assert (again.before, again.after) == (0, 300), "as many once more"


def test_skipped_batches_are_no_tokens_of_the_run():
    phases = {"first": BEFORE, "second": then(skip_batches=300)}
    run_phase = place_phases(phases, {"second": ("first", 100)})["second"]
    assert (run_phase.begin_tokens, run_phase.end_tokens) == (100 * 8 * 32, 200 * 8 * 32)


def test_a_model_of_another_shape_and_an_end_before_the_beginning_are_refused():
    with expect_error(ValueError):
        check_acknowledged(BEFORE, then(model=dataclasses.replace(BEFORE.model, hidden_size=32)))
    with expect_error(ValueError):
        check_acknowledged(BEFORE, then(until_step=50))


def test_an_average_the_wrong_way_round_is_refused():
    with expect_error(ValueError):
        Ema(0.005)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 10**4)), min_size=1, max_size=5), st.data())
def test_tokens_agree_with_counting_every_step(drawn, data):
    phases, starts, end, expected = {}, {}, 0, {0: 0}
    for index, (steps, batch) in enumerate(drawn):
        if index:
            starts[str(index)] = (str(index - 1), end)
        # Where a phase ends, the one before it may go on: those updates are another branch's.
        phases[str(index)] = then(until_step=end + steps + data.draw(st.integers(0, 9)), global_batch_size=batch)
        for step in range(end + 1, end + steps + 1):
            expected[step] = expected[step - 1] + batch * 32
        end += steps
    run_phases = place_phases(phases, starts)
    for index, run_phase in enumerate(run_phases.values()):
        stop = run_phases[str(index + 1)].begin_step if str(index + 1) in run_phases else end
        assert all(run_phase.tokens_at(step) == expected[step] for step in range(run_phase.begin_step, stop + 1))
        assert run_phase.end_tokens == run_phase.tokens_at(run_phase.settings.until_step)


def test_phases_are_placed_by_their_predecessors():
    decay = Linear(1e-3, 1e-4, start_step=100, decay_steps=100)
    phases = {
        "first": BEFORE,
        "second": then(until_step=200, global_batch_size=24, learning_rate=decay),
        "branch": then(until_step=170, global_batch_size=1),
    }
    run_phases = place_phases(phases, {"second": ("first", 100), "branch": ("second", 150)})
    assert list(run_phases) == list(phases)
    assert (run_phases["second"].begin_tokens, run_phases["second"].end_tokens) == (
        100 * 8 * 32,
        (100 * 8 + 100 * 24) * 32,
    )
    assert run_phases["branch"].begin_tokens == (100 * 8 + 50 * 24) * 32
    assert (run_phases["branch"].parent, run_phases["branch"].steps, run_phases["branch"].end_tokens) == (
        "second",
        20,
        64_640,
    )
    assert run_phases["second"].rates == (1e-3, decay(199))


def test_tokens_are_exact_where_floats_and_32_bits_are_not():
    run_phase = place_phases({"long": then(until_step=2**50 + 1, global_batch_size=2**20 + 1)}, {})["long"]
    assert run_phase.end_tokens == (2**50 + 1) * (2**20 + 1) * 32
