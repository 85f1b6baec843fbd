"""No silent fallback: what runs is what was asked for, and the reason is there to print."""

import pytest

from runtime.kernels.choice import check_kernels, default_kernels


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize("sequence_length", [128, 4096])
def test_the_default_kernels_run_on_their_platform_and_say_why(platform: str, sequence_length: int) -> None:
    choice = default_kernels(platform, sequence_length=sequence_length)
    check_kernels(platform, attention_kernel=choice.attention, loss_kernel=choice.loss)
    assert "attention" in choice.reason or "scores" in choice.reason


def test_long_sequences_do_not_hold_all_scores() -> None:
    assert default_kernels("cpu", sequence_length=256).attention == "reference"
    assert default_kernels("cpu", sequence_length=4096).attention == "chunked"


@pytest.mark.parametrize(
    ("attention_kernel", "loss_kernel", "message"),
    [
        ("splash", "chunked", "attention_kernel is 'splash', a Mosaic TPU kernel, .* platform 'cpu'"),
        ("reference", "pallas_tpu", "loss_kernel is 'pallas_tpu', a Mosaic TPU kernel, .* platform 'cpu'"),
        ("flash", "chunked", "attention_kernel is 'flash'; it must be one of chunked, pallas_gpu, reference, splash"),
        (
            "reference",
            "liger",
            "loss_kernel is 'liger'; it must be one of chunked, chunked_wide, pallas_tpu, reference",
        ),
    ],
)
def test_a_kernel_that_cannot_run_here_is_an_error_with_the_reason(
    attention_kernel: str, loss_kernel: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_kernels("cpu", attention_kernel=attention_kernel, loss_kernel=loss_kernel)


def test_an_unknown_platform_is_an_error() -> None:
    with pytest.raises(ValueError, match="platform is 'npu'; kernels are known for cpu, gpu and tpu"):
        default_kernels("npu", sequence_length=128)
