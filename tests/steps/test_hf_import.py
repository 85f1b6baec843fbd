"""An import: the very weights of a folder in Hugging Face's format, for a phase to start from, or an error."""

import argparse
import dataclasses
import functools
import json
import shlex
import shutil
import tracemalloc
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lm_eval.api.instance import Instance
from tokenizers import Tokenizer

from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.graph.inputs import Input
from marin_dag.graph.resources import Tpu
from marin_dag.graph.step import Step
from marin_dag.plan.config_checks import check_configs
from marin_dag.store.prefix import open_store
from marin_dag.values.changes import changed, text_change
from pipelines.sample_command import write_texts
from runtime.data.sampler import DataPosition
from runtime.evaluation.item_scores import ITEM_SCORES
from runtime.evaluation.suites import TaskSpec
from runtime.evaluation.trained_model import TrainedModel
from runtime.interop.huggingface import SpecialTokens, state_dict, write_model
from runtime.interop.huggingface_config import read_json
from runtime.model.architectures import config_from_huggingface
from runtime.model.config import LLAMA2_ROPE, LLAMA3_ROPE, Rope
from runtime.model.huggingface import InteropError
from runtime.model.llama.config import LlamaConfig
from runtime.training import checkpoint_reader
from runtime.training.checkpoint_reader import CheckpointError
from steps.download import DownloadConfig, download
from steps.ema_eval import EmaEvalConfig, ema_eval
from steps.evaluation_items import EvaluationItemsResult
from steps.fetch import HuggingFaceModel, files_in, model_in
from steps.hf_export import HfExportConfig, hf_export
from steps.hf_import import HfImportConfig, hf_import
from steps.input_tokenizer import HubTokenizer, InputTokenizerConfig, input_tokenizer, local_tokenizer
from steps.lm_eval import SAMPLES_FILE, LmEvalConfig, lm_eval
from steps.phase_data import loader_of
from steps.phase_result import TrainPhaseResult
from steps.sample import SampleConfig, sample
from steps.tokenize import TokenizeConfig, tokenize
from steps.train_phase import train_phase
from tests.catalogue import expect_error
from tests.deferred_import import DeferredModule, torch, transformers
from tests.pipelines.committed import commit
from tests.runtime.evaluation.rows import task_of, write_files
from tests.runtime.interop.small_llama import CONFIG, model, tokenizer_file
from tests.steps.phase_runs import SEQUENCE_LENGTH, Attempt, Trajectory, a_phase, cache_of
from tests.steps.text_steps import WrittenConfig, written

their_adapter = DeferredModule("lm_eval.models.huggingface")
pytestmark = pytest.mark.usefixtures("use_devices")
Import = Callable[..., Input[TrainPhaseResult]]
END = {"eos_token": "<|end_of_text|>", "bos_token": "<|begin_of_text|>"}
SHORT = {"sequence_length": SEQUENCE_LENGTH}


def write_folder(
    folder: Path, dtype: str = "float32", config: LlamaConfig = CONFIG, rope: Rope = LLAMA2_ROPE, **shards: int
) -> Path:
    special = SpecialTokens(eos_token_id=0, bos_token_id=None)
    write_model(str(folder), model(config), config, rope, special, dtype=dtype, **shards)  # type: ignore[arg-type]
    tokenizer_file(folder / "tokenizer.json")
    return folder


@pytest.fixture
def imported(run_alone: Any) -> Import:
    """`imported(folder, ...)` -> what the step makes of it; other arguments are fields of its config."""

    def run(folder: Path, tokenizer_folder: Path | None = None, **changes: Any) -> Input[TrainPhaseResult]:
        fetched = run_alone(download, DownloadConfig(fetch=model_in(str(folder))), "download")
        source = local_tokenizer(str(tokenizer_folder or folder))
        tokenizer = run_alone(input_tokenizer, InputTokenizerConfig(tokenizer=source, bos_token=None), "tokenizer")
        fields = {"download": fetched, "tokenizer": tokenizer, "model": CONFIG, "rope": LLAMA2_ROPE, **SHORT}
        return run_alone(hf_import, HfImportConfig(**fields | changes), "import")

    return run


