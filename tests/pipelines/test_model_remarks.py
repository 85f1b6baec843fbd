"""What is said of models that public runs came to regret; of the recipe, and of published models, nothing."""

import dataclasses
import gzip
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from marin_dag.graph.graph import Graph
from pipelines.corpus import eight_b_corpus, laptop_corpus
from pipelines.model_remarks import model_remarks
from pipelines.scales import EIGHT_B, LAPTOP
from pipelines.timeline import legs_in, lint, phases_in
from pipelines.tootsie import branches, phases
from runtime.cost.matrix import MODELS
from runtime.model.config import LLAMA2_ROPE, LLAMA3_ROPE
from runtime.model.llama.config import LlamaConfig
from runtime.optim.schedule import Constant, Cosine


@pytest.fixture(scope="module")
def kestrel():
    return phases(LAPTOP, laptop_corpus(LAPTOP))["kestrel"]


@pytest.fixture(scope="module")
def eight_b():
    return phases(EIGHT_B, eight_b_corpus(EIGHT_B))


def said_of(step):
    """Of a phase, with the whole run that leads to it in the graph."""
    found = lint(Graph([step])).get(step.name, ())
    return [(warning.text, dict(warning.cure)) for warning in found]


def cured(step):
    """The phase with what its only warning proposes."""
    ((_, cure),) = said_of(step)
    values = {field: json.loads(text) for field, text in cure.items()}
    return step.fork(f"{step.name}-cured", **values)


def from_scratch(kestrel, name, model, **settings):
    of_model = {f"model.{field}": value for field, value in dataclasses.asdict(model).items()}
    return kestrel.fork(name, **of_model, **{"validate_every_steps": 0, **settings})


@pytest.mark.parametrize(("scale", "corpus"), [(LAPTOP, laptop_corpus), (EIGHT_B, eight_b_corpus)])
def test_of_the_recipe_as_written_there_is_nothing_to_say(scale, corpus):
    main_line = phases(scale, corpus(scale))
    every = main_line | branches(scale, corpus(scale), main_line)
    assert model_remarks(legs_in(phases_in(every.values()))) == {}


def llama(vocab, hidden, intermediate, layers, heads, kv_heads, head_dim, **others):
    return LlamaConfig(vocab, hidden, intermediate, layers, heads, kv_heads, head_dim, 8192, **others)


PUBLISHED = {
    **{f"matrix-{name}": (model, 3e-4 if name != "70B" else 1.5e-4, LLAMA3_ROPE) for name, model in MODELS.items()},
    "llama-2-7b": (llama(32_000, 4096, 11_008, 32, 32, 32, 128), 3e-4, LLAMA2_ROPE),
    "llama-2-70b": (llama(32_000, 8192, 28_672, 80, 64, 8, 128), 1.5e-4, LLAMA2_ROPE),
    "llama-3-8b": (llama(128_256, 4096, 14_336, 32, 32, 8, 128), 3e-4, LLAMA3_ROPE),
    "llama-3-70B": (llama(128_256, 8192, 28_672, 80, 64, 8, 128), 1.5e-4, LLAMA3_ROPE),
    "llama-3.2-1b": (llama(128_256, 2048, 8192, 16, 32, 8, 64, tie_word_embeddings=True), 3e-4, LLAMA3_ROPE),
    "olmo-2-7b": (llama(100_352, 4096, 11_008, 32, 32, 32, 128, use_qk_norm=True), 3e-4, LLAMA3_ROPE),
    "marin-32b": (llama(128_256, 5120, 27_648, 64, 40, 8, 128, use_qk_norm=True), 7e-4, LLAMA3_ROPE),
    "smollm-135M": (llama(49_152, 576, 1536, 30, 9, 3, 64, tie_word_embeddings=True), 3e-3, LLAMA2_ROPE),
    "gemma-like-7b": (llama(256_000, 3072, 24_576, 28, 16, 16, 256, tie_word_embeddings=True), 3e-4, LLAMA2_ROPE),
}


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items(), ids=PUBLISHED)
def test_of_published_models_there_is_nothing_to_say(kestrel, name, published):
    model, peak, rope = published
    settings = {"learning_rate": Constant(peak), "rope": rope, "global_batch_size": 4096}
    assert said_of(from_scratch(kestrel, name, model, **settings)) == []


TR8 = llama(50_257, 16_384, 20_480, 32, 32, 32, 512, initializer_range=math.sqrt(2 / (5 * 16_384)))
"""tr8's first shape, as a gated Llama."""


def test_the_first_shape_of_the_104b_fails_four_checks(kestrel):
    said = [text for text, _ in said_of(from_scratch(kestrel, "tr8-104B", TR8, learning_rate=Constant(6e-5)))]
    assert said == [
        "it is called 104B, and its model has 68.22 B parameters",
        "model.intermediate_size is 1.25 times the hidden size, and the MLP 48% of a layer's weights; of published "
        "models it is 2 to 8 times, and most of a layer",
        "model.head_dim is 512, and that of published models 256 at most",
        "the model is 16,384 wide and 32 layers deep, 512 to 1; published models have 205 to 1 at most, most about 128",
    ]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("base-13b", {}),  # 7 billion
        ("base-400b", {}),
        ("base", {"intermediate_size": 5120}),
        ("base", {"intermediate_size": 40_960}),
        ("base", {"num_attention_heads": 128, "num_key_value_heads": 128}),
        ("base", {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 512}),
        ("base", {"num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 320}),
        ("base", {"num_hidden_layers": 12}),
        ("base", {"initializer_range": 0.05}),
    ],
)
def test_each_shape_has_a_cure_that_leaves_nothing_to_say(kestrel, name, changes):
    model = dataclasses.replace(PUBLISHED["llama-2-7b"][0], **changes)
    step = from_scratch(kestrel, name, model, learning_rate=Constant(1e-4))
    assert said_of(cured(step)) == []


