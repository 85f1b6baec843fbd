"""Run by test_eight_devices in a process of its own: three updates on one device and on meshes of eight.

Prints one JSON object: for each mesh, the metrics of each update and the largest relative difference of any leaf of the
state from that of one device, and what its compiled program contains.
"""

import json
import re

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from runtime.evaluation.token_predictions import build_prediction_step
from runtime.model.config import LLAMA3_ROPE
from runtime.model.initialization import Initialization
from runtime.model.llama.config import LlamaConfig
from runtime.model.llama.model import LlamaParams
from runtime.model.rotary import inverse_frequencies
from runtime.parallel.collectives import scatter, splits
from runtime.parallel.mesh import DATA_AXES, make_mesh
from runtime.parallel.mesh_shape import MeshShape
from runtime.platform.remat import Remat
from runtime.tracking.parts import part_names
from runtime.training.eval_step import build_eval_step
from runtime.training.part_norms import tensors_of
from runtime.training.state import TrainState, initial_state, placed_shapes
from runtime.training.train_step import Hyperparameters, ProgramOptions, StepMetrics, train_program
from tests.runtime.training.plain_step import plain_step

CONFIG = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,  # as many as nothing else has
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=32,
    initialization=Initialization(factor=0.2),
    use_qk_norm=True,
)
FSDP = MeshShape(data=8)
FSDP_AND_TENSOR = MeshShape(data=4, model=2)
VARIANTS = {  # mesh, sizes of its data axes, rematerialisation, micro-batches
    "fsdp_on_a_torus": (FSDP, (2, 2, 2), "none", 1),
    "hsdp": (MeshShape(replica=2, data=4), (2, 2, 1), "full", 2),
    "context": (MeshShape(context=8), (1, 1, 1), "full", 1),
    "all_axes": (MeshShape(data=2, model=2, context=2), (2, 1, 1), "dots", 2),
}
TORI = ((8, 1, 1), (2, 2, 2))
# A large eps, so that an update is proportional to the gradient and shows an error in it.
HYPERPARAMETERS = Hyperparameters(1e-2, 0.1, 0.9, 0.95, eps=1.0, max_norm=0.5, z_loss=1e-3, average_decays=(0.9,))


def batch() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, CONFIG.vocab_size, (16, 24), dtype=np.int32)
    return tokens, np.sort(rng.integers(0, 3, tokens.shape, dtype=np.int32), axis=1)


def leaves(state: TrainState) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]


def plain_norms(tree: LlamaParams) -> dict[str, float]:
    """Return the norm of each tensor, and of each layer of stacked ones, in NumPy."""
    found = {name: getattr(tree, name) for name in ("embed_tokens", "norm", "lm_head")}
    for name, stacked in vars(tree.layers).items():
        found |= {f"layers.{layer}.{name}": values for layer, values in enumerate(stacked)}
    return {name: float(np.linalg.norm(np.asarray(values, np.float64))) for name, values in found.items()}


def norms_by_part(before: LlamaParams, after: TrainState, figures: StepMetrics) -> dict[str, list[dict[str, float]]]:
    """Return the reported norms of the first update and those in NumPy: (gradient, update, parameters)."""
    # The first moment is then a share of the clipped gradient.
    unclipped = float(figures.grad_norm) / min(HYPERPARAMETERS.max_norm, float(figures.grad_norm))
    gradients = jax.tree.map(
        lambda mu: np.asarray(mu, np.float64) / (1 - HYPERPARAMETERS.b1) * unclipped, after.optimizer.mu
    )
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), after.params)
    names = part_names(tensors_of(after.params))
    reported = [dict(zip(names, norms, strict=True)) for norms in np.asarray(figures.part_norms).tolist()]
    return {
        "reported": reported,
        "plain": [*map(plain_norms, (gradients, jax.tree.map(np.subtract, params, before), params))],
    }


def run(mesh: Mesh, remat: str, num_microbatches: int) -> tuple[list, list[np.ndarray], list, np.ndarray, dict]:
    state = initial_state(CONFIG, 0, mesh, averages=("averaged",))
    begin = leaves(state)
    step = plain_step(CONFIG, mesh, remat=remat, num_microbatches=num_microbatches, attention_kernel="chunked")
    metrics = []
    params, part_norms = jax.tree.map(np.asarray, state.params), {}
    for index in range(3):
        state, figures = step(state, *batch(), HYPERPARAMETERS)
        if not index:
            part_norms = norms_by_part(params, state, figures)
        metrics.append(np.concatenate([np.ravel(figure) for figure in jax.tree.leaves(figures)]).tolist())
    evaluate = build_eval_step(
        CONFIG, LLAMA3_ROPE, mesh, attention_kernel="reference", loss_kernel="chunked", compute_dtype="float32"
    )
    predict = build_prediction_step(CONFIG, LLAMA3_ROPE, mesh, attention_kernel="reference", compute_dtype="float32")
    predicted = predict(state.params, *batch())
    log_probs = np.where(predicted.has_target, predicted.log_prob, 0.0)
    losses = np.asarray(evaluate(state.params, *batch()).loss)
    return metrics, leaves(state), begin, np.stack([losses, -log_probs, predicted.entropy]), part_norms