def assert_same_weights(phase: Input[TrainPhaseResult], folder: Path) -> None:
    """Assert that every tensor is, bit for bit, what `transformers` reads from the folder, in float32."""
    trained = TrainedModel.open(phase.join(phase.result.checkpoint))
    ours = dict(state_dict(trained.description.config.build(), trained.params("hot", None)))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert set(ours) <= set(theirs)
    for name, value in ours.items():
        np.testing.assert_array_equal(value.view(np.uint32), theirs[name].float().numpy().view(np.uint32), name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("is_tied", "use_qk_norm"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("chunk_in_bytes", [2_000, 20_000, 64 * 2**20], ids=["rows", "layers", "whole"])
def test_the_weights_are_bit_for_bit_those_of_the_folder(
    tmp_path, imported, monkeypatch, dtype, is_tied, use_qk_norm, chunk_in_bytes
):
    monkeypatch.setattr(checkpoint_reader, "MAX_CHUNK_IN_BYTES", chunk_in_bytes)
    config = dataclasses.replace(CONFIG, tie_word_embeddings=is_tied, use_qk_norm=use_qk_norm)
    folder = write_folder(tmp_path / "folder", dtype, config)
    phase = imported(folder, model=config)
    assert_same_weights(phase, folder)
    assert (phase.result.step, phase.result.consumed_tokens, phase.result.averages) == (0, 0, ())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_many_files_that_transformers_wrote_are_one_model(tmp_path, imported, dtype):
    ours = write_folder(tmp_path / "ours")
    theirs = transformers.LlamaForCausalLM.from_pretrained(ours, dtype=getattr(torch, dtype))
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="40KB")
    shutil.copy(ours / "tokenizer.json", tmp_path / "theirs")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 3
    assert_same_weights(imported(tmp_path / "theirs"), tmp_path / "theirs")


def test_the_first_loss_of_a_phase_is_that_of_transformers_on_the_same_batch(tmp_path, imported):
    folder = write_folder(tmp_path / "folder")
    cache = cache_of(tmp_path / "cache", "web", last_id=32)
    config = a_phase(cache, start=imported(folder), restore="weights", model=CONFIG, until_step=2)
    trajectory = Trajectory(tmp_path / "phase", "e" * 64)
    trajectory.run(config)

    theirs = transformers.LlamaForCausalLM.from_pretrained(folder)
    loader = loader_of(config, Attempt(trajectory, None))
    batch, _ = loader.batch(DataPosition(), 0, config.global_batch_size)
    losses = []
    for tokens, segment_ids in zip(batch.tokens, batch.segment_ids, strict=True):
        for document in np.unique(segment_ids):  # no token of ours attends to another document
            ids = torch.from_numpy(tokens[segment_ids == document].astype(np.int64))[None]
            if ids.shape[1] > 1:
                with torch.no_grad():
                    logits = theirs(ids).logits[0, :-1]
                losses += torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none").tolist()
    first = trajectory.metrics(2)[0]
    assert first.num_targets == len(losses)
    assert first.loss == pytest.approx(np.mean(losses), abs=1e-5)
    assert first.loss > np.log(CONFIG.vocab_size) + 0.1, "weights that know nothing would give the logarithm"
    begin = next(event for event in trajectory.events() if event["event"] == "start")
    assert (begin["step"], begin["consumed_tokens"], begin["restore"]) == (0, 0, "weights")
    assert (first.step, first.consumed_tokens) == (1, config.global_batch_size * SEQUENCE_LENGTH)


def test_state_missing_from_an_import_is_refused_by_the_phase_too(tmp_path, imported):
    cache = cache_of(tmp_path / "cache", "web", last_id=32)
    start = imported(write_folder(tmp_path / "folder"))
    with expect_error(CheckpointError):
        Trajectory(tmp_path / "phase", "e" * 64).run(a_phase(cache, start=start, model=CONFIG))


def test_an_import_holds_one_tensor_at_a_time(tmp_path, imported, monkeypatch):
    monkeypatch.setattr(checkpoint_reader, "MAX_CHUNK_IN_BYTES", 100_000)
    config = dataclasses.replace(CONFIG, hidden_size=256, intermediate_size=1024, num_hidden_layers=12)
    folder = write_folder(tmp_path / "folder", config=config)
    tracemalloc.start()
    try:
        start = imported(folder, model=config)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    largest = 4 * config.hidden_size * config.intermediate_size
    assert 4 * config.num_parameters > 40e6
    assert peak < 5 * largest + 12e6, "the download copies pieces of 8 MiB, the import a tensor and eight chunks"
    assert_same_weights(start, folder)


def damaged_file(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])


