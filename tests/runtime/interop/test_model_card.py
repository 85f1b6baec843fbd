"""The model card: each fact in its place, for people and for programs."""

import dataclasses
import json

import pytest

from runtime.interop.model_card import ModelCard, write_card

HOT = ModelCard(
    name="a model", weights="hot", average_decay=None, dtype="bfloat16", step=1_234, consumed_tokens=5_678_901,
    num_parameters=2_345_678, architecture="Llama", sequence_length=4_096, phase_digest="a" * 64,
    tokenizer_digest="b" * 64,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "kind", "weights"),
    [
        ({}, "A Llama of", "**hot** (the weights as last trained), stored as bfloat16."),
        ({"dtype": "float32"}, "A Llama of", "**hot** (the weights as last trained), stored as float32."),
        (
            {"architecture": "Qwen3", "weights": "slow", "average_decay": 0.9999},
            "A Qwen3 of",
            "**slow** (the exponential moving average of the weights with decay 0.9999, not the weights as last "
            "trained), stored as bfloat16.",
        ),
    ],
)
def test_the_card_says_each_fact_in_its_place(tmp_path, changes, kind, weights):
    card = dataclasses.replace(HOT, **changes)
    assert write_card(str(tmp_path), card) == ("README.md", "training.json")
    lines = (tmp_path / "README.md").read_text().splitlines()
    assert lines[:5] == ["---", "library_name: transformers", "pipeline_tag: text-generation", "---", "# a model"]
    assert f"{kind} 2,345,678 parameters, trained for 1,234 updates on" in lines
    assert "5,678,901 tokens at a sequence length of 4,096." in lines
    assert f"- Weights: {weights}" in lines
    assert f"- Training phase `{'a' * 64}`" in lines and f"- tokenizer.json, SHA-256 `{'b' * 64}`" in lines
    assert json.loads((tmp_path / "training.json").read_text()) == dataclasses.asdict(card)


@pytest.mark.parametrize(
    ("weights", "which"), [("hot", "weights as last trained"), ("averaged", "EMA weights `averaged`")]
)
def test_the_card_of_a_merge_names_the_weights_that_were_merged(weights, which):
    lines = dataclasses.replace(HOT, num_merged=5, merged_weights=weights).markdown().splitlines()
    assert f"- Weights: **merged** (the weighted average of the {which} of 5 checkpoints), stored as bfloat16." in lines
    assert f"- Merge `{'a' * 64}`" in lines
