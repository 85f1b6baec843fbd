"""Texts after prompts: passed on as they grow, in order, and equal for equal settings."""

import jax
import jax.numpy as jnp
import pytest

from runtime.evaluation.placed_model import PlacedModel
from runtime.evaluation.sampling import Sampling
from runtime.evaluation.writing import Text, Writer
from runtime.interop.huggingface import SpecialTokens
from runtime.model.config import LLAMA3_ROPE
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from runtime.text.tokenizer_training import train
from tests.catalogue import expect_error
from tests.runtime.interop.small_llama import CONFIG, model

PROMPTS = ["the first", "", "naïve 猫", "the first"]


@pytest.fixture(scope="module")
def writer() -> Writer:
    mesh = make_mesh(MeshShape(), jax.devices()[:1])
    placed = PlacedModel(model(), CONFIG, LLAMA3_ROPE, compute_dtype=jnp.float32, mesh=mesh)
    return Writer(placed, train(["the first and the 猫"], vocab_size=262), SpecialTokens(1, 0))


def written(writer: Writer, sampling: Sampling | None = None) -> tuple[list[Text], list[tuple[int, str]]]:
    pieces: list[tuple[int, str]] = []
    texts = writer.write(
        PROMPTS, max_new_tokens=9, sampling=sampling, on_text=lambda number, text: pieces.append((number, text))
    )
    return texts, pieces


def test_texts_come_in_pieces_in_the_order_of_their_prompts(writer: Writer) -> None:
    texts, pieces = written(writer, Sampling(1.0, seed=5))
    assert [text.prompt for text in texts] == PROMPTS
    assert [number for number, _ in pieces] == sorted(number for number, _ in pieces)
    joined = ["".join(piece for number, piece in pieces if number == each) for each in range(len(PROMPTS))]
    assert joined == [text.text for text in texts]
    assert sum(number == 0 for number, _ in pieces) > 1


def test_equal_settings_write_equal_texts(writer: Writer) -> None:
    greedy, _ = written(writer)
    assert greedy[0] == greedy[3] and greedy == written(writer)[0]
    drawn, _ = written(writer, Sampling(1.5, seed=1))
    assert drawn == written(writer, Sampling(1.5, seed=1))[0]
    assert drawn != written(writer, Sampling(1.5, seed=2))[0] and drawn[0].text != drawn[3].text


def test_a_prompt_that_leaves_no_room_is_refused(writer: Writer) -> None:
    with expect_error(ValueError):
        writer.write(["a"], max_new_tokens=10**6, sampling=None, on_text=lambda number, text: None)