def missing_shard(folder: Path) -> None:
    shutil.rmtree(folder)
    write_folder(folder, max_shard_size_in_bytes=50_000)
    sorted(folder.glob("model-*.safetensors"))[1].unlink()


def other_weights(folder: Path) -> None:
    shallow = dataclasses.replace(CONFIG, num_hidden_layers=2)
    write_folder(folder, config=shallow)
    write_config(folder)


def write_config(folder: Path, **changes: Any) -> None:
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(document | {"num_hidden_layers": CONFIG.num_hidden_layers} | changes)
    )


def torn_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "llama", "hid')


def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def a_nan(folder: Path, value: float = np.nan) -> None:
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-4:] = np.float32(value).tobytes()
    weights.write_bytes(data)


def an_infinity(folder: Path) -> None:
    a_nan(folder, -np.inf)


@pytest.mark.parametrize(
    "damage",
    [damaged_file, missing_shard, other_weights, torn_config, no_tokenizer, a_nan, an_infinity],
    ids=lambda value: value.__name__,
)
def test_a_torn_folder_is_an_error_that_names_the_file(tmp_path, imported, damage):
    whole, folder = write_folder(tmp_path / "whole"), write_folder(tmp_path / "folder")
    damage(folder)
    with expect_error(InteropError):
        imported(folder, tokenizer_folder=whole)
    assert not list((tmp_path / "outputs/import").rglob("manifest.json"))


def test_a_model_that_the_recipe_says_otherwise_is_refused_field_by_field_with_what_to_write(tmp_path, imported):
    folder = write_folder(tmp_path / "folder")
    output = dataclasses.replace(CONFIG, intermediate_size=128, rms_norm_eps=1e-6)
    with expect_error(InteropError) as refused:
        imported(folder, model=output, rope=LLAMA3_ROPE)
    _, *lines, cure = str(refused.value).splitlines()
    fields = [line.split()[0] for line in lines]
    assert fields == ["model.intermediate_size", "model.rms_norm_eps", "rope.rope_theta", "rope.scaling"]
    options = shlex.split(cure[cure.index("--set") :])
    phase = with_options(phase_on(model=output, rope=LLAMA3_ROPE), options, "PHASE").config
    assert (phase.model, phase.rope) == (CONFIG, LLAMA2_ROPE)


def test_a_phase_writes_only_what_differs_from_the_import(tmp_path, imported):
    folder = write_folder(tmp_path / "folder")
    with expect_error(InteropError) as refused:
        imported(folder, model=dataclasses.replace(CONFIG, rms_norm_eps=1e-6))
    assert str(refused.value).splitlines()[-1].endswith(": --set PHASE.model.rms_norm_eps=1e-05")


def test_a_rope_that_is_right_is_not_refused_beside_a_context_that_is_wrong(tmp_path, imported):
    assert CONFIG.max_position_embeddings < 8192  # so that an export says the scaling in numbers of its own
    folder = write_folder(tmp_path / "folder", rope=LLAMA3_ROPE)
    output = dataclasses.replace(CONFIG, max_position_embeddings=64)
    with expect_error(InteropError) as refused:
        imported(folder, model=output, rope=LLAMA3_ROPE)
    (line,) = [line for line in str(refused.value).splitlines() if line.startswith("  ")]
    assert line.startswith("  model.max_position_embeddings is 64 in the recipe")


