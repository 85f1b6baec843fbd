"""Bits per byte, export and lm-eval of a phase's checkpoint, as the engine runs them."""

import dataclasses
import functools
import hashlib
import json
import logging
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import ValidationError
from tokenizers import Tokenizer

from marin_dag.errors import UserError
from marin_dag.graph.context import ALONE
from marin_dag.graph.inputs import Input
from marin_dag.graph.resources import Cpu, Gpu, Resources, Tpu
from pipelines.compile_programs import scoring_programs
from pipelines.sources import evaluation_items_step
from runtime.data.cache import TokenFormat
from runtime.data.cache_writer import token_cache_writer
from runtime.data.encoding import Encoder
from runtime.evaluation import placed_model
from runtime.evaluation.suites import LAPTOP_TASKS, TaskSpec
from runtime.evaluation.trained_model import TrainedModel
from runtime.model.architectures import DescriptionError
from runtime.model.config import LLAMA2_ROPE, LLAMA3_ROPE
from runtime.optim.ema import Ema
from runtime.parallel.mesh_shape import MeshShape
from runtime.training import checkpoint
from runtime.training.checkpoint_reader import CheckpointError
from steps.download import DownloadedFile, DownloadResult
from steps.ema_eval import EmaEvalConfig, EmaEvalResult, ema_eval
from steps.evaluation_items import EvaluationItemsResult
from steps.hf_export import HfExportConfig, HfExportResult, hf_export
from steps.joined_scores import JoinedScoresConfig, joined_scores
from steps.lm_eval import LmEvalConfig, LmEvalResult, lm_eval
from steps.phase_result import TrainPhaseResult
from steps.tokenize import TokenizeResult
from steps.tokenizer import TokenizerResult
from steps.train_phase import train_phase
from tests.catalogue import check_message, expect_error
from tests.deferred_import import torch, transformers
from tests.runtime.evaluation.own_tasks import write_own_tasks
from tests.runtime.evaluation.rows import NUM_ROWS, task_of, write_files
from tests.runtime.evaluation.test_device_memory import SEVENTY_B
from tests.runtime.interop.small_llama import CONFIG, model, tokenizer_file
from tests.steps.phase_runs import a_phase as a_training
from tests.steps.test_phase_checks_of_tokenizers import OURS, WIDE, tokenized

EOS, BOS = 0, 1
DOCUMENTS = {"animals": ["the quick brown fox", "the lazy dog jumps"] * 40, "words": ["naïve café over the fox"] * 30}


class Attempt:
    """A StepContext."""

    def __init__(self, folder: Path) -> None:
        self.name, self.digest, self.attempt, self.lease_epoch = "a step", "d" * 64, "attempt-1", 1
        self.output_path, self.work_path = f"{folder}/output", f"{folder}/work"
        Path(self.output_path).mkdir(parents=True)
        self.log = logging.getLogger(__name__)
        self.resources: Resources = Cpu(2)
        self.how: dict[str, str] = {}
        self.host = ALONE

    def computed_with(self, **how: str) -> None:
        self.how |= how

    def progress(self, done: int, total: int, unit: str, **figures: float) -> None:
        assert 0 < done <= total

    def files(self) -> dict[str, bytes]:
        root = Path(self.output_path)
        return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def an_input(path: Path | str, result: Any) -> Input[Any]:
    return Input(name="an input", digest="a" * 64, path=str(path), result=result)


def facts(**changes: Any) -> dict[str, Any]:
    """Return the facts that a phase writes about itself; they hold more than the model."""
    described = {"model": dataclasses.asdict(CONFIG), "rope": dataclasses.asdict(LLAMA3_ROPE), "sequence_length": 32}
    return described | {"seed": 1} | changes


