"""The step: a language model learns, the loss is the definition's, and a recipe's numbers never recompile it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from runtime.model.computation import whole
from runtime.model.config import LLAMA2_ROPE, LLAMA3_ROPE, Rope
from runtime.model.initialization import Initialization
from runtime.model.llama.config import LlamaConfig
from runtime.model.model import logits
from runtime.model.rotary import inverse_frequencies
from runtime.optim.ema import Ema
from runtime.optim.optimizer import AdamW
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from runtime.platform.remat import check_remat
from runtime.training.eval_step import build_eval_step
from runtime.training.objective import check_batch, next_tokens
from runtime.training.state import TrainState, initial_state, with_averages
from runtime.training.train_step import (
    NUMBERS,
    Hyperparameters,
    ProgramOptions,
    TrainStep,
    _train_program,
    build_train_step,
    train_program,
)
from tests.catalogue import expect_error
from tests.runtime.training.plain_step import plain_step

CONFIG = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    max_position_embeddings=32,
)
NUMBERS_ = Hyperparameters(
    learning_rate=1e-2, weight_decay=0.1, b1=0.9, b2=0.95, eps=1e-8, max_norm=1.0, z_loss=1e-3, average_decays=(0.995,)
)


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return make_mesh(MeshShape(), jax.devices()[:1])


def build(mesh: Mesh, rope: Rope = LLAMA3_ROPE, num_microbatches: int = 1) -> TrainStep:
    return plain_step(CONFIG, mesh, rope=rope, num_microbatches=num_microbatches, donate=False)


def batch(seed: int = 0, size: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, CONFIG.vocab_size, (size, 32), dtype=np.int32)
    return tokens, np.sort(rng.integers(0, 3, tokens.shape, dtype=np.int32), axis=1)


def state_of(mesh: Mesh, *averages: str) -> TrainState:
    return initial_state(CONFIG, 0, mesh, averages=averages or ("averaged",))


def test_labels_are_the_next_tokens_of_the_same_document() -> None:
    tokens = np.array([[5, 6, 7, 8, 9]], np.int32)
    labels, has_target = next_tokens(tokens, np.array([[0, 0, 1, 1, 1]], np.int32))
    np.testing.assert_array_equal(has_target, [[True, False, True, True, False]])
    np.testing.assert_array_equal(labels[has_target], [6, 8, 9])


def test_the_loss_is_the_mean_over_the_predicted_positions_of_the_logits(mesh: Mesh) -> None:
    state, (tokens, segment_ids) = state_of(mesh), batch()
    inputs = jnp.asarray(tokens), jnp.asarray(segment_ids), inverse_frequencies(LLAMA3_ROPE, CONFIG.head_dim)
    logits_of = jax.jit(lambda params: logits(CONFIG.build(), params, *inputs, computation=whole("float32")))
    scores = np.asarray(logits_of(state.params), np.float64)
    normalizer = np.log(np.exp(scores).sum(axis=-1))
    has_target = segment_ids[:, :-1] == segment_ids[:, 1:]
    chosen = np.take_along_axis(scores[:, :-1], tokens[:, 1:, None], axis=-1)[..., 0]
    losses = (normalizer[:, :-1] - chosen)[has_target]
    _, metrics = build(mesh)(state, tokens, segment_ids, NUMBERS_)
    assert metrics.num_targets == has_target.sum()
    assert float(metrics.loss) == pytest.approx(losses.mean(), rel=1e-5)
    row_losses = [row[kept].sum() for row, kept in zip(normalizer[:, :-1] - chosen, has_target, strict=True)]
    np.testing.assert_allclose(metrics.row_loss, row_losses, rtol=1e-5)
    row_normalizers = [row[kept].sum() for row, kept in zip(normalizer[:, :-1], has_target, strict=True)]
    np.testing.assert_allclose(metrics.row_log_normalizer, row_normalizers, rtol=1e-5)
    np.testing.assert_array_equal(metrics.row_targets, has_target.sum(axis=1))
    expected_z = NUMBERS_.z_loss * np.square(normalizer[:, :-1][has_target]).mean()
    assert float(metrics.z_loss) == pytest.approx(expected_z, rel=1e-5)
    assert float(metrics.mean_log_normalizer) == pytest.approx(normalizer[:, :-1][has_target].mean(), rel=1e-5)

    evaluate = build_eval_step(
        CONFIG, LLAMA3_ROPE, mesh, attention_kernel="chunked", loss_kernel="chunked", compute_dtype="float32"
    )
    evaluated = evaluate(state.params, tokens, segment_ids)
    np.testing.assert_array_equal(evaluated.has_target[:, :-1], has_target)
    np.testing.assert_allclose(np.asarray(evaluated.loss)[:, :-1][has_target], losses, rtol=1e-5)
    assert not np.any(np.asarray(evaluated.loss)[~np.asarray(evaluated.has_target)])


def test_a_bfloat16_step_is_near_float32_and_the_state_stays_float32(mesh: Mesh) -> None:
    state = state_of(mesh)
    steps = [
        plain_step(CONFIG, mesh, compute_dtype=dtype, attention_kernel="chunked", donate=False)
        for dtype in ("bfloat16", "float32")
    ]
    (narrow, of_narrow), (wide, of_wide) = (step(state, *batch(), NUMBERS_) for step in steps)
    assert float(of_narrow.loss) == pytest.approx(float(of_wide.loss), rel=2e-3)
    assert float(of_narrow.loss) != float(of_wide.loss)
    for got, expected in zip(jax.tree.leaves(narrow), jax.tree.leaves(wide), strict=True):
        assert got.dtype == expected.dtype and got.dtype != jnp.bfloat16
    for got, expected in zip(jax.tree.leaves(narrow.optimizer.mu), jax.tree.leaves(wide.optimizer.mu), strict=True):
        assert np.linalg.norm(got - expected) < 0.02 * np.linalg.norm(expected)


def test_a_batch_that_repeats_is_learned(mesh: Mesh) -> None:
    state, step = state_of(mesh), build(mesh)
    losses = []
    for _ in range(30):
        state, metrics = step(state, *batch(), NUMBERS_)
        losses.append(float(metrics.loss))
    assert losses[0] == pytest.approx(np.log(CONFIG.vocab_size), rel=0.05)
    assert losses[-1] < 0.5 * losses[0]
    assert int(state.optimizer.count) == 30


def test_micro_batches_change_rounding_only(mesh: Mesh) -> None:
    results = [build(mesh, num_microbatches=parts)(state_of(mesh), *batch(), NUMBERS_) for parts in (1, 4)]
    for state, metrics in results[1:]:
        for figure, expected in zip(jax.tree.leaves(metrics), jax.tree.leaves(results[0][1]), strict=True):
            np.testing.assert_allclose(figure, expected, rtol=1e-5)
        moments = state.optimizer.mu, results[0][0].optimizer.mu
        for got, expected in zip(*map(jax.tree.leaves, moments), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-7)


def test_no_hyperparameter_and_no_rotary_embedding_recompiles(mesh: Mesh) -> None:
    state = state_of(mesh)
    build(mesh)(state, *batch(), NUMBERS_)
    compiled = sum(program._cache_size() for program in programs_of(mesh))
    for name in NUMBERS:
        build(mesh)(state, *batch(), NUMBERS_._replace(**{name: 0.5}))
    build(mesh)(state, *batch(), NUMBERS_._replace(average_decays=(0.5,)))
    build(mesh, LLAMA2_ROPE)(state, *batch(), NUMBERS_._replace(learning_rate=1))  # type: ignore[arg-type]
    assert sum(program._cache_size() for program in programs_of(mesh)) == compiled


def programs_of(mesh: Mesh) -> list:
    hits = _train_program.cache_info().hits
    step = build(mesh)
    assert _train_program.cache_info().hits == hits + 1
    return [cell.cell_contents for cell in step.__closure__ or () if hasattr(cell.cell_contents, "_cache_size")]


def test_a_rate_of_0_moves_no_weight_and_its_gradient_enters_the_moments(mesh: Mesh) -> None:
    """The first update of a warm-up, as in the public code."""
    state = state_of(mesh)
    after, metrics = build(mesh)(state, *batch(), NUMBERS_._replace(learning_rate=0.0))
    assert all(map(np.array_equal, *map(jax.tree.leaves, (state.params, after.params))))
    assert float(metrics.update_norm) == 0 and float(metrics.grad_norm) > 0
    assert int(after.optimizer.count) == 1
    assert all(np.any(leaf) for leaf in jax.tree.leaves(after.optimizer.mu))


def test_the_rotary_embedding_of_the_phase_is_used(mesh: Mesh) -> None:
    config = dataclasses.replace(CONFIG, initialization=Initialization(factor=0.3))
    state = initial_state(config, 0, mesh)
    losses = set()
    for rope in (LLAMA2_ROPE, LLAMA3_ROPE):
        step = build_eval_step(
            config, rope, mesh, attention_kernel="reference", loss_kernel="reference", compute_dtype="float32"
        )
        losses.add(float(step(state.params, *batch()).loss.sum()))
    assert len(losses) == 2


def test_the_same_step_twice_is_bitwise_equal(mesh: Mesh) -> None:
    first, second = (build(mesh)(state_of(mesh), *batch(), NUMBERS_) for _ in range(2))
    assert all(map(np.array_equal, jax.tree.leaves(first), jax.tree.leaves(second)))


def assert_near(tree: object, expected: object) -> None:
    """Assert equality up to rounding: two programs may be fused differently, and Adam divides by small numbers."""
    for got, wanted in zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5 * np.max(np.abs(wanted)))


def test_the_average_follows_the_weights_from_where_it_starts(mesh: Mesh) -> None:
    state = initial_state(CONFIG, 0, mesh)
    state, _ = build(mesh)(state, *batch(), NUMBERS_._replace(average_decays=()))
    assert state.averages == {}
    started = with_averages(state, ["averaged"])
    after, _ = build(mesh)(started, *batch(), NUMBERS_._replace(average_decays=(0.75,)))
    old, new, average = (tree.embed_tokens for tree in (started.params, after.params, after.averages["averaged"]))
    np.testing.assert_allclose(average, 0.75 * old + 0.25 * new, rtol=1e-6, atol=1e-9)
    assert with_averages(after, []).averages == {}


def test_several_averages_each_follow_by_their_own_decay_and_change_nothing_else(mesh: Mesh) -> None:
    state, alone = state_of(mesh, "slow", "fast"), state_of(mesh, "fast")
    expected = {name: np.asarray(state.params.embed_tokens, np.float64) for name in ("fast", "slow")}
    for seed in range(3):
        state, _ = build(mesh)(state, *batch(seed), NUMBERS_._replace(average_decays=(0.75, 0.995)))
        alone, _ = build(mesh)(alone, *batch(seed), NUMBERS_._replace(average_decays=(0.75,)))
        weights = np.asarray(state.params.embed_tokens, np.float64)
        for name, decay in (("fast", 0.75), ("slow", 0.995)):
            expected[name] = decay * expected[name] + (1 - decay) * weights
    for name, values in expected.items():
        np.testing.assert_allclose(state.averages[name].embed_tokens, values, rtol=1e-5, atol=1e-8)
    assert_near(*((tree.params, tree.optimizer, tree.averages["fast"]) for tree in (state, alone)))


def test_a_decay_for_a_missing_average_is_an_error(mesh: Mesh) -> None:
    with expect_error(ValueError):
        build(mesh)(state_of(mesh), *batch(), NUMBERS_._replace(average_decays=(0.5, 0.9)))


@pytest.mark.parametrize("worst", [np.nan, np.inf])
def test_a_step_that_is_not_finite_is_skipped_without_a_trace(mesh: Mesh, worst: float) -> None:
    state = initial_state(CONFIG, 0, mesh, averages=("averaged",), skip_window_steps=4)
    numbers = NUMBERS_._replace(skip_sigma=6.0, skip_warmup_steps=2)
    first, metrics = build(mesh)(state, *batch(), numbers)
    assert metrics.skip is not None and not metrics.skip.is_skipped and int(first.optimizer.count) == 1
    plain, _ = build(mesh)(state_of(mesh), *batch(), NUMBERS_)
    assert_near(dataclasses.replace(first, history=None), plain)

    second, metrics = build(mesh)(first, *batch(1), numbers._replace(z_loss=worst))
    assert metrics.skip is not None and metrics.skip.is_skipped and int(metrics.skip.num_consecutive) == 1
    assert not np.isfinite(metrics.grad_norm) and float(metrics.update_norm) == 0 and np.isfinite(metrics.param_norm)
    assert int(second.history.num_consecutive) == 1
    history = dataclasses.replace(second.history, num_consecutive=jnp.int32(0))
    second = dataclasses.replace(second, history=history, averages=first.averages)
    assert all(map(np.array_equal, jax.tree.leaves(second), jax.tree.leaves(first)))


def test_an_average_keeps_its_stride_over_a_skipped_step(mesh: Mesh) -> None:
    averages = (Ema(0.75, "fast"), Ema(0.9995, "slow"))
    assert [average.every_steps for average in averages] == [1, 2]
    state = initial_state(CONFIG, 0, mesh, averages=("fast", "slow"), skip_window_steps=4)
    numbers = NUMBERS_._replace(skip_sigma=6.0, skip_warmup_steps=4)
    expected = {average.name: np.asarray(state.params.embed_tokens, np.float64) for average in averages}
    left_out = (3, 4)  # the slow one's turns are the updates after 1, 3 and 5 finished ones
    for step in range(6):
        decays = tuple(average.kept_by(step) for average in averages)
        asked = numbers._replace(average_decays=decays, z_loss=np.nan if step in left_out else numbers.z_loss)
        weights_before = np.asarray(state.params.embed_tokens)
        state, metrics = build(mesh)(state, *batch(step), asked)
        assert metrics.skip is not None and bool(metrics.skip.is_skipped) == (step in left_out)
        weights = np.asarray(state.params.embed_tokens)
        assert np.array_equal(weights, weights_before) == (step in left_out)
        expected["fast"] = 0.75 * expected["fast"] + 0.25 * weights
        if step % 2:
            expected["slow"] = 0.9995**2 * expected["slow"] + (1 - 0.9995**2) * weights
    for name, values in expected.items():
        begin = np.asarray(initial_state(CONFIG, 0, mesh).params.embed_tokens, np.float64)
        moved = np.asarray(state.averages[name].embed_tokens, np.float64) - begin
        np.testing.assert_allclose(moved, values - begin, rtol=1e-3, atol=1e-3 * np.max(np.abs(values - begin)))


def test_a_restarted_skip_rule_accepts_another_level(mesh: Mesh) -> None:
    state = initial_state(CONFIG, 0, mesh, averages=("averaged",), skip_window_steps=4)
    numbers = NUMBERS_._replace(skip_sigma=6.0, skip_warmup_steps=2)
    for seed in range(3):
        state, _ = build(mesh)(state, *batch(seed), numbers)
    assert state.history is not None
    # As if the level before had been a hundredth of a nat.
    history = dataclasses.replace(state.history, losses=0 * state.history.losses + 0.01)
    state = dataclasses.replace(state, history=history)
    _, metrics = build(mesh)(state, *batch(3), numbers)
    assert metrics.skip is not None and metrics.skip.is_skipped
    after, metrics = build(mesh)(state, *batch(3), numbers._replace(skip_restarts=True))
    assert metrics.skip is not None and not metrics.skip.is_skipped and np.isinf(metrics.skip.loss_limit)
    assert int(after.history.num_good) == 1 and float(after.history.losses[0]) == float(metrics.loss)


def test_a_skipped_step_has_the_measured_norms_of_its_gradient(mesh: Mesh) -> None:
    state = initial_state(CONFIG, 0, mesh, averages=("averaged",), skip_window_steps=4)
    numbers = NUMBERS_._replace(skip_sigma=6.0, skip_warmup_steps=2)
    for seed in range(3):
        state, metrics = build(mesh)(state, *batch(seed), numbers)
    kept = np.asarray(metrics.part_norms[2])
    history = dataclasses.replace(state.history, losses=0 * state.history.losses + 0.01)
    left_out = dataclasses.replace(state, history=history)
    _, taken = build(mesh)(state, *batch(3), numbers)
    _, skipped = build(mesh)(left_out, *batch(3), numbers)
    assert skipped.skip is not None and skipped.skip.is_skipped and not taken.skip.is_skipped
    gradient, update, parameters = np.asarray(skipped.part_norms)
    np.testing.assert_array_equal(gradient, taken.part_norms[0])
    assert (gradient > 0).all() and not update.any() and np.asarray(taken.part_norms[1]).all()
    np.testing.assert_array_equal(parameters, kept)
    # A loss that is not finite has a gradient that is not, in parts; nothing was added all the same.
    _, worst = build(mesh)(state, *batch(3), numbers._replace(z_loss=np.nan))
    gradient, update, parameters = np.asarray(worst.part_norms)
    assert np.isnan(gradient).any() and not update.any()
    np.testing.assert_array_equal(parameters, kept)


def test_a_batch_without_any_target_gives_zero_and_not_nan(mesh: Mesh) -> None:
    tokens, _ = batch()
    alone = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
    state, metrics = build(mesh)(state_of(mesh), tokens, alone, NUMBERS_)
    assert int(metrics.num_targets) == 0
    assert float(metrics.loss) == 0 and float(metrics.grad_norm) == 0
    assert not any(map(np.any, (metrics.row_loss, metrics.row_log_normalizer, metrics.row_targets)))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))

    first_step = initial_state(CONFIG, 0, mesh, averages=("averaged",), skip_window_steps=4)
    numbers = NUMBERS_._replace(skip_sigma=6.0, skip_warmup_steps=2)
    before, _ = build(mesh)(first_step, *batch(), numbers)
    after, metrics = build(mesh)(before, tokens, alone, numbers)
    assert metrics.skip is not None and metrics.skip.is_skipped
    kept = (dataclasses.replace(state, history=None, averages={}) for state in (before, after))
    assert all(map(np.array_equal, *map(jax.tree.leaves, kept)))
    np.testing.assert_array_equal(after.history.losses, before.history.losses)


def test_the_donated_state_is_used_up(mesh: Mesh) -> None:
    step = plain_step(CONFIG, mesh, remat="none")
    state = state_of(mesh)
    step(state, *batch(), NUMBERS_)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((state.params, state.optimizer, state.averages)))


def test_seeds_differ_and_a_seed_repeats(mesh: Mesh) -> None:
    first, second, other = (initial_state(CONFIG, seed, mesh).params for seed in (1, 1, 2))
    assert np.array_equal(first.layers.q_proj, second.layers.q_proj)
    assert not np.array_equal(first.layers.q_proj, other.layers.q_proj)
    assert float(jnp.std(first.lm_head)) == pytest.approx(CONFIG.initialization.factor, rel=0.1)


def test_adamw_by_default_and_by_name_are_one_program(mesh: Mesh) -> None:
    kernels = {"attention_kernel": "reference", "loss_kernel": "chunked"}
    by_default = ProgramOptions(**kernels, compute_dtype="float32", remat="none")
    options = (by_default, dataclasses.replace(by_default, optimizer=AdamW()))
    one, other = (train_program(CONFIG, mesh, each, donate=False) for each in options)
    assert one is other


def test_a_step_that_cannot_be_built_is_an_error(mesh: Mesh) -> None:
    options = ProgramOptions(attention_kernel="splash", loss_kernel="chunked", compute_dtype="float32", remat="none")
    with expect_error(ValueError):
        build_train_step(CONFIG, LLAMA3_ROPE, mesh, options)


def test_an_unknown_remat_policy_is_an_error_that_lists_the_known_ones() -> None:
    with expect_error(ValueError):
        check_remat("some")


def test_a_batch_that_does_not_divide_or_is_too_long_is_refused(mesh: Mesh) -> None:
    state = state_of(mesh)
    with expect_error(ValueError):
        build(mesh, num_microbatches=3)(state, *batch(), NUMBERS_)
    long = np.zeros((4, 33), np.int32)
    with expect_error(ValueError):
        build(mesh)(state, long, long, NUMBERS_)
    across = make_mesh(MeshShape(context=4, model=2), jax.devices()[:8])
    for shape in ((4, 30), (1, 4)):
        with expect_error(ValueError):
            check_batch(np.zeros(shape, np.int32), CONFIG, across, 1)
