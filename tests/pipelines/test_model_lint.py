"""Models that public runs regretted get warnings; the recipe and published models get none."""

import dataclasses
import gzip
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.compile_matrix import MODELS
from marin_dag.graph.graph import Graph
from pipelines.corpus import eight_b_corpus, laptop_corpus
from pipelines.lint import lint, lint_model
from pipelines.phases import phases_in, run_phases_in
from pipelines.scales import EIGHT_B, LAPTOP
from pipelines.tootsie import branches, phases
from runtime.model.config import LLAMA2_ROPE, LLAMA3_ROPE
from runtime.model.initialization import Initialization
from runtime.model.llama.config import LlamaConfig
from runtime.optim.schedule import Constant, Cosine
from tests.catalogue import check_message


@pytest.fixture(scope="module")
def kestrel():
    return phases(LAPTOP, laptop_corpus(LAPTOP))["kestrel"]


@pytest.fixture(scope="module")
def eight_b():
    return phases(EIGHT_B, eight_b_corpus(EIGHT_B))


def models_of(steps):
    run_phases = run_phases_in(phases_in(steps))
    return {name: found for name, each in run_phases.items() if (found := [*lint_model(each, run_phases)])}


def warnings_of(step):
    """Return a phase's warnings and cures, with the whole run that leads to it in the graph."""
    found = lint(Graph([step])).get(step.name, ())
    return [(warning.text, dict(warning.cure)) for warning in found]


def cured(step):
    """Return the phase with the cure of its only warning."""
    ((_, cure),) = warnings_of(step)
    values = {field: json.loads(text) for field, text in cure.items()}
    return step.fork(f"{step.name}-cured", **values)


def from_scratch(kestrel, name, model, **settings):
    of_model = {f"model.{field}": value for field, value in dataclasses.asdict(model).items()}
    return kestrel.fork(name, **of_model, **{"validate_every_steps": 0, **settings})


@pytest.mark.parametrize(("scale", "corpus"), [(LAPTOP, laptop_corpus), (EIGHT_B, eight_b_corpus)])
def test_the_recipe_as_written_gets_no_warning(scale, corpus):
    main_line = phases(scale, corpus(scale))
    every = main_line | branches(scale, corpus(scale), main_line)
    assert models_of(every.values()) == {}


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
def test_published_models_get_no_warning(kestrel, name, published):
    model, peak, rope = published
    settings = {"learning_rate": Constant(peak), "rope": rope, "global_batch_size": 4096}
    assert warnings_of(from_scratch(kestrel, name, model, **settings)) == []


TR8 = llama(50_257, 16_384, 20_480, 32, 32, 32, 512, initialization=Initialization(factor=math.sqrt(2 / (5 * 16_384))))
"""tr8's first shape, as a gated Llama."""


def test_the_first_shape_of_the_104b_fails_four_checks(kestrel):
    texts = [text for text, _ in warnings_of(from_scratch(kestrel, "tr8-104B", TR8, learning_rate=Constant(6e-5)))]
    assert len(texts) == 4
    check_message("\n".join(texts))


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
        ("base", {"initialization": Initialization(factor=0.05)}),
    ],
)
def test_each_cure_of_a_shape_leaves_no_warning(kestrel, name, changes):
    model = dataclasses.replace(PUBLISHED["llama-2-7b"][0], **changes)
    step = from_scratch(kestrel, name, model, learning_rate=Constant(1e-4))
    assert warnings_of(cured(step)) == []


def test_a_number_of_tokens_in_a_name_is_no_size(kestrel):
    small = PUBLISHED["smollm-135M"][0]
    tokens = {"until_step": 95_368, "global_batch_size": 4096, "learning_rate": Constant(1e-4)}  # 256 a sequence
    assert warnings_of(from_scratch(kestrel, "base-100b", small, **tokens)) == []
    assert len(warnings_of(from_scratch(kestrel, "base-100b", small, **tokens | {"until_step": 9}))) == 1


