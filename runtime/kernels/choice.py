"""Which kernels a platform runs by default and why; and why a named one cannot run there."""

from typing import NamedTuple

from runtime.kernels import attention, cross_entropy

SHORT_SEQUENCE = (
    1024  # up to here all scores of one head are at most 4 MiB, and recomputing them costs more than it saves
)


class KernelChoice(NamedTuple):
    """Names to pass to `build_train_step`, and the reason to print beside them."""

    attention: str
    loss: str
    reason: str


_TPU_ONLY = {"splash": "a Mosaic TPU kernel", "pallas_tpu": "a Mosaic TPU kernel"}


def default_kernels(platform: str, *, sequence_length: int) -> KernelChoice:
    """The fastest kernels known to be right on `platform` ("cpu", "gpu" or "tpu") at this sequence length."""
    match platform:
        case "tpu":
            return KernelChoice(
                attention="splash",
                loss="chunked_wide",
                reason="attention: scores stay in vector memory, documents are kept apart by segment ids; loss: three "
                "products with the head where pallas_tpu, which needs less memory, takes five",
            )
        case "cpu" | "gpu":
            is_short = sequence_length <= SHORT_SEQUENCE
            why_attention = "short sequences fit whole" if is_short else "one block of scores at a time"
            no_fused = (
                "; jax.nn.dot_product_attention takes no segment ids, so cuDNN would mix packed documents"
                if platform == "gpu"
                else ""
            )
            return KernelChoice(
                attention="reference" if is_short else "chunked",
                loss="chunked",
                reason=f"attention: {why_attention}{no_fused}; loss: gradients formed while the logits are there",
            )
    raise ValueError(f"platform is {platform!r}; kernels are known for cpu, gpu and tpu.")


def check_kernels(platform: str, *, attention_kernel: str, loss_kernel: str) -> None:
    """Raises where a kernel is unknown or cannot run on `platform`, naming the reason."""
    for argument, name, kernels in (
        ("attention_kernel", attention_kernel, attention.KERNELS),
        ("loss_kernel", loss_kernel, cross_entropy.KERNELS),
    ):
        if name not in kernels:
            raise ValueError(f"{argument} is {name!r}; it must be one of {', '.join(sorted(kernels))}.")
        if name in _TPU_ONLY and platform != "tpu":
            raise ValueError(
                f"{argument} is {name!r}, {_TPU_ONLY[name]}, and the mesh is of platform {platform!r}; "
                f"pass a kernel of default_kernels({platform!r}, sequence_length=...)."
            )