def test_a_tokenizer_whose_ids_mean_other_text_is_refused_and_one_that_only_adds_another_beginning_is_not(
    tmp_path, imported
):
    folder = write_folder(tmp_path / "folder")
    other = tmp_path / "other"
    other.mkdir()
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    a, b = (next(text for text, number in tokenizer["model"]["vocab"].items() if number == wanted) for wanted in (9, 7))
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with expect_error(InteropError):
        imported(folder, tokenizer_folder=other)

    shutil.rmtree(tmp_path / "outputs")
    shutil.copy(folder / "tokenizer.json", other)
    kept = Tokenizer.from_file(str(other / "tokenizer.json"))
    kept.enable_truncation(100)
    kept.save(str(other / "tokenizer.json"))
    assert (other / "tokenizer.json").read_bytes() != (folder / "tokenizer.json").read_bytes()
    imported(folder, tokenizer_folder=other)


def test_a_tokenizer_with_more_ids_than_the_model_has_rows_is_refused(tmp_path, imported):
    num_ids = Tokenizer.from_file(str(tokenizer_file(tmp_path / "tokenizer.json"))).get_vocab_size()
    config = dataclasses.replace(CONFIG, vocab_size=num_ids - 1)
    with expect_error(InteropError):
        imported(write_folder(tmp_path / "folder", config=config), model=config)


def test_an_id_that_one_of_two_tokenizers_lacks_means_other_text(tmp_path, imported):
    folder, larger = write_folder(tmp_path / "folder"), write_folder(tmp_path / "larger")
    tokenizer = Tokenizer.from_file(str(larger / "tokenizer.json"))
    tokenizer.add_tokens(["another"])
    tokenizer.save(str(larger / "tokenizer.json"))
    for of_weights, of_text in ((folder, larger), (larger, folder)):
        with expect_error(InteropError):
            imported(of_weights, tokenizer_folder=of_text)
        shutil.rmtree(tmp_path / "outputs")
    added = {"added_tokens_decoder": {str(tokenizer.token_to_id("another")): {"content": "another"}}}
    (folder / "tokenizer_config.json").write_text(json.dumps(added))
    assert imported(folder).result.step == 0


REPO, REVISION = "someone/llama", "0123456789abcdef0123456789abcdef01234567"
TOKENIZER, OTHER = (
    input_tokenizer(name, InputTokenizerConfig(tokenizer=HubTokenizer(repo=REPO, revision=revision), eos_token="</s>"))
    for name, revision in (("tokenizer", REVISION), ("other", "f" * 40))
)
FETCHED = download("download/llama", DownloadConfig(fetch=HuggingFaceModel(repo=REPO, revision=REVISION)))
START = hf_import(
    "llama", HfImportConfig(download=FETCHED, tokenizer=TOKENIZER, model=CONFIG, rope=LLAMA2_ROPE, **SHORT)
)


DOCUMENTS = written("documents", WrittenConfig(shards=(("A text.",),)))


@functools.cache
def cache_under(tokenizer: Step[Any]) -> Step[Any]:
    return tokenize("web", TokenizeConfig(documents=DOCUMENTS, tokenizer=tokenizer, validation_share=0.1))


def phase_on(**changes: Any) -> Step[Any]:
    fields = {"start": START, "restore": "weights", "model": CONFIG} | changes
    return train_phase("base", a_phase(fields.pop("cache", cache_under(TOKENIZER)), **fields))


def test_a_phase_and_what_follows_it_are_planned_before_anything_is_downloaded():
    base = phase_on()
    cooldown = base.then("cooldown", until_step=16)
    of_import = ema_eval(
        "ema_eval/llama", EmaEvalConfig(phase=START, caches={"web": cache_under(TOKENIZER)}, max_tokens_per_domain=16)
    )
    check_configs(Graph([cooldown, of_import]).steps)
    check_configs(Graph([phase_on(rope=LLAMA3_ROPE, acknowledge=("rope",))]).steps)
    assert (base.config.begin_step, cooldown.config.restore) == (0, "everything")


