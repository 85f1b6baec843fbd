"""Pins down: `--scale 8b` is the public run: steps, tokens, batches, rates and decay at each boundary."""

import itertools

import pytest

from marin_dag.graph.graph import Graph, Selection
from marin_dag.graph.resources import Cpu, Gpu
from marin_dag.plan.plan import make_plan
from marin_dag.store.prefix import open_store
from pipelines.corpus import eight_b_corpus
from pipelines.scales import EIGHT_B
from pipelines.tootsie import branches, phases
from runtime.model.config import LLAMA2_ROPE, LLAMA3_ROPE
from runtime.model.initialization import Initialization
from runtime.optim.ema import Ema
from steps.phase_timeline import place_phases
from steps.train_phase import train_phase

MAIN_LINE = ("kestrel", "ocelot", "jellyfish", "phoenix", "starling", "deeper_starling")


def test_a_plan_names_the_data_sets_without_a_known_revision(tmp_path):
    corpus = eight_b_corpus(EIGHT_B)
    plan = make_plan(Graph(phases(EIGHT_B, corpus).values()), open_store(str(tmp_path / "runs")))
    names = ("arxiv_markdownified", "medu_science_qa", "stackexchange_custom", "wikipedia_markdown")
    assert sorted(plan.open_questions) == [f"download/{name}" for name in names]
    assert all("no revision pinned: marin-community/" in question for question in plan.open_questions.values())
    kestrel = make_plan(plan.graph, open_store(str(tmp_path / "runs")), Selection(until=("kestrel",)))
    assert kestrel.will_run and not kestrel.open_questions


@pytest.fixture(scope="module")
def configs():
    corpus = eight_b_corpus(EIGHT_B)
    main_line = phases(EIGHT_B, corpus)
    return {name: step.config for name, step in (main_line | branches(EIGHT_B, corpus, main_line)).items()}


def test_the_main_line_has_the_published_steps_tokens_and_batches(configs):
    line = {name: configs[name] for name in MAIN_LINE}
    run_phases = place_phases(line, {after: (name, line[name].until_step) for name, after in itertools.pairwise(line)})
    found = [
        (run_phase.settings.until_step, run_phase.settings.global_batch_size, round(run_phase.end_tokens / 1e12, 3))
        for run_phase in run_phases.values()
    ]
    assert found == [
        (660_001, 1024, 2.768),
        (740_500, 3072, 3.781),
        (820_000, 3072, 4.781),
        (1_320_001, 3072, 11.073),
        (1_400_000, 4096, 12.415),
        (1_420_000, 4096, 12.751),
    ]
    assert EIGHT_B.model.num_parameters == 8_030_261_248


def test_the_model_and_what_stays_are_those_of_the_public_code(configs):
    model = EIGHT_B.model
    assert (model.rms_norm_eps, model.tie_word_embeddings, model.use_qk_norm) == (1e-5, False, False)
    assert model.initialization == Initialization(scale="fan_in", factor=1.0, truncated_at=3.0)
    assert {(config.publish_every_steps, config.checkpoint_every_seconds) for config in configs.values()} == {
        (20_000, 600)
    }


def test_the_branch_in_float32_takes_its_sequences_in_parts_and_no_other_does(configs):
    # Compiled for its slices: six of a chip's twelve sequences at a time need 28.2 GiB of 30.75.
    parts = {name: config.num_microbatches for name, config in configs.items()}
    assert parts.pop("spoonbill_focused_fp32") == 2
    assert set(parts.values()) == {1}


def test_a_plan_counts_every_checkpoint_that_stays(configs):
    for name in MAIN_LINE:
        config, begin = configs[name], configs[name].begin_step
        published = [step for step in range(begin + 1, config.until_step) if step % 20_000 == 0]
        certified = range(begin + 2_000, config.until_step, 2_000)
        one = 4 * (3 if name == "kestrel" else 4) * EIGHT_B.model.num_parameters  # weights, moments and average
        cost = train_phase.cost(config, EIGHT_B.main_resources)
        assert cost.bytes_written == one * (len(published) + len(certified) + 1), name