def a_phase(folder: Path, *, has_average: bool = True, **metadata: Any) -> Input[TrainPhaseResult]:
    hot = model()
    state = {"params": hot, "mu": hot}
    if has_average:
        scaled = {"averaged": 0.9, "slow": 0.7}.items()
        state["averages"] = {name: jax.tree.map(functools.partial(jnp.multiply, scale), hot) for name, scale in scaled}
    checkpoint.save(f"{folder}/checkpoint", state, {"step": 7, "facts": facts()} | metadata).wait()
    result = TrainPhaseResult(
        step=7, consumed_tokens=7_000, checkpoint="checkpoint", metrics="metrics.parquet", final_loss=1.0,
        averages=(Ema(0.995), Ema(0.9999, "slow")) if has_average else (),
    )  # fmt: skip
    return an_input(folder, result)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Input[TokenizerResult]:
    folder = tmp_path_factory.mktemp("tokenizer")
    content = tokenizer_file(folder / "tokenizer.json").read_bytes()
    vocab_size = Tokenizer.from_str(content.decode()).get_vocab_size()
    result = TokenizerResult(
        tokenizer="tokenizer.json", vocab_size=vocab_size, eos_token_id=EOS, bos_token_id=BOS,
        digest=hashlib.sha256(content).hexdigest(),
    )  # fmt: skip
    return an_input(folder, result)


@pytest.fixture(scope="module")
def caches(tokenizer: Input[TokenizerResult], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Input[Any]]:
    token_format = TokenFormat(
        vocab_size=tokenizer.result.vocab_size, eos_token_id=EOS, bos_token_id=BOS,
        tokenizer_digest=tokenizer.result.digest,
    )  # fmt: skip
    encoder = Encoder(tokenizer.join("tokenizer.json"), token_format)
    inputs = {}
    for domain, texts in DOCUMENTS.items():
        folder = tmp_path_factory.mktemp(domain)
        with token_cache_writer(f"{folder}/validation", token_format, encoder.token_bytes) as writer:
            writer.add(encoder.encode(texts).ids, num_bytes=sum(len(text.encode()) for text in texts))
        counts = dict.fromkeys((name for name in TokenizeResult.model_fields if name.startswith("num_")), 0)
        result = TokenizeResult(
            train="train", validation="validation", vocab_size=token_format.vocab_size, eos_token_id=EOS, **counts
        )
        inputs[domain] = an_input(folder, result)
    return inputs


@pytest.fixture(scope="module")
def phase(tmp_path_factory: pytest.TempPathFactory) -> Input[TrainPhaseResult]:
    return a_phase(tmp_path_factory.mktemp("phase"))


def evaluate(folder: Path, phase: Input[Any], caches: dict[str, Input[Any]], **changes: Any) -> EmaEvalResult:
    config = EmaEvalConfig(phase=phase, caches=caches, **{"max_tokens_per_domain": 640} | changes)
    return ema_eval.function(config, Attempt(folder))


def export(folder: Path, phase: Input[Any], tokenizer: Input[Any], **changes: Any) -> tuple[HfExportResult, Attempt]:
    attempt = Attempt(folder)
    options: dict[str, Any] = {"weights": "averaged", "dtype": "float32", "model_name": "a-model"}
    return hf_export.function(HfExportConfig(phase=phase, tokenizer=tokenizer, **options | changes), attempt), attempt


def score(folder: Path, exported: Input[Any], items: Input[Any], **changes: Any) -> tuple[LmEvalResult, Attempt]:
    attempt = Attempt(folder)
    options = {"tasks": LAPTOP_TASKS, "limit": None} | changes
    options["tasks"] = tuple(task_of(spec) for spec in options["tasks"])
    config = LmEvalConfig(export=exported, items=items, **options)
    return lm_eval.function(config, attempt), attempt


def test_both_sets_of_weights_are_measured_on_every_domain(tmp_path, phase, caches):
    result = evaluate(tmp_path, phase, caches)
    assert (result.step, result.consumed_tokens) == (7, 7_000)
    averaged, _ = result.averages
    assert set(result.hot) == set(averaged.by_domain) == set(DOCUMENTS)
    assert all(result.hot[domain] != averaged.by_domain[domain] for domain in DOCUMENTS)
    assert result.hot_mean == pytest.approx(sum(result.hot.values()) / 2)
    assert averaged.mean == pytest.approx(sum(averaged.by_domain.values()) / 2)
    assert (
        0
        < result.num_tokens["animals"]
        < result.num_bytes["animals"]
        < sum(len(text.encode()) for text in DOCUMENTS["animals"])
    )


