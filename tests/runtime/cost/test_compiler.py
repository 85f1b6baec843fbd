"""An outcome is compiled once; its key covers everything that determines the program; failures have a fix."""

import ast
import dataclasses
import importlib.metadata
import os
import subprocess
from pathlib import Path

import pytest

from runtime.cost import compiler
from runtime.cost.compiler import ROOT, NoCompilerError, key_of, outcome_of, packages_of
from runtime.cost.request import REQUEST as REQUEST_JSON
from runtime.cost.request import Compiled, CompileRequest, DoesNotFit, to_json
from runtime.model.llama.config import LlamaConfig
from tests.catalogue import expect_error

MODEL = LlamaConfig(512, 128, 256, 2, 2, 1, 64, 256)
REQUEST = CompileRequest("train", "v5litepod-4", 1, MODEL, 256, 8, 0, "bfloat16", "splash", "chunked_wide")
COMPILED = Compiled(123, 45, (), 67, 1.0, 6, {"libtpu": "1"})
OUT_OF_MEMORY = (
    "Traceback ...\nJaxRuntimeError: RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the "
    "total memory required for HLO temporaries (26.60G) exceeds available HBM (15.75G).\nSee ..."
)


@pytest.fixture(autouse=True)
def known_versions_and_an_empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MARIN_DAG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compiler, "BESIDE", dict.fromkeys(("tpu", "gpu"), tmp_path / "beside"))
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"{name}-1")


@pytest.fixture
def calls(monkeypatch):
    """Return the started commands; each answers with `calls.answer`."""

    class Calls(list):
        answer = subprocess.CompletedProcess([], 0, stdout=f"noise\n{to_json(COMPILED)}\n", stderr="")

    found = Calls()

    def run(command, **options):
        found.append((command, options))
        return found.answer

    monkeypatch.setattr(subprocess, "run", run)
    return found


def test_every_module_that_a_compile_imports_also_inside_functions_is_a_source():
    reached: set[Path] = set()
    to_read = [ROOT / "runtime/cost/compile_program.py"]
    while to_read:
        path = to_read.pop()
        if path in reached or not path.exists():
            continue
        reached.add(path)
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("runtime."):
                names = (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
                to_read += [ROOT / f"{name.replace('.', '/')}.py" for name in names]
    assert len(reached) > 50
    uncovered = {str(path.relative_to(ROOT / "runtime")) for path in reached - {*compiler._source_files()}}
    # These keep answers, and watch threads and devices.
    assert uncovered == {"evaluation/answers.py", "training/background.py", "training/watchdog.py"}


def test_a_program_is_compiled_once_in_a_process_that_sees_no_tpu_and_no_flags_that_its_key_does_not_know(
    calls, monkeypatch
):
    for name in (
        *("LIBTPU_INIT_ARGS", "XLA_FLAGS", "JAX_DEFAULT_MATMUL_PRECISION", "JAX_COMPILATION_CACHE_DIR"),
        *("TPU_MEGACORE", "TPU_ACCELERATOR_TYPE", "EQX_ON_ERROR"),
    ):
        monkeypatch.setenv(name, "of this process")
    assert outcome_of(REQUEST) == (COMPILED, False)
    assert outcome_of(REQUEST) == (COMPILED, True)
    ((command, options),) = calls
    assert REQUEST_JSON.validate_json(command[-1]) == REQUEST
    assert options["env"]["JAX_PLATFORMS"] == "cpu"
    assert options["env"]["TPU_SKIP_MDS_QUERY"] == "1"
    assert "of this process" not in options["env"].values()
    assert options["env"]["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step", "eval"),
        ("slice", "v4-8"),
        ("num_slices", 2),
        ("model", dataclasses.replace(MODEL, num_hidden_layers=3)),
        ("global_batch_size", 16),
        ("num_averages", 2),
        ("remat", "dots"),
        ("num_microbatches", 2),
        ("loss_kernel", "mosaic_gpu"),
        ("reduce_dtype", "bfloat16"),
        ("scatter_kernel", "pallas_tpu"),
        ("replica_parallel", 2),
        ("model_parallel", 2),
        ("context_parallel", 2),
    ],
)
def test_everything_that_determines_the_program_is_in_its_key(field, value):
    assert key_of(dataclasses.replace(REQUEST, **{field: value})) != key_of(REQUEST)


