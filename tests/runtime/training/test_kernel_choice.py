"""No silent fallback: what runs is what was asked for, and the reason is there to print."""

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
    described_blocks,
    refuse_unlike_hosts,
)
from tests.catalogue import expect_error
from tests.runtime.interop.small_llama import CONFIG

SHAPE = KernelShape("tpu", "TPU v4", 128, 4096, 0, 4096, 128_256, 12_288, "bfloat16")


def default(platform: str, stretch: int = 4096, *, device_kind: str = "NVIDIA H200", **changes: Any) -> KernelChoice:
    shape = SHAPE._replace(platform=platform, device_kind=device_kind, stretch=stretch, **changes)
    return default_kernels(shape)


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize("sequence_length", [128, 4096])
def test_the_default_kernels_run_on_their_platform_and_say_why(platform: str, sequence_length: int) -> None:
    kernels = default(platform, sequence_length)
    check_kernels(platform, attention_kernel=kernels.attention, loss_kernel=kernels.loss)
    assert "attention" in kernels.reason or "scores" in kernels.reason


@pytest.mark.parametrize("sequence_length", [16, 256, 4096])
def test_no_sequence_holds_all_scores_on_a_cpu(sequence_length: int) -> None:
    assert default("cpu", sequence_length).attention == "chunked"


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ({"head_dim": 80}, "because head_dim 80 is none of 64, 128"),
        ({"stretch": 4000}, "because 4000 tokens of a row are not a whole number of blocks of 64"),
        ({"stretch": 96, "first_row": 96}, "because 96 tokens of a row are not a whole number of blocks"),
        ({"device_kind": "NVIDIA L40S"}, "because pallas_gpu was never compiled for NVIDIA L40S"),
        ({"compute_dtype": "float32"}, "because pallas_gpu in float32 keeps tens of KB a thread in memory"),
    ],
)
def test_a_gpu_computes_what_its_fused_kernel_cannot_in_blocks_and_says_why(shape: dict, why: str) -> None:
    kernels = default("gpu", **shape)
    assert kernels.attention == "chunked"
    assert why in kernels.reason


def test_a_hopper_gets_the_quickest_kernel_and_without_its_package_the_next_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions = {"jax": "0.10.2", "tokamax": "0.0.12"}
    monkeypatch.setattr("importlib.metadata.version", versions.__getitem__)
    assert default("gpu").attention == "tokamax"
    assert default("gpu", device_kind="NVIDIA A100-SXM4-80GB").attention == "pallas_gpu"
    assert default("gpu", stretch=64).attention == "pallas_gpu"
    versions["tokamax"] = "0.0.11"
    kernels = default("gpu")
    assert kernels.attention == "pallas_gpu"
    assert "not tokamax, because the package tokamax is 0.0.11" in kernels.reason
    assert "run `pip install tokamax==0.0.12`" in kernels.reason


@pytest.mark.parametrize(
    ("attention_kernel", "loss_kernel", "message"),
    [
        ("splash", "chunked", "attention_kernel is 'splash', a Mosaic TPU kernel, .* platform 'cpu'"),
        ("reference", "mosaic_gpu", "loss_kernel is 'mosaic_gpu', a Mosaic GPU kernel, .* platform 'cpu'"),
        (
            "flash",
            "chunked",
            "attention_kernel is 'flash'; it must be one of chunked, cudnn, pallas_gpu, reference, splash, tokamax",
        ),
        (
            "reference",
            "liger",
            "loss_kernel is 'liger'; it must be one of chunked, chunked_wide, mosaic_gpu, reference",
        ),
    ],
)
def test_a_kernel_that_cannot_run_here_is_an_error_with_the_reason(
    attention_kernel: str, loss_kernel: str, message: str
) -> None:
    with expect_error(ValueError):
        check_kernels("cpu", attention_kernel=attention_kernel, loss_kernel=loss_kernel)


