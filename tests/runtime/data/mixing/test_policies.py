"""The mixing policies agree with the paper, with the released code and with known answers; their defects are tests too.

Each simulation is of a policy alone, with losses whose right answer is known.
"""

import bisect
import copy
import dataclasses
import decimal
import itertools
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from runtime.data.allocation import allocate, drawn
from runtime.data.mixing.loss_drop import LEAST_UPDATES, LossDrop, drop_per_token
from runtime.data.mixing.odm import OdmPaper, OdmReleased, exploration
from runtime.data.mixing.policies import MixingPolicy, Static
from runtime.data.mixing.policy import Memory, Seen, Sources, Turn, exp, log
from runtime.data.mixture import WHOLE, apportioned
from tests.catalogue import expect_error

LEARNING: tuple[MixingPolicy, ...] = (
    OdmPaper(alpha=0.9, warmup_steps=20),
    OdmReleased(alpha=0.5, warmup_steps=20),
    LossDrop(warmup_steps=20),
)


def named(count: int) -> list[str]:
    return [f"source-{index:02d}" for index in range(count)]


def even(count: int) -> Sources:
    return Sources(apportioned(dict.fromkeys(named(count), 1.0)), {})


def turn(number: int, shares: Mapping[str, int], losses: Mapping[str, float], counts: Mapping[str, int]) -> Turn:
    """Return an update of rows of 100 targets."""
    seen = {
        name: Seen(counts[name], 100 * counts[name], 100 * counts[name] * losses[name], math.nan) for name in counts
    }
    return Turn(number, shares, seen)


def simulated(
    policy: MixingPolicy,
    sources: Sources,
    loss: Callable[[str, int, Mapping[str, int]], float],
    num_turns: int,
    *,
    batch: int = 64,
    seed: int = 0,
) -> list[dict[str, int]]:
    """Return the shares of each turn; `loss(name, turn, drawn so far)` is the loss of a draw. No lag."""
    memory, carry, history = policy.begin(), {}, []
    consumed = dict.fromkeys(sources.prior, 0)
    for number in range(1, num_turns + 1):
        shares = policy.shares(memory, turn=number, step=number - 1, sources=sources)
        if policy.sequences_per_draw:
            counts = drawn(shares, seed=seed, step=number, num_draws=batch)
        else:
            counts, carry = allocate(shares, carry, batch)
        losses = {name: loss(name, number, consumed) for name, count in counts.items() if count}
        memory = policy.learned(memory, turn(number, shares, losses, {n: c for n, c in counts.items() if c}))
        for name, count in counts.items():
            consumed[name] += count
        history.append(shares)
    return history


# 1. The golden trace


def test_the_paper_s_algorithm_gives_the_golden_trace():
    """K = 3, alpha = 0.9, one draw a turn; computed by hand from Algorithm 1."""
    policy, sources = OdmPaper(alpha=0.9, lag_steps=1), even(3)
    draws, losses = (0, 1, 2, 0, 0, 1, 2, 2), (3, 2, 1, 2.9, 2.8, 1.9, 0.9, 0.8)
    memory, history = policy.begin(), []
    for number, (index, loss) in enumerate(zip(draws, losses, strict=True), start=1):
        shares = policy.shares(memory, turn=number, step=number - 1, sources=sources)
        history.append([shares[name] / WHOLE for name in named(3)])
        name = named(3)[index]
        memory = policy.learned(memory, turn(number, shares, {name: loss}, {name: 1}))
    for share in (share for shares in history[:3] for share in shares):
        assert share == pytest.approx(1 / 3, abs=1e-15)
    assert exploration(3, 4) == pytest.approx(0.302573997653, abs=1e-12)
    assert history[3] == pytest.approx([0.336455289122, 0.333231057945, 0.330313652933], abs=1e-12)
    assert history[7] == pytest.approx([0.361005898511, 0.326388303432, 0.312605798057], abs=1e-12)
    rewards = [memory["rewards"][name] for name in named(3)]
    assert rewards == pytest.approx([2.305743563889, 1.132224172118, 0.760351552482], abs=1e-12)


# 2. Shares are whole numbers