@pytest.mark.parametrize(
    "changes",
    [
        *({"restore": restore} for restore in ("everything", "everything_but_optimizer", "weights_and_optimizer")),
        {"model": dataclasses.replace(CONFIG, hidden_size=64)},
        {"rope": LLAMA3_ROPE},
        {"cache": cache_under(OTHER)},
    ],
)
def test_a_phase_that_an_import_cannot_begin_is_refused_while_planned(changes):
    with expect_error(UserError):
        check_configs(Graph([phase_on(**changes)]).steps)


def with_options(step: Step[Any], options: list[str], name: str = "base") -> Step[Any]:
    settings = [option.removeprefix(f"{name}.").partition("=") for option in options[1::2]]
    changes = [text_change(field, text) for field, _, text in settings]
    return dataclasses.replace(step, config=changed(step.config, changes, owner=name))


def test_all_that_a_phase_says_otherwise_than_its_import_is_refused_at_once_with_one_line_to_type():
    other = dataclasses.replace(CONFIG, num_attention_heads=9, num_key_value_heads=9)
    base = phase_on(model=other, rope=LLAMA3_ROPE, restore="everything")
    with expect_error(UserError) as refused:
        check_configs(Graph([base]).steps)
    *problems, line = str(refused.value).splitlines()
    assert [problem.removeprefix("base: ").split(" is ")[0] for problem in problems] == [
        "restore",
        "model.num_attention_heads",
        "rope",
    ]
    options = shlex.split(line.removeprefix("On the command line: "))
    assert options[::2] == ["--set"] * 3
    fixed = with_options(base, options)
    check_configs([fixed])
    assert (fixed.config.model, fixed.config.rope) == (CONFIG, LLAMA2_ROPE)
    assert fixed.config.acknowledge == base.config.acknowledge, "what is pasted switches no guard off"


def test_evaluations_and_exports_of_an_import_are_held_against_it():
    caches = {"web": cache_under(OTHER)}
    with expect_error(UserError):
        check_configs([ema_eval("e", EmaEvalConfig(phase=START, caches=caches, max_tokens_per_domain=16))])
    config = HfExportConfig(phase=START, tokenizer=TOKENIZER, weights="averaged", dtype="float32", model_name="toy")
    with expect_error(UserError):
        check_configs([hf_export("x", config)])
    caches = {"web": cache_under(TOKENIZER)}
    short = ema_eval("e", EmaEvalConfig(phase=START, caches=caches, max_tokens_per_domain=15))
    with expect_error(UserError):
        check_configs([short])
    wide = ema_eval(
        "e",
        EmaEvalConfig(phase=START, caches=caches, max_tokens_per_domain=16),
        resources=Tpu("v4-2048"),
    )
    with expect_error(UserError):
        check_configs([wide])
    too_long, longest = (START.config.model_copy(update={"sequence_length": length}) for length in (257, 256))
    check_configs([hf_import("longest", longest)])
    with expect_error(UserError):
        check_configs([dataclasses.replace(START, config=too_long)])


def test_a_plan_refuses_a_gang_since_each_host_would_write_the_same_files():
    gang = hf_import("llama", START.config, resources=Tpu("v4-16"))
    with expect_error(UserError):
        check_configs([gang])
    check_configs([hf_import("llama", START.config, resources=Tpu("v4-8"))])


def test_a_plan_holds_the_recipe_against_the_config_json_of_a_local_folder(tmp_path):
    folder = write_folder(tmp_path / "folder")
    step = download("d", DownloadConfig(fetch=model_in(str(folder))))
    fields = START.config.model_copy(update={"download": step.as_input()})
    check_configs([hf_import("llama", fields)])
    wide = hf_import("llama", fields.model_copy(update={"model": dataclasses.replace(CONFIG, vocab_size=2048)}))

    with expect_error(UserError):
        check_configs([wide])
    (folder / "config.json").unlink()
    check_configs([wide])


def test_a_folders_place_is_not_identity_of_an_import(tmp_path):
    first, second = write_folder(tmp_path / "a"), write_folder(tmp_path / "b")
    digests = {
        hf_import("llama", START.config.model_copy(update={"download": step.as_input()})).digest
        for step in (download("d", DownloadConfig(fetch=model_in(str(folder)))) for folder in (first, second))
    }
    assert len(digests) == 1
    (second / "README.md").write_text("of no account")
    assert {file.name for file in model_in(str(second)).files} == {"config.json", "tokenizer.json", "model.safetensors"}
    assert files_in(str(second), "*").files != model_in(str(second)).files