def test_an_accelerator_never_gets_the_blocks_of_a_cpu_for_its_loss() -> None:
    assert [default(name).loss for name in ("cpu", "gpu", "tpu")] == [
        "chunked",
        "mosaic_gpu",
        "chunked_wide",
    ]


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ({"device_kind": "A100-80G"}, "its kernel is for H100 and H200, and the device is 'A100-80G'"),
        ({"compute_dtype": "float32"}, "it takes bfloat16, and computed is in float32"),
        ({"vocab_size": 50_257}, "vocab_size 50257 is not a multiple of 256"),
        ({"hidden_size": 800}, "hidden_size 800 is not a multiple of 64"),
        ({"num_tokens": 128}, "128 tokens on a device are fewer than a block of 256"),
    ],
)
def test_a_loss_that_hopper_s_kernel_does_not_take_has_its_logits_in_memory_and_says_why(shape: dict, why: str) -> None:
    assert default("gpu").reason.endswith("loss: gradients formed while the logits are there, in registers")
    kernels = default("gpu", **shape)
    assert kernels.loss == "chunked_wide"
    assert kernels.reason.endswith(f", in memory; not mosaic_gpu, because {why}")
    hopper = SHAPE._replace(platform="gpu", **{"device_kind": "NVIDIA H200"} | shape)
    with expect_error(ValueError):
        described_blocks("chunked", "mosaic_gpu", hopper)


ONLY_ON_A_GPU = (
    ("pallas_gpu", "a Triton GPU kernel"),
    ("cudnn", "a kernel of cuDNN"),
    ("tokamax", "a Mosaic GPU kernel"),
)


def test_the_gpu_kernels_are_refused_elsewhere_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_tokamax, "missing", lambda: None)  # whatever is installed here
    for platform in ("cpu", "tpu"):
        for kernel, _what in ONLY_ON_A_GPU:
            with expect_error(ValueError):
                check_kernels(platform, attention_kernel=kernel, loss_kernel="chunked")
            check_kernels("gpu", attention_kernel=kernel, loss_kernel="chunked")


def test_tokamax_is_refused_where_it_is_not_installed_also_by_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        if name == "jax":
            return "0.10.2"
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    shape = SHAPE._replace(platform="gpu", device_kind="NVIDIA H200")
    with expect_error(ValueError):
        chosen_kernels(shape, attention_kernel="tokamax")


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        (
            {"device_kind": "A100-80G"},
            "'tokamax': its kernels are taken for H100 and H200, and the device is 'A100-80G'",
        ),
        ({"device_kind": "NVIDIA B200"}, "and the device is 'NVIDIA B200'; use attention kernel 'chunked'"),
        ({"head_dim": 80}, "'tokamax': head_dim 80 is none of 64, 128; use"),
        ({"compute_dtype": "float32"}, "'tokamax': float32 queries, and it takes bfloat16 and float16 only"),
        ({"stretch": 4000}, "'tokamax': 4000 tokens of a row on a device are not a whole number of blocks of 128"),
    ],
)
def test_what_tokamax_does_not_take_is_known_from_the_shape(shape: dict, why: str) -> None:
    hopper = SHAPE._replace(platform="gpu", device_kind="NVIDIA H200")
    with expect_error(ValueError):
        described_blocks("tokamax", "chunked", hopper._replace(**shape))


def test_the_shape_of_a_step_is_what_one_device_computes_at_a_time() -> None:
    sizes = {"num_rows": 4, "sequence_length": 64}
    devices = devices_of(make_mesh(MeshShape(), jax.devices()[:1]))
    whole = KernelShape.of(devices, CONFIG, **sizes, compute_dtype="float32")
    assert (whole.num_tokens, whole.item_bytes, whole.stretch, whole.first_row) == (256, 4, 64, 0)
    part = KernelShape.of(devices, CONFIG, **sizes, compute_dtype="bfloat16", num_microbatches=4)
    assert (part.num_tokens, part.item_bytes) == (64, 2)
    shared = Mesh(np.array(jax.devices()[:1] * 8).reshape(2, 4), ("data_x", "context"))  # eight in name
    last = KernelShape.of(devices_of(shared), CONFIG, **sizes, compute_dtype="bfloat16")
    assert (last.num_tokens, last.stretch, last.first_row) == (32, 16, 48)