@given(
    rewards=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60),
    number=st.integers(1, 10**6),
    index=st.integers(0, len(LEARNING) - 1),
)
def test_shares_sum_to_the_whole_and_none_is_below_the_floor(rewards, number, index):
    policy, count = LEARNING[index], len(rewards)
    memory = policy.begin() | {"rewards": {n: abs(r) for n, r in zip(named(count), rewards, strict=True)}}
    shares = policy.shares(memory, turn=20 + number, step=number, sources=even(count))
    assert sum(shares.values()) == WHOLE
    if policy.kind != "loss_drop":
        assert min(shares.values()) >= min(int(exploration(count, number) * WHOLE), WHOLE // count) or not any(rewards)


@settings(max_examples=10)
@given(rewards=st.lists(st.floats(0, 1e9), min_size=22, max_size=22))
def test_the_paper_s_shares_are_exactly_uniform_for_the_first_k_ln_k_turns(rewards):
    assert 68 < 22 * log(22) < 69
    memory, sources = {"rewards": dict(zip(named(22), rewards, strict=True))}, even(22)
    uniform = apportioned(dict.fromkeys(named(22), 1.0))
    for number in range(1, 69):
        assert OdmPaper(alpha=0.9).shares(memory, turn=number, step=number - 1, sources=sources) == uniform
    learned = {"rewards": {name: float(index) for index, name in enumerate(named(22))}}
    assert OdmPaper(alpha=0.9).shares(learned, turn=69, step=68, sources=sources) != uniform


@given(weights=st.lists(st.floats(0, 1e300), min_size=1, max_size=50), total=st.integers(0, 2 * WHOLE))
def test_apportioning_is_exact_to_the_last_unit(weights, total):
    if not any(weights):
        return
    shares = apportioned(dict(zip(named(len(weights)), weights, strict=True)), total)
    assert sum(shares.values()) == total
    exact = [int(w) if w.is_integer() else w for w in weights]
    for share, weight in zip(shares.values(), exact, strict=True):
        assert abs(share - total * (weight / math.fsum(weights))) <= 1 + 1e-9 * total


# 3. Regret


def test_the_paper_s_algorithm_never_learns_the_best_of_ten_arms():
    """Arms pay with probability 0.5, one of them 0.7. Drawing uniformly loses 0.18 a turn, as does the algorithm."""
    num_turns = 10_000
    random = np.random.default_rng(0)
    payoffs = (random.random((num_turns, 10)) < np.array([0.7] + [0.5] * 9)).tolist()
    words = random.integers(0, WHOLE, num_turns).tolist()  # `drawn` is slow for one draw at a time
    policy, names, sources, lost = OdmPaper(alpha=0.9, lag_steps=1), named(10), even(10), 0.0
    memory = policy.begin()
    for number in range(1, num_turns + 1):
        shares = policy.shares(memory, turn=number, step=number - 1, sources=sources)
        lost += 0.2 * (1 - shares[names[0]] / WHOLE)
        arm = bisect.bisect_right(list(itertools.accumulate(shares.values())), words[number - 1])
        assert list(shares) == names
        seen = {names[arm]: Seen(1, 1, float(payoffs[number - 1][arm]), math.nan)}
        memory = policy.learned(memory, Turn(number, shares, seen))
    assert lost == pytest.approx(0.18 * num_turns, rel=0.02)


# 4. Constant losses

LOSSES_22 = dict(zip(named(22), np.linspace(1.0, 3.2, 22).tolist(), strict=True))


def settled(policy: MixingPolicy, at: int, num_turns: int = 400) -> dict[str, int]:
    """Return the shares at turn `at` under constant losses, every source drawn in every turn.

    Rewards of more than 400 turns ago are gone: 0.9**400 of a reward is below its last bit.
    """
    memory, shares = policy.begin(), {}
    for number in range(at - num_turns, at + 1):
        shares = policy.shares(memory, turn=number, step=number, sources=even(22))
        memory = policy.learned(memory, turn(number, shares, LOSSES_22, dict.fromkeys(LOSSES_22, 1)))
    return shares


def test_under_constant_losses_the_paper_s_shares_go_to_uniform():
    shares = settled(OdmPaper(alpha=0.9, lag_steps=1), 100_000)
    assert 1.05 < max(shares.values()) / min(shares.values()) < 1.10


def test_under_constant_losses_the_released_shares_are_a_softmax_of_the_losses():
    shares = settled(OdmReleased(alpha=0.5, warmup_steps=0, lag_steps=1), 100_000)
    floor = exploration(22, 100_000)
    assert max(shares.values()) / min(shares.values()) == pytest.approx(8.30, abs=0.005)
    total = sum(math.exp(loss) for loss in LOSSES_22.values())
    for name, loss in LOSSES_22.items():
        assert shares[name] / WHOLE == pytest.approx((1 - 22 * floor) * math.exp(loss) / total + floor, abs=1e-6)


# 5. A source of noise


def learning_or_noise(name: str, number: int, consumed: Mapping[str, int]) -> float:
    """Return noise around 8 nats for the first source, and a power law down to 2 for the others."""
    if name == named(1)[0]:
        return 8.0 + math.sin(12.9898 * number) * 0.5
    return 2.0 + 3.0 * (1 + consumed[name] / 2_000) ** -0.3


def test_noise_takes_over_the_released_policy_and_not_loss_drop():
    noise = named(1)[0]
    released = simulated(OdmReleased(alpha=0.5, warmup_steps=50), even(5), learning_or_noise, 1_500)
    assert released[-1][noise] / WHOLE > 0.85
    ours = simulated(LossDrop(warmup_steps=50, max_ratio=8.0), even(5), learning_or_noise, 1_500)
    prior = even(5).prior[noise]
    assert all(shares[noise] < 2 * prior for shares in ours)
    assert ours[-1][noise] < prior


# 6. Known learning curves


def test_loss_drop_ranks_power_laws_in_the_greedy_order():
    """Losses 1 + b (1 + n / 1,000) ** -a: the greedy order is by how fast each falls where it stands."""
    laws = {name: (0.2 + 0.15 * index, 4.0 - 0.6 * index) for index, name in enumerate(named(5))}

    def loss(name: str, number: int, consumed: Mapping[str, int]) -> float:
        exponent, scale = laws[name]
        return 1 + scale * (1 + consumed[name] / 1_000) ** -exponent

    def slope(name: str, drawn_so_far: float) -> float:
        exponent, scale = laws[name]
        return exponent * scale / 1_000 * (1 + drawn_so_far / 1_000) ** (-exponent - 1)

    policy, window = LossDrop(warmup_steps=200, max_ratio=16.0), 64
    history = simulated(policy, even(5), loss, 201, batch=50)
    # The slopes in the middle of the last window, when each source had given ten sequences an update.
    middle = 10 * (200 - window / 2)
    greedy = sorted(laws, key=lambda name: slope(name, middle))
    assert sorted(laws, key=lambda name: history[-1][name]) == greedy
    assert len(set(history[-1].values())) > 2


def test_following_the_drop_lowers_the_mean_loss_faster_than_the_written_mixture():
    """Two sources are learned out, one is not: equal tokens, lower mean."""

    def loss(name: str, number: int, consumed: Mapping[str, int]) -> float:
        scale = {named(3)[0]: 5.0}.get(name, 0.0)
        return 1 + scale * (1 + consumed[name] / 5_000) ** -0.5

    def mean_after(policy: MixingPolicy) -> float:
        shares = simulated(policy, even(3), loss, 1_000)
        total = {name: sum(at[name] for at in shares) / WHOLE * 64 for name in named(3)}
        return sum(loss(name, 0, total) for name in total) / 3

    assert mean_after(LossDrop(warmup_steps=50)) < mean_after(Static()) - 0.02


# 7. Spikes


class Spiked(NamedTuple):
    """Shares and memory before and after an update with a spike of the first source."""

    before: dict[str, int]
    after: dict[str, int]
    memory_before: Memory
    memory_after: Memory


def spiked(policy: MixingPolicy, loss_of_spike: float) -> Spiked:
    memory, shares = policy.begin(), {}
    falling = {name: 3.0 + index for index, name in enumerate(named(5))}
    for number in range(1, 201):
        shares = policy.shares(memory, turn=number, step=number, sources=even(5))
        losses = {name: loss - 0.002 * number * (5 - index) for index, (name, loss) in enumerate(falling.items())}
        memory = policy.learned(memory, turn(number, shares, losses, dict.fromkeys(losses, 4)))
    before = policy.shares(memory, turn=201, step=201, sources=even(5))
    known = copy.deepcopy(memory)
    learned = policy.learned(memory, turn(201, before, {named(1)[0]: loss_of_spike}, {named(1)[0]: 4}))
    assert memory == known, "a policy does not change the given memory"
    return Spiked(before, policy.shares(learned, turn=201, step=201, sources=even(5)), known, learned)


def test_one_spike_changes_no_share_of_loss_drop_twofold_and_takes_over_the_released_policy():
    before, after, *_ = spiked(LossDrop(max_ratio=16.0), 14.0)
    assert max(before.values()) > 1.3 * min(before.values())
    assert all(0.5 < after[name] / before[name] < 2 for name in before)
    taken_over = spiked(OdmReleased(alpha=0.5, warmup_steps=50), 14.0).after
    assert taken_over[named(1)[0]] / WHOLE > 0.8


@pytest.mark.parametrize("policy", LEARNING, ids=lambda policy: policy.kind)
@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_teaches_nothing(policy, loss):
    found = spiked(policy, loss)
    assert found.before == found.after
    assert found.memory_before == found.memory_after
    assert spiked(policy, 2.5).memory_after != found.memory_after


# 8. Names and limits


@pytest.mark.parametrize("policy", LEARNING, ids=lambda policy: policy.kind)
def test_the_written_mixture_is_drawn_through_the_warm_up_and_no_longer(policy):
    names = named(3)
    sources = even(3)._replace(prior=apportioned(dict(zip(names, (6.0, 3.0, 1.0), strict=True))))
    memory = policy.begin()
    for number in range(1, 31):
        losses = {name: 5.0 - 0.1 * number * index for index, name in enumerate(names)}
        memory = policy.learned(memory, turn(number, sources.prior, losses, dict.fromkeys(names, 4)))
    of_turn = {number: policy.shares(memory, turn=number, step=number - 1, sources=sources) for number in (1, 20, 21)}
    assert of_turn[1] == of_turn[20] == sources.prior
    assert of_turn[21] != sources.prior
    if isinstance(policy, OdmPaper):  # explores less from turn to turn, counted from the end of the warm-up
        at_once = dataclasses.replace(policy, warmup_steps=0)
        later = [policy.shares(memory, turn=20 + turns, step=0, sources=sources) for turns in (1, 9, 400)]
        assert later == [at_once.shares(memory, turn=turns, step=0, sources=sources) for turns in (1, 9, 400)]


@pytest.mark.parametrize("max_ratio", [1.0, 2.0, 5.0])
@pytest.mark.parametrize("falls", [("source-00",), tuple(named(12)[1:])])
def test_no_share_of_loss_drop_leaves_its_factor_of_the_written_share(max_ratio, falls):
    """Shares sum to one, so a gain of one source also lowers the others, beside their own factors."""
    names = named(12)
    prior = apportioned({name: 0.001 if name == "source-00" else 1.0 for name in names})
    policy = LossDrop(warmup_steps=0, temperature=1_000.0, max_ratio=max_ratio)
    seen = {
        name: [[100 * number, 5.0 - (0.1 * number if name in falls else 0.0)] for number in range(1, 33)]
        for name in names
    }
    # Rewards go by the written share; one so small has to fall fast to be ahead.
    seen["source-00"] = [[at, 5.0 + 1_000 * (loss - 5.0)] for at, loss in seen["source-00"]]
    memory = {"seen": seen, "tokens": {}}
    found = policy.shares(memory, turn=1, step=0, sources=even(12)._replace(prior=prior))
    ratios = [found[name] / prior[name] for name in names]
    assert max(ratios) <= max_ratio * (1 + 1e-9) and min(ratios) >= (1 - 1e-9) / max_ratio
    assert max(ratios) / min(ratios) == pytest.approx(max_ratio)


@pytest.mark.parametrize("policy", [*LEARNING, Static()], ids=lambda policy: policy.kind)
def test_permuting_the_names_of_the_sources_permutes_the_shares(policy):
    new = dict(zip(named(5), [named(5)[index] for index in (3, 0, 4, 1, 2)], strict=True))
    prior = {name: index + 1.0 for index, name in enumerate(named(5))}
    shares = []
    for names in ({name: name for name in new}, new):
        sources = Sources(apportioned({names[name]: weight for name, weight in prior.items()}), {})
        memory, last = policy.begin(), {}
        for number in range(1, 121):
            last = policy.shares(memory, turn=number, step=number, sources=sources)
            losses = {names[name]: 5 - 0.003 * number * weight for name, weight in prior.items()}
            memory = policy.learned(memory, turn(number, last, losses, dict.fromkeys(losses, 2)))
        shares.append({name: last[names[name]] for name in new})
    for name in new:  # a unit of 2**-60 that is left over goes to the first by name
        assert abs(shares[0][name] - shares[1][name]) <= 2**16


def test_a_source_at_its_limit_of_epochs_gives_its_share_to_the_others():
    policy, first = LossDrop(warmup_steps=0), named(1)[0]
    sources = even(4)._replace(limits={first: 1})
    at_limit = sources._replace(limits={first: 0})
    assert set(policy.shares(policy.begin(), turn=1, step=0, sources=sources)) == set(named(4))
    rest = policy.shares(policy.begin(), turn=1, step=0, sources=at_limit)
    assert rest == apportioned(dict.fromkeys(named(4)[1:], 1.0))
    with expect_error(ValueError):
        policy.shares(policy.begin(), turn=1, step=7, sources=Sources({first: WHOLE}, {first: 0}))


@given(
    weights=st.lists(st.floats(0.01, 10), min_size=2, max_size=8),
    limits=st.lists(st.integers(0, 30), min_size=2, max_size=8),
    batches=st.lists(st.integers(1, 20), max_size=10),
)
def test_a_batch_is_full_and_within_the_limits_of_its_sources(weights, limits, batches):
    names = named(len(weights))
    shares = apportioned(dict(zip(names, weights, strict=True)))
    left = dict(zip(names[:-1], limits, strict=False))  # the last one has no limit
    carry: dict[str, int] = {}
    for size in batches:
        counts, carry = allocate(shares, carry, size, left)
        assert sum(counts.values()) == size and min(counts.values()) >= 0
        for name in left:
            left[name] -= counts.get(name, 0)
            assert left[name] >= 0


def test_a_batch_that_no_source_can_fill_is_refused():
    with expect_error(ValueError):
        allocate({"a": WHOLE // 2, "b": WHOLE // 2}, {}, 8, {"a": 2, "b": 3})


# 10. Cold start


@pytest.mark.parametrize(
    "policy",
    [OdmPaper(alpha=0.9, warmup_steps=20), LossDrop(warmup_steps=20)],
    ids=lambda policy: policy.kind,
)
def test_every_source_has_a_finite_reward_after_the_warm_up(policy):
    """The released policy learns nothing from its warm-up, see below."""
    memory, sources = policy.begin(), even(7)
    for number in range(1, policy.warmup_steps + 1):
        shares = policy.shares(memory, turn=number, step=number - 1, sources=sources)
        counts = drawn(shares, seed=0, step=number, num_draws=16)
        losses = {name: 6 / (1 + number / 100) + 0.1 * index for index, name in enumerate(counts)}
        memory = policy.learned(memory, turn(number, shares, losses, {n: c for n, c in counts.items() if c}))
    if isinstance(policy, LossDrop):
        rewards = {name: drop_per_token(window) for name, window in memory["seen"].items()}
        assert all(len(window) >= LEAST_UPDATES for window in memory["seen"].values())
    else:
        rewards = memory["rewards"]
    assert set(rewards) == set(named(7))
    assert all(math.isfinite(reward) and reward > 0 for reward in rewards.values())


@pytest.mark.parametrize("policy", LEARNING, ids=lambda policy: policy.kind)
def test_every_source_has_a_positive_share_after_the_warm_up(policy):
    history = simulated(policy, even(7), lambda name, number, consumed: 6 / (1 + number / 100), 24, batch=16)
    assert all(shares == even(7).prior for shares in history[:20])
    assert all(min(shares.values()) > 0 and len(shares) == 7 for shares in history)


def test_the_released_policy_knows_nothing_of_most_sources_after_its_warm_up():
    """It keeps nothing of the warm-up: the next turn leaves every undrawn source at the floor."""
    history = simulated(OdmReleased(alpha=0.5, warmup_steps=200), even(22), lambda *_: 3.0, 202, batch=8)
    at_floor = [share for share in history[201].values() if share <= exploration(22, 201) * WHOLE + 1]
    assert history[200] == even(22).prior
    assert len(at_floor) >= 22 - 8


def test_loss_drop_keeps_the_written_share_of_a_source_seen_in_few_updates():
    policy, sources = LossDrop(warmup_steps=0), even(3)
    memory = policy.begin()
    for number in range(1, LEAST_UPDATES):
        shares = policy.shares(memory, turn=number, step=number, sources=sources)
        memory = policy.learned(
            memory, turn(number, shares, dict.fromkeys(shares, 3 - 0.1 * number), dict.fromkeys(shares, 1))
        )
        assert shares == sources.prior


# 9 and, over the logs of whole runs, 11 are in test_killed.py; 12 is benchmarks/mixer_overhead.py.

# 11. Draws


def test_draws_agree_with_the_shares():
    shares = apportioned({name: 1.0 + index * index for index, name in enumerate(named(12))})
    counts = dict.fromkeys(shares, 0)
    for step in range(500):
        for name, count in drawn(shares, seed=3, step=step, num_draws=64).items():
            counts[name] += count
    expected = {name: share / WHOLE * 500 * 64 for name, share in shares.items()}
    chi_square = sum((counts[name] - expected[name]) ** 2 / expected[name] for name in shares)
    assert 1.6 < chi_square < 40.0  # of 11 degrees of freedom: p = 0.9995 and 4e-5


def test_a_draw_depends_on_seed_step_and_slot_alone():
    shares = apportioned({"a": 1.0, "b": 2.0})
    first = drawn(shares, seed=0, step=5, num_draws=40)
    assert first == drawn(dict(reversed(shares.items())), seed=0, step=5, num_draws=40)
    grown = [drawn(shares, seed=0, step=5, num_draws=count) for count in range(41)]
    for fewer, more in itertools.pairwise(grown):
        assert sum(abs(more[name] - fewer[name]) for name in shares) == 1
    assert any(first != drawn(shares, seed=seed, step=step, num_draws=40) for seed, step in ((1, 5), (0, 6)))


# Values and errors


def test_every_policy_reads_back_from_the_json_of_a_config():
    adapter = TypeAdapter(MixingPolicy)
    policies = [*LEARNING, Static(), LossDrop(max_epochs={"math": 4.0})]
    assert {type(policy) for policy in policies} == set(get_args(MixingPolicy))
    for policy in policies:
        assert adapter.validate_python(dataclasses.asdict(policy)) == policy


def test_the_exponential_is_rounded_once():
    assert exp(0.0) == 1.0 and exp(-1e9) == 0.0 and exp(1e9) == math.inf and math.isnan(exp(math.nan))
    digits = decimal.Context(prec=60)
    random = np.random.default_rng(0)
    near_nothing = random.standard_normal(200) * 2.0 ** -random.integers(0, 80, 200)
    for value in (*random.uniform(-700, 709, 600), *random.uniform(-6, 0, 600), *near_nothing, 1e-300, -700.0, 709.0):
        assert exp(float(value)) == float(digits.exp(decimal.Decimal(float(value))))


def test_the_exponential_has_the_same_bits_on_every_machine():
    assert [exp(value).hex() for value in (1.0, -0.5, 3.25, -20.125, 0.1, 700.0)] == [
        "0x1.5bf0a8b145769p+1",
        "0x1.368b2fc6f960ap-1",
        "0x1.9ca53b781114bp+4",
        "0x1.f3fe0cb68b20cp-30",
        "0x1.1aec7b35a00d4p+0",
        "0x1.d945df4f8ec8ep+1009",
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda: OdmPaper(alpha=1.0),
        lambda: OdmReleased(alpha=0.5, warmup_steps=-1),
        lambda: OdmPaper(alpha=0.5, sequences_per_draw=0),
        lambda: LossDrop(lag_steps=0),
        lambda: LossDrop(max_ratio=0.5),
        lambda: LossDrop(max_epochs={"math": 0.0}),
        lambda: LossDrop(window_updates=4),
        lambda: LossDrop(temperature=math.nan),
    ],
)
def test_impossible_settings_are_refused(make):
    with expect_error(ValueError):
        make()