def test_every_average_is_measured_or_one_by_its_name_and_the_result_says_which(tmp_path, phase, caches):
    every = evaluate(tmp_path / "every", phase, caches)
    slow = evaluate(tmp_path / "slow", phase, caches, average="slow")
    assert [measured.average for measured in every.averages] == [Ema(0.995), Ema(0.9999, "slow")]
    assert every.averages[1:] == slow.averages and slow.hot == every.hot
    assert every.averages[0].by_domain != every.averages[1].by_domain
    with expect_error(ValueError):
        evaluate(tmp_path / "fast", phase, caches, average="fast")


def test_the_measurement_is_bitwise_repeatable_whatever_the_order_of_the_domains(tmp_path, phase, caches):
    first = evaluate(tmp_path / "first", phase, caches)
    again = evaluate(tmp_path / "again", phase, dict(reversed(caches.items())))
    assert first.model_dump_json() == again.model_dump_json()


def test_a_phase_without_an_average_is_measured_hot_alone(tmp_path, caches):
    result = evaluate(tmp_path / "step", a_phase(tmp_path / "phase", has_average=False), caches)
    assert result.averages == () and set(result.hot) == set(DOCUMENTS)


def test_the_windows_in_a_batch_are_execution_and_change_rounding_at_most(tmp_path, phase, caches):
    first = evaluate(tmp_path / "first", phase, caches)
    other = evaluate(tmp_path / "other", phase, caches, windows_per_batch=3)
    assert other.hot == pytest.approx(first.hot, rel=1e-6)
    assert other.num_bytes == first.num_bytes


def test_kernels_and_blocks_are_logged_and_recorded_with_their_reasons(tmp_path, phase, caches, caplog):
    config = EmaEvalConfig(phase=phase, caches=caches, max_tokens_per_domain=640)
    chosen, asked = Attempt(tmp_path / "chosen"), Attempt(tmp_path / "asked")
    with caplog.at_level(logging.INFO, __name__):
        figures = ema_eval.function(config, chosen)
    assert chosen.how["attention"] == "chunked: query 32" and chosen.how["loss"].startswith("chunked: ")
    output, counted, *_ = [record.getMessage() for record in caplog.records if record.name == __name__]
    check_message(output)
    check_message(counted)
    # Of one identity: what an attempt is asked to compute with is execution, and may not show in what it returns.
    again = ema_eval.function(config.model_copy(update={"attention_kernel": "chunked"}), asked)
    assert asked.how["reason"].endswith(chosen.how["reason"]) and asked.how["reason"] != chosen.how["reason"]
    assert again == figures


def test_a_wrong_loss_kernel_is_logged_and_measures_nothing(tmp_path, phase, caches, caplog, wrong_loss_kernel):
    with caplog.at_level(logging.INFO, __name__), expect_error(RuntimeError):
        evaluate(tmp_path, phase, caches)
    (output,) = [record.getMessage() for record in caplog.records if record.name == __name__]
    check_message(output)


def test_the_rotary_embedding_in_force_at_the_checkpoint_is_the_one_used(tmp_path, phase, caches):
    plain = a_phase(tmp_path / "phase", facts=facts(rope=dataclasses.asdict(LLAMA2_ROPE)))
    assert evaluate(tmp_path / "a", plain, caches).hot != evaluate(tmp_path / "b", phase, caches).hot


def test_a_checkpoint_that_does_not_describe_its_model_is_refused(tmp_path, caches):
    bare = a_phase(tmp_path / "phase", facts={"seed": 1})
    with expect_error(DescriptionError):
        evaluate(tmp_path / "step", bare, caches)