@pytest.mark.parametrize(
    ("attention_kernel", "loss_kernel", "shape", "of_attention", "of_loss"),
    [
        ("splash", "chunked_wide", SHAPE, "query 1024, key 1024, key_compute 512, ", "2048 tokens ("),
        ("splash", "chunked_wide", SHAPE._replace(head_dim=80), "(no row for v4, head size 80", "2048 tokens ("),
        ("pallas_gpu", "chunked", SHAPE._replace(device_kind="NVIDIA H200"), "query 128, key 64", "24 tokens ("),
        ("pallas_gpu", "chunked", SHAPE._replace(device_kind="A100-80G"), "query 64, key 64", "24 tokens ("),
        (
            "pallas_gpu",
            "chunked",
            SHAPE._replace(device_kind="L4"),
            "(unknown GPU 'L4', taken as an A100: ",
            "24 tokens (",
        ),
        ("cudnn", "chunked", SHAPE._replace(device_kind="NVIDIA H200"), "a mask of 32 MiB a sequence", "24 tokens ("),
        ("tokamax", "chunked", SHAPE._replace(device_kind="H200"), "query 64, key 128, num_stages 3, ", "24 tokens ("),
        ("chunked", "reference", SHAPE._replace(device_kind="cpu"), "query 256", "all tokens"),
        (
            "chunked",
            "mosaic_gpu",
            SHAPE._replace(device_kind="NVIDIA H200"),
            "query 256",
            "in tiles of 256 x 256 (788,004,864 logits); all anew by chunked_wide where a token's loss is above 60",
        ),
    ],
)
def test_block_sizes_and_their_reasons_are_told(
    attention_kernel: str, loss_kernel: str, shape: KernelShape, of_attention: str, of_loss: str
) -> None:
    told = described_blocks(attention_kernel, loss_kernel, shape)
    assert of_attention in told["attention"]
    assert of_loss in told["loss"]


def test_a_tpu_of_an_unknown_kind_says_whose_blocks_it_gets_and_the_log_warns(caplog: pytest.LogCaptureFixture) -> None:
    known = described_blocks("splash", "chunked_wide", SHAPE)
    assert "unknown" not in "".join(known.values()) and not caplog.records
    told = described_blocks("splash", "chunked_wide", SHAPE._replace(device_kind="TPU7x"))
    taken = known["attention"].replace(" (", " (unknown generation 'TPU7x', taken as v4: ", 1)
    assert told == known | {"attention": taken}
    (warning,) = caplog.records
    assert warning.levelname == "WARNING"
    assert "unknown generation 'TPU7x', taken as v4: its block sizes are neither tuned" in warning.getMessage()


def test_what_takes_no_blocks_of_a_tpu_warns_of_none(caplog: pytest.LogCaptureFixture) -> None:
    described_blocks("chunked", "chunked_wide", SHAPE._replace(device_kind="TPU7x"))
    described_blocks("chunked", "chunked_wide", SHAPE._replace(device_kind="NVIDIA H200"))
    assert not caplog.records


def test_an_unknown_platform_is_an_error() -> None:
    with expect_error(ValueError):
        default("npu")


def test_a_host_that_lacks_what_the_first_one_has_is_told_and_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"jax": "0.10.2", "tokamax": "0.0.12"}
    monkeypatch.setattr("importlib.metadata.version", versions.__getitem__)
    said: list[tuple[int, ...]] = []
    monkeypatch.setattr(kernel_choice, "of_first_host", lambda *words: said.append(words) or said[0])
    refuse_unlike_hosts(default("gpu"))
    refuse_unlike_hosts(default("gpu"))
    versions["tokamax"] = "0.0.11"
    with expect_error(ValueError):
        refuse_unlike_hosts(default("gpu"))