def test_a_missing_folder_is_an_error_that_names_it(tmp_path):
    for asked in (model_in, local_tokenizer):
        with expect_error(UserError):
            asked(str(tmp_path / "nowhere"))


SCALED = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
FOREIGN = {
    "llama": ("Llama", {}),
    "llama, grouped, tied, scaled rotary": (
        "Llama",
        {"num_key_value_heads": 2, "tie_word_embeddings": True, "rope_parameters": SCALED},
    ),
    "llama, one head of keys, bfloat16": ("Llama", {"num_key_value_heads": 1, "dtype": "bfloat16"}),
    "qwen3, grouped": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 24}),
    "qwen3, tied": ("Qwen3", {"num_key_value_heads": 4, "head_dim": 16, "tie_word_embeddings": True}),
}
"""Models that `transformers` makes: class, and settings beside `SMALL`."""
SMALL = {
    "vocab_size": 320, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 128, "initializer_range": 0.3, "eos_token_id": 0, "bos_token_id": None,
}  # fmt: skip


def write_foreign(folder: Path, kind: str, **settings: Any) -> Path:
    """Write a random model and a tokenizer with `transformers`."""
    config = getattr(transformers, f"{kind}Config")(**SMALL | settings)
    torch.manual_seed(0)
    made = getattr(transformers, f"{kind}ForCausalLM")(config)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "norm" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))  # norms that are not all one
    made.to(getattr(torch, settings.get("dtype", "float32"))).save_pretrained(folder)
    source = str(tokenizer_file(folder / "source.json"))
    transformers.PreTrainedTokenizerFast(tokenizer_file=source, eos_token=END["eos_token"]).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("foreign", FOREIGN)
def test_a_model_of_transformers_scores_as_by_lm_evals_own_adapter_before_its_import_and_after_its_export(
    tmp_path, imported, run_alone, foreign
):
    kind, settings = FOREIGN[foreign]
    folder = write_foreign(tmp_path / "folder", kind, **settings)
    config, rope = config_from_huggingface(read_json(f"{folder}/config.json"), f"{folder}/config.json")
    files = write_files(tmp_path / "items")
    found = EvaluationItemsResult(
        files={name: Path(path).name for name, path in files.scored.items()}, fewshot_files={},
        num_items=dict.fromkeys(files.scored, 4), ngram_index="", num_ngrams=0,
    )  # fmt: skip
    items = Input(name="items", digest="a" * 64, path=str(tmp_path / "items"), result=found)
    phase = imported(folder, model=config, rope=rope)
    source = local_tokenizer(str(folder))
    tokenizer = run_alone(input_tokenizer, InputTokenizerConfig(tokenizer=source, bos_token=None), "own tokenizer")
    dtype = settings.get("dtype", "float32")
    writing = HfExportConfig(phase=phase, tokenizer=tokenizer, weights="hot", dtype=dtype, model_name="again")
    fetched = run_alone(download, DownloadConfig(fetch=model_in(str(folder))), "fetched")
    again = run_alone(hf_export, writing, "again")
    scored = []
    for name, model_of in (("fetched", fetched), ("again", again)):
        tasks = (task_of(TaskSpec("arc_easy")), task_of(TaskSpec("lambada_openai")))
        done = run_alone(lm_eval, LmEvalConfig(export=model_of, items=items, tasks=tasks, limit=4), f"scores of {name}")
        scored.append((done.result, Path(done.join(ITEM_SCORES)).read_bytes(), Path(done.join(SAMPLES_FILE))))
    assert scored[0][:2] == scored[1][:2] and len(scored[0][0].scores) == 4
    samples = [json.loads(line) for line in scored[1][2].read_text().splitlines()]
    assert scored[0][2].read_text() == scored[1][2].read_text()
    requests = [arguments for sample in samples for arguments in sample["requests"]]
    answers = [(float(value), flag) for sample in samples for ((value, flag),) in sample["responses"]]
    for place in (folder, again.join("model")):
        for (value, flag), (theirs, their_flag) in zip(answers, their_answers(place, requests), strict=True):
            assert (value, flag) == (pytest.approx(theirs, abs=1e-3), their_flag)