def difference(got: np.ndarray, expected: np.ndarray) -> float:
    scale = np.abs(expected.astype(np.float64)).max()
    return float(np.abs(got.astype(np.float64) - expected).max() / (scale or 1.0))


def main() -> None:
    expected = run(make_mesh(MeshShape(), jax.devices()[:1]), "none", 1)
    report = {"one": {"metrics": expected[0], "part_norms": expected[4]}}
    for name, (shape, torus, remat, num_microbatches) in VARIANTS.items():
        metrics, state, begin, losses, part_norms = run(make_mesh(shape, torus=torus), remat, num_microbatches)
        report[name] = {
            "metrics": metrics,
            "begins_equal": all(map(np.array_equal, begin, expected[2])),
            "state": max(map(difference, state, expected[1])),
            "evaluation": difference(losses, expected[3]),
            "part_norms": part_norms,
        }
    report["scatters"] = [
        scattered(make_mesh(FSDP, torus=torus), dtype) for torus in TORI for dtype in ("float32", "bfloat16")
    ]
    tensor = lowered(FSDP_AND_TENSOR, (2, 2, 1), "bfloat16")
    keeping = lowered(FSDP_AND_TENSOR, (2, 2, 1), "bfloat16", remat="none")
    report["programs"] = {
        "float32": collectives(lowered(FSDP, (2, 2, 2), "float32").as_text()),
        "bfloat16": collectives(tensor.as_text()),
        "stacks": {"full": stacks(tensor.as_text()), "none": stacks(keeping.as_text())},
        # This compiler widens bfloat16, so here only the operations count.
        "compiled": re.findall(r" = (\S+) (?:all-reduce|all-reduce-start)\(", tensor.compile().as_text()),
    }
    print(json.dumps(report))


def scattered(mesh: Mesh, dtype: str) -> dict[str, bool | float]:
    """Rows of a gradient in either form of `scatter`: whether the bits are the same, and how far from NumPy's sum."""
    parts = np.random.default_rng(0).normal(size=(8, 32, 200)).astype(dtype)
    split = splits(PartitionSpec(DATA_AXES), dict(mesh.shape))

    def scatter_as(rows_as_they_are: bool) -> np.ndarray:
        program = jax.shard_map(
            lambda part: scatter(part[0], split, rows_as_they_are=rows_as_they_are),
            mesh=mesh, in_specs=PartitionSpec(DATA_AXES), out_specs=PartitionSpec(DATA_AXES), check_vma=False,
        )  # fmt: skip
        return np.asarray(jax.jit(program)(parts))

    divided, as_they_are = scatter_as(False), scatter_as(True)
    exact = parts.astype(np.float64).sum(axis=0)
    return {"same_bits": divided.tobytes() == as_they_are.tobytes(), "difference": difference(as_they_are, exact)}


def lowered(
    shape: MeshShape, torus: tuple[int, int, int], reduce_dtype: str, remat: Remat = "full"
) -> jax.stages.Lowered:
    """The bfloat16 step on eight devices."""
    mesh = make_mesh(shape, torus=torus)
    state = placed_shapes(CONFIG, mesh, averages=(), skip_window_steps=0)
    options = ProgramOptions(
        attention_kernel="reference", loss_kernel="chunked", compute_dtype="bfloat16", remat=remat,
        reduce_dtype=reduce_dtype,
    )  # fmt: skip
    program = train_program(CONFIG, mesh, options, donate=True)
    numbers = HYPERPARAMETERS._replace(average_decays=())
    return program.lower(state, *batch(), numbers.packed(), inverse_frequencies(LLAMA3_ROPE, CONFIG.head_dim))


def collectives(text: str) -> list[str]:
    """Operation, shape and dtype of each collective that is asked for."""
    found = re.findall(r'"stablehlo\.(all_gather|reduce_scatter|all_reduce)".*?\) -> tensor<([^>]*)>', text, re.DOTALL)
    return sorted({f"{name} {kind}" for name, kind in found})


def stacks(text: str) -> list[str]:
    """Sizes, per layer, of the bfloat16 arrays with a part for each layer: what is kept from the forward pass."""
    return sorted(set(re.findall(rf"tensor<{CONFIG.num_hidden_layers}x([0-9x]+)xbf16>", text)))


if __name__ == "__main__":
    main()