def test_an_export_holds_the_weights_it_says_and_the_card_says_which(tmp_path, phase, tokenizer):
    logits = {}
    tokens = torch.arange(3, 40)[None]
    for weights, decay in (("hot", None), ("averaged", 0.995), ("slow", 0.9999)):
        result, attempt = export(tmp_path / weights, phase, tokenizer, weights=weights)
        folder = Path(attempt.output_path, result.folder)
        theirs = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
        with torch.no_grad():
            logits[weights] = theirs(tokens).logits.numpy()
        ours = np.asarray(TrainedModel.open(phase.join("checkpoint")).params(weights, None).lm_head)
        np.testing.assert_array_equal(theirs.lm_head.weight.detach().numpy().T, ours)
        card = (folder / "README.md").read_text()
        assert f"Weights: **{weights}**" in card and "as last trained" in card
        assert re.findall(r"average of the weights with decay ([\d.]+), not", card) == ([str(decay)] if decay else [])
        training = json.loads((folder / "training.json").read_text())
        assert (training["weights"], training["step"], training["consumed_tokens"]) == (weights, 7, 7_000)
        assert training["average_decay"] == decay
        assert training["sequence_length"] == facts()["sequence_length"]
        assert (result.weights, None if result.average is None else result.average.decay) == (weights, decay)
        assert training["phase_digest"] == "a" * 64
        assert training["num_parameters"] == result.num_parameters == CONFIG.num_parameters
        assert (theirs.config.eos_token_id, theirs.config.bos_token_id) == (EOS, BOS)
        assert set(result.files) == {path.name for path in folder.iterdir()}
        # What the model can take, and not the shorter windows that it was trained in.
        reported = json.loads((folder / "tokenizer_config.json").read_text())
        assert reported["model_max_length"] == CONFIG.max_position_embeddings != facts()["sequence_length"]
    assert np.abs(logits["hot"] - logits["averaged"]).max() > 0.01
    assert np.abs(logits["slow"] - logits["averaged"]).max() > 0.01


def test_an_export_is_stored_in_the_dtype_it_says(tmp_path, phase, tokenizer):
    result, attempt = export(tmp_path, phase, tokenizer, dtype="bfloat16")
    folder = Path(attempt.output_path, result.folder)
    stored = transformers.LlamaForCausalLM.from_pretrained(folder, dtype="auto").dtype
    reported = json.loads((folder / "training.json").read_text())["dtype"]
    assert (str(stored), reported, result.dtype) == ("torch.bfloat16", "bfloat16", "bfloat16")


def test_exporting_twice_commits_the_same_bytes_and_the_same_result(tmp_path, phase, tokenizer):
    first, again = (export(tmp_path / name, phase, tokenizer, max_shard_size_in_bytes=100_000) for name in ("a", "b"))
    assert first[0] == again[0]
    assert first[1].files() == again[1].files()
    assert "model/model.safetensors.index.json" in first[1].files()
    assert str(tmp_path).encode() not in b"".join(first[1].files().values())


def test_asking_for_an_average_that_is_not_there_is_refused(tmp_path, tokenizer):
    hot_only = a_phase(tmp_path / "phase", has_average=False)
    with expect_error(ValueError):
        export(tmp_path / "step", hot_only, tokenizer)


def test_a_torn_checkpoint_is_not_exported(tmp_path, tokenizer):
    torn = a_phase(tmp_path / "phase")
    victim = min(path for path in Path(torn.path).rglob("c.*") if "averages.averaged" in str(path))
    victim.write_bytes(victim.read_bytes()[:-1])
    with expect_error(CheckpointError):
        export(tmp_path / "step", torn, tokenizer)


@pytest.fixture(scope="module")
def exported(phase, tokenizer, tmp_path_factory) -> Input[HfExportResult]:
    result, attempt = export(tmp_path_factory.mktemp("export"), phase, tokenizer)
    return an_input(attempt.output_path, result)


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> Input[EvaluationItemsResult]:
    folder = tmp_path_factory.mktemp("items")
    scored, fewshot = ({name: Path(path).name for name, path in mapping.items()} for mapping in write_files(folder)[:2])
    num_items = dict.fromkeys(scored, NUM_ROWS)
    return an_input(
        folder,
        EvaluationItemsResult(
            files=scored, fewshot_files=fewshot, num_items=num_items, ngram_index="none", num_ngrams=0
        ),
    )


