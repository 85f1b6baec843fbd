"""Kernel choice: no silent fallback, and a reason for every default."""

import importlib.metadata
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from runtime.kernels import attention_tokamax
from runtime.kernels.kernel_shape import KernelShape
from runtime.parallel.mesh import devices_of, make_mesh
from runtime.parallel.mesh_shape import MeshShape
from runtime.training import kernel_choice
from runtime.training.kernel_choice import (
    KernelChoice,
    check_kernels,
    chosen_kernels,
    default_kernels,
    take_kernels,
)
from tests.catalogue import check_message, expect_error
from tests.runtime.interop.small_llama import CONFIG

SHAPE = KernelShape("tpu", "TPU v4", 128, 4096, 0, 4096, 128_256, 12_288, "bfloat16")


def default(
    platform: str, query_length: int = 4096, *, device_kind: str = "NVIDIA H200", **changes: Any
) -> KernelChoice:
    shape = SHAPE._replace(platform=platform, device_kind=device_kind, query_length=query_length, **changes)
    return default_kernels(shape)


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize("sequence_length", [128, 4096])
def test_the_default_kernels_run_on_their_platform(platform: str, sequence_length: int) -> None:
    kernels = default(platform, sequence_length)
    check_kernels(platform, attention_kernel=kernels.attention, loss_kernel=kernels.loss)
    check_message(kernels.reason)


@pytest.mark.parametrize("sequence_length", [16, 256, 4096])
def test_no_sequence_holds_all_scores_on_a_cpu(sequence_length: int) -> None:
    assert default("cpu", sequence_length).attention == "chunked"


@pytest.mark.parametrize(
    "shape",
    [
        {"head_dim": 80},
        {"query_length": 4000},
        {"query_length": 96, "first_row": 96},
        {"device_kind": "NVIDIA A100-SXM4-80GB"},
        {"compute_dtype": "float32"},
    ],
)
def test_a_gpu_without_a_fused_kernel_for_the_shape_gets_chunked(shape: dict) -> None:
    kernels = default("gpu", **shape)
    assert kernels.attention == "chunked"
    check_message(kernels.reason)


def test_a_hopper_without_the_package_of_its_fastest_kernel_gets_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions = {"jax": "0.10.2", "tokamax": "0.0.12"}
    monkeypatch.setattr("importlib.metadata.version", versions.__getitem__)
    assert default("gpu").attention == "tokamax"
    versions["tokamax"] = "0.0.11"
    kernels = default("gpu")
    assert kernels.attention == "chunked"
    check_message(kernels.reason)


@pytest.mark.parametrize(
    ("attention_kernel", "loss_kernel"),
    [("splash", "chunked"), ("reference", "mosaic_gpu"), ("flash", "chunked"), ("reference", "liger")],
)
def test_a_kernel_that_cannot_run_here_is_an_error(attention_kernel: str, loss_kernel: str) -> None:
    with expect_error(ValueError):
        check_kernels("cpu", attention_kernel=attention_kernel, loss_kernel=loss_kernel)


def test_an_accelerator_never_gets_the_blocks_of_a_cpu_for_its_loss() -> None:
    assert [default(name).loss for name in ("cpu", "gpu", "tpu")] == [
        "chunked",
        "mosaic_gpu",
        "chunked_wide",
    ]


@pytest.mark.parametrize(
    "shape",
    [
        {"device_kind": "A100-80G"},
        {"compute_dtype": "float32"},
        {"vocab_size": 50_257},
        {"hidden_size": 800},
        {"num_tokens": 128},
    ],
)
def test_a_loss_without_hoppers_kernel_has_its_logits_in_memory(shape: dict) -> None:
    kernels = default("gpu", **shape)
    assert kernels.loss == "chunked_wide"
    check_message(kernels.reason)
    hopper = SHAPE._replace(platform="gpu", **{"device_kind": "NVIDIA H200"} | shape)
    with expect_error(ValueError):
        chosen_kernels(hopper, attention_kernel="chunked", loss_kernel="mosaic_gpu")


def test_gpu_kernels_are_an_error_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_tokamax, "missing", lambda: None)  # whatever is installed here
    for platform in ("cpu", "tpu"):
        with expect_error(ValueError):
            check_kernels(platform, attention_kernel="tokamax", loss_kernel="chunked")
    check_kernels("gpu", attention_kernel="tokamax", loss_kernel="chunked")