def test_a_name_that_tells_tokens_is_no_size(kestrel):
    small = PUBLISHED["smollm-135M"][0]
    tokens = {"until_step": 95_368, "global_batch_size": 4096, "learning_rate": Constant(1e-4)}  # 256 a sequence
    assert said_of(from_scratch(kestrel, "base-100b", small, **tokens)) == []
    assert len(said_of(from_scratch(kestrel, "base-100b", small, **tokens | {"until_step": 9}))) == 1


def test_the_initialisation_that_the_104b_diverged_of_is_said_with_what_it_went_on_with(kestrel):
    mended = llama(50_257, 11_600, 30_976, 64, 100, 100, 116, initializer_range=0.02)
    ((text, cure),) = said_of(from_scratch(kestrel, "mended", mended, learning_rate=Constant(6e-5)))
    assert text.startswith("model.initializer_range is 0.02, 3.4 times sqrt(2 / (5 hidden_size))")
    assert cure == {"model.initializer_range": "0.0059"}
    normed = dataclasses.replace(mended, use_qk_norm=True)
    assert said_of(from_scratch(kestrel, "normed", normed, learning_rate=Constant(6e-5))) == []


def test_a_large_model_at_a_high_rate_wants_qk_norm_whichever_phase_of_its_run_has_the_rate(kestrel):
    model = dataclasses.replace(PUBLISHED["marin-32b"][0], use_qk_norm=False)
    base = from_scratch(kestrel, "base", model, learning_rate=Constant(7e-4), z_loss=1e-4, rope=LLAMA3_ROPE)
    ((text, _),) = said_of(base)
    assert text.startswith("32.52 B parameters at a learning rate of 7e-4 without QK-norm")
    assert said_of(cured(base)) == []
    low = base.fork("low", learning_rate=Constant(2e-4))
    assert said_of(low) == []
    higher = low.then(
        "higher", until_step=low.config.until_step + 10, learning_rate=Constant(7e-4), acknowledge=("learning_rate",)
    )
    found = model_remarks(legs_in(phases_in([higher])))
    assert list(found) == ["low"] and len(found["low"]) == 1
    warm = low.fork("warm", learning_rate=Cosine(7e-4, 1e-5, start_step=0, decay_steps=721))
    assert len(said_of(warm)) == 1


def test_the_rotary_embedding_of_another_family_is_said_unless_the_recipe_goes_over_to_another(eight_b):
    kestrel = eight_b["kestrel"]
    assert kestrel.config.rope == LLAMA2_ROPE
    ((text, cure),) = said_of(kestrel.fork("mine"))
    assert text.startswith("rope.rope_theta is 10,000, as in Llama 2, and the 128,256 ids are those of Llama 3")
    assert json.loads(cure["rope"]) == dataclasses.asdict(LLAMA3_ROPE)
    assert said_of(cured(kestrel.fork("mine"))) == []
    longer = eight_b["ocelot"].fork("back", rope=LLAMA2_ROPE)
    assert list(model_remarks(legs_in(phases_in([longer])))) == ["kestrel"], "where it was taken, and no phase after it"


def test_a_long_memory_of_the_second_moment_is_said_of_large_updates_and_once(kestrel):
    assert said_of(kestrel.fork("small", b2=0.999)) == []
    large = kestrel.fork("large", b2=0.999, global_batch_size=2048)
    ((text, _),) = said_of(large)
    assert text.startswith(
        "b2 is 0.999, with 524.3 k tokens an update: the second moment is a mean over about 1,000 upd"
    )
    assert said_of(cured(large)) == []
    assert said_of(large.then("next", until_step=large.config.until_step + 200, learning_rate=Constant(1e-3))) == []


def test_of_what_is_imported_only_its_settings_are_talked_of(kestrel):
    imported = from_scratch(kestrel, "tr8-104B", TR8, learning_rate=Constant(6e-5), restore="weights")
    assert said_of(imported) == []


@pytest.mark.parametrize(("pipeline", "phase"), [("web_corpus", "train"), ("online_mixing", "train/static-0")])
def test_every_pipeline_that_trains_has_it_said_in_its_plan(tmp_path, pipeline, phase):
    for number in range(2):
        with gzip.open(tmp_path / f"web_{number}.jsonl.gz", "wt") as file:
            file.write(json.dumps({"text": f"page {number}"}) + "\n")
    command = [sys.executable, f"pipelines/{pipeline}.py", "--dry-run", "--prefix", str(tmp_path / "runs")]
    command += ["--corpus", str(tmp_path)] if pipeline == "online_mixing" else []
    root = Path(__file__).resolve().parents[2]

    def plan(*options):
        return subprocess.run([*command, *options], cwd=root, capture_output=True, text=True, check=False)

    as_written = plan()
    assert as_written.returncode == 2, as_written.stderr
    assert "Warnings" not in as_written.stdout
    found = plan("--set", f"{phase}.model.initializer_range=1").stdout
    assert f"{phase}: model.initializer_range is 1, " in found
    assert f"--set {phase}.model.initializer_range=0." in found