def test_another_compiler_or_another_source_is_another_program(monkeypatch, tmp_path):
    before = key_of(REQUEST)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"{name}-2")
    other_version = key_of(REQUEST)
    source = tmp_path / "source.py"
    source.write_text("x = 1")
    monkeypatch.setattr(compiler, "_source_files", lambda: iter([source]))
    monkeypatch.setattr(compiler, "sources_digest", compiler.sources_digest.__wrapped__)  # a process asks once
    one = key_of(REQUEST)
    source.write_text("x = 2")
    assert len({before, other_version, one, key_of(REQUEST)}) == 4


@pytest.mark.parametrize(
    ("package", "machines"),
    [("equinox", "v4-8"), ("jaxlib", "v4-8"), ("libtpu", "v4-8"), ("nvidia-cuda-nvcc-cu12", "8 x H200")],
)
def test_each_package_that_makes_or_compiles_a_program_is_in_its_key(package, machines, monkeypatch):
    request = dataclasses.replace(REQUEST, slice=machines)
    before = key_of(request)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2" if name == package else f"{name}-1")
    assert key_of(request) != before


def test_the_modules_of_the_step_are_among_the_sources_and_the_roofline_is_not():
    names = {"/".join(path.parts[-2:]) for path in compiler._source_files()}
    assert {"training/train_step.py", "parallel/collectives.py", "llama/model.py", "cost/program.py"} <= names
    assert "cost/roofline.py" not in names


def test_too_much_memory_is_an_outcome_and_is_known_afterwards(calls):
    calls.answer = subprocess.CompletedProcess([], 1, stdout="", stderr=OUT_OF_MEMORY)
    outcome, _ = outcome_of(REQUEST)
    assert isinstance(outcome, DoesNotFit)
    assert "(26.60G) exceeds available HBM (15.75G)" in outcome.message
    assert outcome_of(REQUEST) == (outcome, True)


def test_a_gpu_program_that_needs_more_than_jax_takes_of_the_gpu_does_not_fit(calls):
    of_gpu = dataclasses.replace(REQUEST, slice="8 x H200")
    assert isinstance(outcome_of(of_gpu)[0], Compiled)
    large = dataclasses.replace(COMPILED, peak_memory_in_bytes=106 * 2**30)
    calls.answer = subprocess.CompletedProcess([], 0, stdout=f"{to_json(large)}\n", stderr="")
    outcome, _ = outcome_of(dataclasses.replace(of_gpu, num_averages=1))
    assert outcome == DoesNotFit(
        "106.00 GiB at its peak, of 104.85 that JAX takes (XLA_PYTHON_CLIENT_MEM_FRACTION 0.75)"
    )


def test_another_failure_is_an_error_with_its_last_lines_and_nothing_is_kept(calls, tmp_path):
    calls.answer = subprocess.CompletedProcess([], 1, stdout="", stderr="ValueError: something else")
    with expect_error(RuntimeError):
        outcome_of(REQUEST)
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("machines", ["v4-8", "8 x H200"])
def test_without_a_compiler_the_error_says_what_to_install(machines, monkeypatch):
    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with expect_error(NoCompilerError):
        outcome_of(dataclasses.replace(REQUEST, slice=machines))


def test_a_compiler_beside_the_environment_is_found_there_by_the_version_and_by_the_process(
    calls, monkeypatch, tmp_path
):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1")  # another libtpu in the environment
    metadata = tmp_path / "beside" / "libtpu-7.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Name: libtpu\nVersion: 7\n")
    of_seven = key_of(REQUEST)
    assert outcome_of(REQUEST) == (COMPILED, False)
    assert calls[0][1]["env"]["PYTHONPATH"].split(os.pathsep)[1] == str(tmp_path / "beside")
    metadata.write_text("Name: libtpu\nVersion: 8\n")
    assert key_of(REQUEST) != of_seven


def test_a_folder_with_two_versions_of_a_compiler_is_refused(calls, tmp_path):
    for version in "78":
        metadata = tmp_path / "beside" / f"libtpu-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Name: libtpu\nVersion: {version}\n")
    with expect_error(RuntimeError):
        outcome_of(REQUEST)
    assert calls == []


def test_the_compiler_of_another_release_of_cuda_is_another_program(monkeypatch):
    of_gpu = dataclasses.replace(REQUEST, slice="8 x H200")
    of_cuda_12 = key_of(of_gpu)

    def version(name):
        if "cuda12" in name or "cu12" in name:
            raise importlib.metadata.PackageNotFoundError(name)
        return f"{name}-1"

    monkeypatch.setattr(importlib.metadata, "version", version)
    tools = "nvidia-cuda-nvcc", "tokamax"
    assert packages_of(of_gpu) == ("jax", "jaxlib", "equinox", "optax", "jax-cuda13-pjrt", *tools)
    assert key_of(of_gpu) != of_cuda_12