def test_a_plan_refuses_tokamax_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        if name == "jax":
            return "0.10.2"
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    shape = SHAPE._replace(platform="gpu", device_kind="NVIDIA H200")
    with expect_error(ValueError):
        chosen_kernels(shape, attention_kernel="tokamax")


@pytest.mark.parametrize(
    "shape",
    [
        {"device_kind": "A100-80G"},
        {"device_kind": "NVIDIA B200"},
        {"head_dim": 80},
        {"compute_dtype": "float32"},
        {"query_length": 4000},
    ],
)
def test_tokamax_is_an_error_for_shapes_that_it_does_not_support(shape: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_tokamax, "missing", lambda: None)
    hopper = SHAPE._replace(platform="gpu", device_kind="NVIDIA H200")
    with expect_error(ValueError):
        chosen_kernels(hopper._replace(**shape), attention_kernel="tokamax", loss_kernel="chunked")


def test_the_shape_of_a_step_is_what_one_device_computes_at_a_time() -> None:
    sizes = {"num_rows": 4, "sequence_length": 64}
    devices = devices_of(make_mesh(MeshShape(), jax.devices()[:1]))
    whole = KernelShape.of(devices, CONFIG, **sizes, compute_dtype="float32")
    assert (whole.num_tokens, whole.item_bytes, whole.query_length, whole.first_row) == (256, 4, 64, 0)
    part = KernelShape.of(devices, CONFIG, **sizes, compute_dtype="bfloat16", num_microbatches=4)
    assert (part.num_tokens, part.item_bytes) == (64, 2)
    shared = Mesh(np.array(jax.devices()[:1] * 8).reshape(2, 4), ("data_x", "context"))  # eight in name
    last = KernelShape.of(devices_of(shared), CONFIG, **sizes, compute_dtype="bfloat16")
    assert (last.num_tokens, last.query_length, last.first_row) == (32, 16, 48)


@pytest.mark.parametrize(
    ("attention_kernel", "loss_kernel", "changes"),
    [
        ("splash", "chunked_wide", {}),
        ("splash", "chunked_wide", {"device_kind": "TPU v5 lite"}),
        ("splash", "chunked_wide", {"head_dim": 80}),
        ("chunked", "chunked", {"device_kind": "A100-80G"}),
        ("tokamax", "chunked", {"device_kind": "H200"}),
        ("chunked", "reference", {"device_kind": "cpu"}),
        ("chunked", "mosaic_gpu", {"device_kind": "NVIDIA H200"}),
    ],
)
def test_block_sizes_are_described(
    attention_kernel: str, loss_kernel: str, changes: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_tokamax, "missing", lambda: None)
    kind = changes.get("device_kind", "TPU")
    platform = "tpu" if "TPU" in kind else "cpu" if kind == "cpu" else "gpu"
    shape = SHAPE._replace(**changes | {"platform": platform})
    kernels = chosen_kernels(shape, attention_kernel=attention_kernel, loss_kernel=loss_kernel)
    check_message("\n".join(f"{name}: {blocks}" for name, blocks in kernels.described().items()))


def test_a_tpu_of_an_unknown_kind_gets_known_blocks_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    known = take_kernels(SHAPE, attention_kernel=None, loss_kernel=None)
    take_kernels(SHAPE._replace(device_kind="TPU7x"), attention_kernel="chunked", loss_kernel=None)
    assert not caplog.records
    taken = take_kernels(SHAPE._replace(device_kind="TPU7x"), attention_kernel=None, loss_kernel=None)
    assert taken.blocks == known.blocks
    (warning,) = caplog.records
    assert warning.levelname == "WARNING"
    check_message(warning.getMessage())


def test_an_unknown_platform_is_an_error() -> None:
    with expect_error(ValueError):
        default("npu")


def test_a_host_with_other_kernels_than_the_first_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"jax": "0.10.2", "tokamax": "0.0.12"}
    monkeypatch.setattr("importlib.metadata.version", versions.__getitem__)
    numbers: list[tuple[int, ...]] = []
    monkeypatch.setattr(kernel_choice, "of_first_host", lambda *words: numbers.append(words) or numbers[0])
    hopper = SHAPE._replace(platform="gpu", device_kind="NVIDIA H200")
    take_kernels(hopper, attention_kernel=None, loss_kernel=None)
    take_kernels(hopper, attention_kernel=None, loss_kernel=None)
    versions["tokamax"] = "0.0.11"
    with expect_error(ValueError):
        take_kernels(hopper, attention_kernel=None, loss_kernel=None)