def test_the_exported_folder_is_scored_on_every_laptop_task(tmp_path, exported, items):
    result, attempt = score(tmp_path, exported, items)
    assert {task_score.task for task_score in result.scores} == {spec.task for spec in LAPTOP_TASKS}
    assert (result.weights, result.step, result.consumed_tokens) == ("averaged", 7, 7_000)
    assert result.average == Ema(0.995)
    samples = [json.loads(line) for line in attempt.files()["samples.jsonl"].splitlines()]
    assert {sample["task"] for sample in samples} == {task_of(spec).label for spec in LAPTOP_TASKS}
    assert max(sample["doc_id"] for sample in samples) == 4
    assert LmEvalResult.model_validate_json(result.model_dump_json()) == result
    assert attempt.how["attention"].startswith("chunked: ") and "loss" not in attempt.how


def test_scoring_twice_commits_the_same_bytes_and_the_same_result(tmp_path, exported, items):
    tasks = (TaskSpec("arc_easy", 2), TaskSpec("mmlu", 2), TaskSpec("hellaswag"))
    first, again = (score(tmp_path / name, exported, items, tasks=tasks, limit=4) for name in ("a", "b"))
    assert first[0].model_dump_json() == again[0].model_dump_json()
    assert first[1].files() == again[1].files()
    assert {task.task: task.num_items for task in first[0].scores} == {"arc_easy": 4, "mmlu": 12, "hellaswag": 4}


def test_scores_are_computed_in_the_dtype_that_is_asked_for(tmp_path, exported, items):
    def responses(dtype: str) -> np.ndarray:
        _, attempt = score(tmp_path / dtype, exported, items, tasks=(TaskSpec("piqa"),), limit=2, compute_dtype=dtype)
        samples = [json.loads(line) for line in attempt.files()["samples.jsonl"].splitlines()]
        return np.array([response[0][0] for sample in samples for response in sample["responses"]])

    wide, narrow = responses("float32"), responses("bfloat16")
    np.testing.assert_allclose(narrow, wide, rtol=0.1)
    assert np.abs(narrow - wide).max() > 1e-3


def downloaded(folder: Path, *names: str) -> Input[DownloadResult]:
    files = [DownloadedFile(path=name, name=name, sha256="0" * 64, size_in_bytes=1) for name in names]
    return an_input(folder, DownloadResult(files=tuple(files)))


def test_tasks_of_ones_own_are_scored_and_their_scores_joined_with_the_others(tmp_path, exported, items):
    own = write_own_tasks(tmp_path / "own")
    group = LmEvalConfig(
        export=exported, own_items=downloaded(own / "items", "foxes.jsonl", "dogs.jsonl"),
        own_definitions=downloaded(own, "animals.yaml", "dogs.yaml", "foxes.yaml", "_template", "rows.py"),
        tasks=(task_of(TaskSpec(str(own / "animals.yaml"), items="items")),), limit=None,
    )  # fmt: skip
    part = Attempt(tmp_path / "own-step")
    animals = lm_eval.function(group, part)
    assert {(score.task, score.num_items) for score in animals.scores} == {("animals", 12)}
    piqa, other = score(tmp_path / "piqa", exported, items, tasks=(TaskSpec("piqa"),))
    parts = {"own": an_input(part.output_path, animals), "piqa": an_input(other.output_path, piqa)}
    joining = Attempt(tmp_path / "joined")
    found = joined_scores.function(JoinedScoresConfig(export=exported, parts=parts, order=("piqa", "own")), joining)
    assert found == piqa.model_copy(update={"scores": (*piqa.scores, *animals.scores)})
    samples = other.files()["samples.jsonl"] + part.files()["samples.jsonl"]
    assert joining.files()["samples.jsonl"] == samples
    with expect_error(UserError):
        lm_eval.function(
            group.model_copy(update={"own_items": downloaded(own / "items", "dogs.jsonl", "a.jsonl")}), part
        )