def test_the_initialisation_from_which_the_104b_diverged_gets_a_warning_with_its_later_value(kestrel):
    fixed = llama(50_257, 11_600, 30_976, 64, 100, 100, 116)
    ((text, cure),) = warnings_of(from_scratch(kestrel, "fixed", fixed, learning_rate=Constant(6e-5)))
    check_message(text)
    assert cure == {"model.initialization.factor": "0.0059"}
    normed = dataclasses.replace(fixed, use_qk_norm=True)
    assert warnings_of(from_scratch(kestrel, "normed", normed, learning_rate=Constant(6e-5))) == []


def test_a_large_model_at_a_high_rate_needs_qk_norm_whichever_phase_of_its_run_has_the_rate(kestrel):
    model = dataclasses.replace(PUBLISHED["marin-32b"][0], use_qk_norm=False)
    base = from_scratch(kestrel, "base", model, learning_rate=Constant(7e-4), z_loss=1e-4, rope=LLAMA3_ROPE)
    ((text, _),) = warnings_of(base)
    check_message(text)
    assert warnings_of(cured(base)) == []
    low = base.fork("low", learning_rate=Constant(2e-4))
    assert warnings_of(low) == []
    higher = low.then(
        "higher", until_step=low.config.until_step + 10, learning_rate=Constant(7e-4), acknowledge=("learning_rate",)
    )
    found = models_of([higher])
    assert list(found) == ["low"] and len(found["low"]) == 1
    warm = low.fork("warm", learning_rate=Cosine(7e-4, 1e-5, start_step=0, decay_steps=721))
    assert len(warnings_of(warm)) == 1


def test_the_rotary_embedding_of_another_family_gets_a_warning_unless_the_recipe_changes_it_later(eight_b):
    kestrel = eight_b["kestrel"]
    assert kestrel.config.rope == LLAMA2_ROPE
    ((text, cure),) = warnings_of(kestrel.fork("mine"))
    check_message(text)
    assert json.loads(cure["rope"]) == dataclasses.asdict(LLAMA3_ROPE)
    assert warnings_of(cured(kestrel.fork("mine"))) == []
    longer = eight_b["ocelot"].fork("back", rope=LLAMA2_ROPE)
    assert list(models_of([longer])) == ["kestrel"], "where it was taken, and no phase after it"


def test_a_long_memory_of_the_second_moment_gets_one_warning_for_large_updates(kestrel):
    assert warnings_of(kestrel.fork("small", b2=0.999)) == []
    large = kestrel.fork("large", b2=0.999, global_batch_size=2048)
    ((text, _),) = warnings_of(large)
    check_message(text)
    assert warnings_of(cured(large)) == []
    assert warnings_of(large.then("next", until_step=large.config.until_step + 200, learning_rate=Constant(1e-3))) == []


def test_an_imported_model_gets_no_warning_for_its_shape(kestrel):
    imported = from_scratch(kestrel, "tr8-104B", TR8, learning_rate=Constant(6e-5), restore="weights")
    assert warnings_of(imported) == []


@pytest.mark.parametrize(("pipeline", "phase"), [("web_corpus", "train"), ("online_mixing", "static-0")])
def test_every_pipeline_that_trains_has_the_warnings_in_its_plan(tmp_path, pipeline, phase):
    for number in range(2):
        with gzip.open(tmp_path / f"web_{number}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps({"text": f"page {number} of {page}"}) + "\n" for page in range(1_000))
    command = [sys.executable, f"pipelines/{pipeline}.py", "--dry-run", "--prefix", str(tmp_path / "runs")]
    command += ["--corpus", str(tmp_path)] if pipeline == "online_mixing" else []
    root = Path(__file__).resolve().parents[2]

    def plan(*options):
        return subprocess.run([*command, *options], cwd=root, capture_output=True, text=True, check=False)

    as_written = plan()
    assert as_written.returncode == 2, as_written.stderr
    assert "Warnings" not in as_written.stdout
    found = plan("--set", f"{phase}.model.initialization.factor=9").stdout
    assert f"--set {phase}.model.initialization.factor=0." in found