def their_answers(folder: Path | str, requests: list[list[str]]) -> list[tuple[float, bool]]:
    """Return the log-likelihoods of lm-eval's own adapter."""
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    adapter = their_adapter.HFLM(pretrained=theirs, tokenizer=tokenizer, batch_size=8, device="cpu")
    asked = [Instance("loglikelihood", {}, tuple(pair), 0, metadata=("task", 0, 1)) for pair in requests]
    return adapter.loglikelihood(asked, disable_tqdm=True)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        *((kind, {}) for kind in ("Mistral", "Mixtral", "Qwen2", "Qwen3Moe", "Gemma2", "Olmo2", "GPT2")),
        ("Llama", {"quantization_config": {"quant_method": "fp8"}}),
    ],
    ids=str,
)
def test_a_model_that_cannot_be_represented_is_refused_by_name(tmp_path, kind, settings):
    getattr(transformers, f"{kind}Config")(**settings).save_pretrained(tmp_path)
    with expect_error(InteropError):
        config_from_huggingface(read_json(f"{tmp_path}/config.json"), "config.json")


TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message.content }} fox {% endfor %}"


@pytest.mark.parametrize("is_chat", [False, True], ids=["text", "chat"])
def test_imported_weights_write_the_text_of_their_folder(tmp_path, run_alone, capsys, is_chat):
    folder = str(write_folder(tmp_path / "folder"))
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, **END}
    Path(folder, "tokenizer_config.json").write_text(json.dumps(described))
    fetched = DownloadConfig(fetch=model_in(folder))
    vocabulary = InputTokenizerConfig(tokenizer=local_tokenizer(folder), bos_token=None)
    made = {
        "download": run_alone(download, fetched, "download"),
        "tokenizer": run_alone(input_tokenizer, vocabulary, "tokenizer"),
    }
    fields = {"model": CONFIG, "rope": LLAMA2_ROPE, **SHORT}
    made["import"] = run_alone(hf_import, HfImportConfig(**made, **fields), "import")
    inputs = {"download": download("download", fetched), "tokenizer": input_tokenizer("tokenizer", vocabulary)}
    graph, store = Graph([hf_import("import", HfImportConfig(**inputs, **fields))]), open_store(str(tmp_path))
    for name in ("download", "tokenizer", "import"):
        path = Path(made[name].path).relative_to(tmp_path)
        commit(store, graph.step(name), made[name].result, output_path=str(path))
    parsed = argparse.Namespace(
        prompt=["the"], prompts=None, max_new_tokens=12, temperature=0.0, top_p=None, seed=None, weights=None,
        json=True, chat=is_chat, chat_template=None,
    )  # fmt: skip
    session = types.SimpleNamespace(parsed=parsed, step="import", store=store, graph=lambda: graph)
    assert write_texts.run(session) == 0
    (text,) = json.loads(capsys.readouterr().out)["texts"]
    if is_chat:
        files = {file.name: file.path for file in made["download"].result.files}
        Path(made["download"].join(files["tokenizer_config.json"])).write_bytes(b"\xff")
        with expect_error(UserError):
            write_texts.run(session)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    message = [{"role": "user", "content": "the"}]
    ids = theirs.apply_chat_template(message, return_dict=False) if is_chat else theirs.encode("the")
    prompt = torch.tensor([ids])
    written = transformers.AutoModelForCausalLM.from_pretrained(folder).generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False
    )
    assert text["text"] == theirs.decode(written[0, prompt.shape[1] :].tolist())
    if not is_chat:
        asked = {"prompts": ("the",), "max_new_tokens": 12, "weights": "hot"}
        config = SampleConfig(phase=made["import"], tokenizer=made["tokenizer"], **asked)
        assert run_alone(sample, config, "sample").result.texts[0].text == text["text"]