def test_rows_come_from_a_step_or_from_files_and_not_from_both(exported, items):
    tasks, files = (task_of(TaskSpec("piqa")),), downloaded(Path(), "piqa.jsonl")
    for given in ({}, {"items": items, "own_items": files}):
        with expect_error(ValueError):
            lm_eval.check(LmEvalConfig(export=exported, tasks=tasks, limit=None, **given))


def test_weights_lie_on_the_device_as_they_are_stored(tmp_path, phase, tokenizer, items, monkeypatch):
    """Widened weights of an 8B would take all memory."""
    result, attempt = export(tmp_path / "export", phase, tokenizer, dtype="bfloat16")
    found = []

    def placed(params: Any, *_: Any, **__: Any) -> None:
        found.extend({leaf.dtype.name for leaf in jax.tree.leaves(params)})
        raise InterruptedError

    monkeypatch.setattr(placed_model, "PlacedModel", placed)
    with pytest.raises(InterruptedError):
        score(tmp_path, an_input(attempt.output_path, result), items)
    assert found == ["bfloat16"]


def test_a_limit_of_one_item_and_an_empty_list_of_tasks_are_refused(exported, items):
    with expect_error(ValidationError):
        LmEvalConfig(export=exported, items=items, tasks=(task_of(LAPTOP_TASKS[0]),), limit=1)
    with expect_error(ValidationError):
        LmEvalConfig(export=exported, items=items, tasks=(), limit=None)


def test_a_plan_refuses_tasks_of_which_the_package_has_no_items_and_one_asked_for_twice(exported, items):
    package = evaluation_items_step()

    def scoring(*tasks: TaskSpec, of: Any = package) -> None:
        config = LmEvalConfig(export=exported, items=of, tasks=tuple(map(task_of, tasks)), limit=None)
        lm_eval.check(config)

    scoring(*LAPTOP_TASKS, TaskSpec("mmlu", 5), TaskSpec("mmlu"))
    with expect_error(ValueError):
        scoring(TaskSpec("wsc273"), TaskSpec("piqa"), TaskSpec("lambada_openai"))
    scoring(TaskSpec("wsc273"), of=items)
    with expect_error(ValueError):
        scoring(TaskSpec("piqa"), TaskSpec("boolq"), TaskSpec("piqa", 0), of=items)


def test_a_plan_refuses_answers_that_leave_no_room_for_a_prompt(items):
    def scoring(context: int, *tasks: TaskSpec) -> None:
        model = dataclasses.replace(WIDE, max_position_embeddings=context)
        phase = train_phase("phase", a_training(tokenized(OURS, "web"), model=model))
        writing = HfExportConfig(phase=phase, tokenizer=OURS, weights="hot", dtype="float32", model_name="a-model")
        named = tuple(map(task_of, tasks))
        lm_eval.check(LmEvalConfig(export=hf_export("an_export", writing), items=items, tasks=named, limit=None))

    scoring(257, TaskSpec("nq_open"), TaskSpec("gsm8k_cot", 8))
    scoring(256, TaskSpec("piqa"), TaskSpec("mmlu"))
    with expect_error(ValueError):
        scoring(256, TaskSpec("nq_open"), TaskSpec("piqa"), TaskSpec("gsm8k_cot", 8))


def test_scores_of_conversations_need_a_model_with_a_chat_template(tmp_path, exported, items, monkeypatch):
    _, scoring = exported_and_scored(items)
    with expect_error(ValueError):
        lm_eval.check(scoring.model_copy(update={"apply_chat_template": True}))
    monkeypatch.setattr(placed_model, "PlacedModel", None)  # not a model on devices before the error
    with expect_error(UserError):
        score(tmp_path, exported, items, tasks=(TaskSpec("piqa"),), limit=2, apply_chat_template=True)