def test_a_plan_s_chip_hours_are_those_of_the_compiled_steps_within_three_percent(configs):
    # docs/explanation/tpu.md, days at 70 % of the rooflines.
    compiled = (351_000, 94_000, 93_000, 585_000, 123_000, 31_000)
    resources = (EIGHT_B.kestrel_resources, *5 * (EIGHT_B.main_resources,))
    planned = [
        train_phase.cost(configs[name], of).work["chip-hours"] for name, of in zip(MAIN_LINE, resources, strict=True)
    ]
    assert planned == pytest.approx(compiled, rel=0.03)
    on_gpus = train_phase.cost(configs["phoenix"], Gpu("H200", 8))
    assert on_gpus.work["chip-hours"] == pytest.approx(on_gpus.work["FLOPs"] / (0.4 * 989e12) / 3_600)
    for of, slower in ((EIGHT_B.branch_resources, 6), (Gpu("H200", 8), 989 / 67)):
        wide = train_phase.cost(configs["spoonbill_focused_fp32"], of)
        narrow = configs["spoonbill_focused_fp32"].model_copy(update={"compute_dtype": "bfloat16"})
        assert wide.work["chip-hours"] == pytest.approx(train_phase.cost(narrow, of).work["chip-hours"] * slower)
    for unknown in (Cpu(2), Gpu("V100", 8)):
        assert train_phase.cost(configs["phoenix"], unknown).work["chip-hours"] == 0


@pytest.mark.parametrize(
    ("phase", "step", "rate"),
    [
        ("kestrel", 0, 0.0),
        ("kestrel", 1_000, 1e-3),
        ("kestrel", 9_000, 1e-3),
        ("kestrel", 9_500, 1e-3 / 5.5),
        ("kestrel", 10_000, 1e-3),
        ("kestrel", 218_000, 1e-3),
        ("kestrel", 219_000, 1e-3 / 5.5),
        ("kestrel", 660_000, 1e-3),
        ("ocelot", 660_001, 1.7e-3),
        ("jellyfish", 740_500, 1.7e-3),
        ("jellyfish", 820_000, 1.7e-4),
        ("phoenix", 820_000, 1.7e-4),
        ("phoenix", 822_000, 1.7e-3),
        ("phoenix", 1_320_000, 1.7e-3),
        ("starling", 1_320_001, 1.7e-3),
        ("starling", 1_400_000, 1.7e-5),
        ("deeper_starling", 1_419_999, 1.7e-5),
        ("cooldown_v2", 820_000, 1.7e-4),
        ("dessert", 836_999, 1.7e-4),
        ("raccoon_soft", 830_000, 1.7e-5),
        ("raccoon_softer", 840_000, 1e-6),
        ("spoonbill_hypnotic", 830_000, 2.75e-5),
        ("spoonbill_focused_zloss", 830_000, 2.75e-5),
        ("spoonbill_deeper", 840_000, 2.75e-6),
    ],
)
def test_the_learning_rate_is_the_published_one(configs, phase, step, rate):
    assert configs[phase].learning_rate(step) == pytest.approx(rate, rel=1e-12)


def test_other_changes_of_a_fork_apply_to_the_published_phase(configs):
    assert {name for name, config in configs.items() if config.weight_decay != 0.1} == {"kestrel"}
    assert configs["kestrel"].weight_decay == 0.05 and configs["kestrel"].averages == ()
    assert all(config.averages == (Ema(0.995),) for name, config in configs.items() if name != "kestrel")
    assert configs["kestrel"].rope == LLAMA2_ROPE
    assert all(config.rope == LLAMA3_ROPE for name, config in configs.items() if name != "kestrel")
    with_z_loss = {name for name, config in configs.items() if config.z_loss}
    assert with_z_loss == {"starling", "deeper_starling", "spoonbill_focused_zloss", "spoonbill_deeper"}
    assert all(configs[name].z_loss == 1e-4 for name in with_z_loss)
    assert {name for name, config in configs.items() if config.restore != "everything"} == {"raccoon_softer"}
    optimizer = {(config.b1, config.b2, config.eps, config.max_norm, config.seed) for config in configs.values()}
    assert optimizer == {(0.9, 0.95, 1e-8, 1.0, 0)}


def test_phoenix_turns_to_nemotron_alone_at_its_absolute_step(configs):
    mixture = configs["phoenix"].mixture
    assert mixture.shares_at(821_999)["dclm_baseline"] == pytest.approx(0.25655, abs=6e-6)
    assert "dclm_baseline" not in mixture.shares_at(822_000)


def test_the_branches_leave_where_the_public_ones_did(configs):
    left = {name: config.start.step.config.until_step for name, config in configs.items() if name not in MAIN_LINE}
    assert left == {
        "cooldown_v2": 740_500,
        "dessert_bad": 820_000,
        "dessert": 820_000,
        "raccoon_soft": 820_000,
        "raccoon_softer": 830_000,
        "spoonbill_hypnotic": 820_000,
        "spoonbill_norms_half": 820_000,
        "spoonbill_norms": 824_525,
        "spoonbill_focused_fp32": 824_525,
        "spoonbill_focused_zloss": 824_525,
        "spoonbill_deeper": 830_000,
    }
