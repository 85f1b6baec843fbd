"""Claim: validation, with the predictions of the heat map, costs at most 0.5 % of the 8B recipe's training time.

The laptop's train step, its evaluation step and the predictions of a sample (written to a file) take turns in one
process, compiled and warm. Their seconds a token, with the tokens that the 8B recipe trains on, evaluates and predicts
between two validations, give the share. Printed too: the share of the predictions alone, and both for the laptop's
recipe, which validates far more often. Half a minute on two cores. The last line is JSON.

    python benchmarks/token_predictions.py
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from benchmarks.laptop_model import NUM_SOURCES, LaptopStep, laptop_mesh
from benchmarks.verdict import conclude
from pipelines.eight_b_sources import eight_b_sources
from pipelines.scales import EIGHT_B, LAPTOP, Scale
from runtime.evaluation.stored_predictions import write_predictions
from runtime.evaluation.token_predictions import Predictor, Sample, build_prediction_step
from runtime.evaluation.window_batch import WINDOWS_PER_BATCH
from runtime.evaluation.windows import Windows
from runtime.model.config import LLAMA2_ROPE
from runtime.training.eval_step import build_eval_step
from runtime.training.train_step import Hyperparameters

BAR = 0.005
WINDOWS_PER_SOURCE = 2
NUM_WEIGHTS = 2
"""The weights and one set of EMA weights."""
TURNS = 7
HYPERPARAMETERS = Hyperparameters(1e-3, 0.1, 0.9, 0.95, eps=1e-8, max_norm=1.0, z_loss=0.0)


class SecondsPerToken(NamedTuple):
    """Seconds a token of each program."""

    train: float
    evaluate: float
    predict: float

    def shares(self, scale: Scale, num_sources: int) -> tuple[float, float]:
        """Return the shares of evaluation and of predictions in the training time of a recipe."""
        trained = scale.validate_every_steps * scale.batches[0].global_batch_size * scale.sequence_length * self.train
        evaluated = NUM_WEIGHTS * num_sources * scale.validation_tokens_per_source * self.evaluate
        predicted = NUM_WEIGHTS * num_sources * WINDOWS_PER_SOURCE * scale.sequence_length * self.predict
        return evaluated / trained, predicted / trained


def random_rows(num_rows: int) -> np.ndarray:
    """Return rows of random ids."""
    shape = num_rows, LAPTOP.sequence_length
    return np.random.default_rng(0).integers(1, LAPTOP.model.vocab_size, shape, dtype=np.int32)


def sample() -> Sample:
    """Return windows of random ids that fill one batch."""
    tokens = random_rows(WINDOWS_PER_BATCH)
    names = tuple(f"source-{index % NUM_SOURCES}" for index in range(WINDOWS_PER_BATCH))
    return Sample(names, tuple(f"{index:012x}" for index in range(WINDOWS_PER_BATCH)), Windows(tokens, 0 * tokens))


def measured(folder: Path) -> SecondsPerToken:
    """Return the medians over the turns."""
    mesh = laptop_mesh()
    laptop = LaptopStep(LAPTOP.batches[0], mesh)
    state = laptop.state()
    params = jax.tree.map(lambda leaf: leaf.copy(), state.params)
    trained, evaluated = random_rows(LAPTOP.batches[0].global_batch_size), random_rows(WINDOWS_PER_BATCH)
    evaluate = build_eval_step(
        LAPTOP.model,
        LLAMA2_ROPE,
        mesh,
        attention_kernel="chunked",
        loss_kernel="chunked",
        compute_dtype=LAPTOP.compute_dtype,
    )
    predictor = Predictor(
        sample=sample(),
        step=build_prediction_step(
            LAPTOP.model, LLAMA2_ROPE, mesh, attention_kernel="chunked", compute_dtype=LAPTOP.compute_dtype
        ),
        windows_per_batch=WINDOWS_PER_BATCH,
        rows=None,
    )

    def train() -> None:
        nonlocal state
        state, figures = laptop.step(state, trained, 0 * trained, HYPERPARAMETERS)
        jax.block_until_ready(figures)

    def predict() -> None:
        table = predictor.table(0, 0, {"hot": predictor.predict(params)})
        write_predictions(str(folder / "predictions.parquet"), table)

    programs: dict[str, tuple[Callable[[], object], int]] = {
        "train": (train, trained.size),
        "evaluate": (lambda: jax.block_until_ready(evaluate(params, evaluated, 0 * evaluated)), evaluated.size),
        "predict": (predict, evaluated.size),
    }
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(TURNS):
        for name, (run, num_tokens) in programs.items():
            began = time.monotonic()
            run()
            seconds[name].append((time.monotonic() - began) / num_tokens)
    return SecondsPerToken(*(statistics.median(each[1:]) for each in seconds.values()))


def main() -> None:
    """Measure, and print the shares of both recipes."""
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder))
    evaluation, predictions = found.shares(EIGHT_B, len(eight_b_sources()))
    of_laptop = found.shares(LAPTOP, NUM_SOURCES + 1)
    print({name: f"{1e6 * seconds:.1f} microseconds a token" for name, seconds in found._asdict().items()})
    conclude(
        {
            "claim": "validation and predictions over training time at 8B",
            "ours": evaluation + predictions,
            "reference": 1.0,
            "ratio": evaluation + predictions,
            "predictions_alone": predictions,
            "laptop": sum(of_laptop),
            "laptop_predictions_alone": of_laptop[1],
            "bar": BAR,
            "holds": evaluation + predictions <= BAR,
        }
    )


if __name__ == "__main__":
    main()