def exported_and_scored(items, **changes: int) -> tuple[HfExportConfig, LmEvalConfig]:
    """Return the configs of an export and its scores, of a phase that is only planned."""
    phase = train_phase("phase", a_training(tokenized(OURS, "web"), model=dataclasses.replace(WIDE, **changes)))
    writing = HfExportConfig(phase=phase, tokenizer=OURS, weights="hot", dtype="float32", model_name="a-model")
    tasks = (task_of(TaskSpec("piqa")),)
    return writing, LmEvalConfig(export=hf_export("an_export", writing), items=items, tasks=tasks, limit=None)


def test_a_plan_refuses_several_hosts_for_an_export_and_not_for_scores(items):
    writing, scoring = exported_and_scored(items)
    for machines in (Tpu("v4-2048"), Cpu(2, num_hosts=2)):
        lm_eval.check_on(scoring, machines)
        with expect_error(ValueError):
            hf_export.check_on(writing, machines)
    for machines in (Cpu(2), Gpu("H200", 8), Tpu("v6e-8")):
        hf_export.check_on(writing, machines)


def test_a_plan_refuses_chips_that_cannot_share_a_model_too_large_for_one(items):
    _, scoring = exported_and_scored(items, hidden_size=20_004, intermediate_size=400_000)
    lm_eval.check_on(scoring, Cpu(2))
    with expect_error(ValueError):
        lm_eval.check_on(scoring, Tpu("v6e-8"))


def test_a_70b_in_bfloat16_is_planned_for_eight_chips_with_all_that_they_hold_and_refused_in_float32(items):
    phase = train_phase("phase", a_training(tokenized(OURS, "web"), model=SEVENTY_B))
    found = {}
    for dtype in ("bfloat16", "float32"):
        writing = HfExportConfig(phase=phase, tokenizer=OURS, weights="hot", dtype=dtype, model_name="large")
        tasks = (task_of(TaskSpec("piqa")), task_of(TaskSpec("gsm8k")))
        config = LmEvalConfig(
            export=hf_export(dtype, writing), items=items, tasks=tasks, limit=None, compute_dtype="bfloat16"
        )
        found[dtype] = lm_eval("scores", config, resources=Tpu("v6e-8"))
    lm_eval.check_on(found["bfloat16"].config, Tpu("v6e-8"))
    score, prefill, decode = scoring_programs(found["bfloat16"])
    assert {each.layout.shape for each in (score, prefill, decode)} == {MeshShape(data=8)}
    assert (score.step, score.global_batch_size, score.sequence_length) == ("score", 8, 8_192)
    assert [(each.step, each.global_batch_size, each.sequence_length) for each in (prefill, decode)] == [
        ("prefill", 8 * 2, 8_192), ("decode", 8 * 2, 8_192),
    ]  # fmt: skip
    with expect_error(ValueError):
        lm_eval.check_on(found["float32"].config, Tpu("v6e-8"))
    lm_eval.check_on(found["float32"].config, Tpu("v6e-16"))


def test_a_plan_refuses_texts_for_chips_that_the_parameters_fill(items):
    phase = train_phase(
        "phase", a_training(tokenized(OURS, "web"), model=dataclasses.replace(SEVENTY_B, num_hidden_layers=74))
    )
    writing = HfExportConfig(phase=phase, tokenizer=OURS, weights="hot", dtype="float32", model_name="large")

    def scoring(task: str) -> None:
        tasks = (task_of(TaskSpec(task)),)
        lm_eval.check_on(
            LmEvalConfig(export=hf_export("export", writing), items=items, tasks=tasks, limit=None), Tpu("v6e-8")
        )

    scoring("piqa")
    with expect_error(ValueError):
        scoring("gsm8k")


@pytest.mark.parametrize("kind", [ema_eval, lm_eval])
def test_whatever_computes_logits_names_the_library_that_computes_them(kind):
    assert "jax" in kind.packages
