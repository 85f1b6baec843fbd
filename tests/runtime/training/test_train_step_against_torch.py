"""A whole update beside transformers and torch: same weights, same packed batch, forward, backward, clipping, AdamW."""

from pathlib import Path

import jax
import numpy as np

from runtime.interop.huggingface import SpecialTokens, state_dict, write_model
from runtime.model.config import LLAMA3_ROPE
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from runtime.training.state import initial_state
from runtime.training.train_step import Hyperparameters
from tests.deferred_import import torch, transformers
from tests.runtime.interop.small_llama import CONFIG
from tests.runtime.training.plain_step import plain_step

# eps is large: with 1e-8 an entry whose gradient is all rounding gets an update of any size, another on each machine.
NUMBERS = Hyperparameters(learning_rate=1e-2, weight_decay=0.1, b1=0.9, b2=0.95, eps=1e-5, max_norm=0.5, z_loss=1e-2)
LENGTH, NUM_UPDATES = 24, 2


def test_two_steps_of_a_packed_batch_equal_those_of_transformers_and_torch(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, CONFIG.vocab_size, (3, LENGTH), dtype=np.int32)
    segment_ids = np.sort(rng.integers(0, 3, tokens.shape, dtype=np.int32), axis=1)
    mesh = make_mesh(MeshShape(), jax.devices()[:1])
    state = initial_state(CONFIG, 0, mesh)
    write_model(
        str(tmp_path),
        state.params,
        CONFIG,
        LLAMA3_ROPE,
        SpecialTokens(eos_token_id=0, bos_token_id=None),
        dtype="float32",
    )
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager")
    optimizer = torch_adamw(model)
    step = plain_step(CONFIG, mesh)
    for _ in range(NUM_UPDATES):
        state, metrics = step(state, tokens, segment_ids, NUMBERS)
        loss, grad_norm = torch_update(model, optimizer, tokens, segment_ids)
        np.testing.assert_allclose([metrics.loss, metrics.grad_norm], [loss, grad_norm], rtol=1e-5)
        assert grad_norm > NUMBERS.max_norm  # or clipping would not be compared
    theirs = model.state_dict()
    for name, ours in state_dict(CONFIG.build(), state.params):
        np.testing.assert_allclose(ours, theirs[name].numpy(), atol=1e-5, err_msg=name)


def torch_adamw(model: "transformers.LlamaForCausalLM") -> "torch.optim.AdamW":
    """Return PyTorch's AdamW without decay on embeddings and norms."""
    decayed = {name for name, leaf in model.named_parameters() if leaf.ndim == 2 and "embed" not in name}
    groups = [
        {
            "params": [leaf for name, leaf in model.named_parameters() if (name in decayed) == wanted],
            "weight_decay": decay,
        }
        for wanted, decay in ((True, NUMBERS.weight_decay), (False, 0.0))
    ]
    return torch.optim.AdamW(groups, lr=NUMBERS.learning_rate, betas=(NUMBERS.b1, NUMBERS.b2), eps=NUMBERS.eps)


def torch_update(
    model: "transformers.LlamaForCausalLM", optimizer: "torch.optim.AdamW", tokens: np.ndarray, segment_ids: np.ndarray
) -> tuple[float, float]:
    """Update; return the cross-entropy before it, and the gradient norm with the z-loss before clipping."""
    ids, segments = torch.from_numpy(tokens.astype(np.int64)), torch.from_numpy(segment_ids)
    is_visible = (segments[:, :, None] == segments[:, None, :]) & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    mask = torch.where(is_visible, 0.0, torch.finfo(torch.float32).min)[:, None]
    logits = model(ids, attention_mask=mask).logits[:, :-1]
    has_target = segments[:, 1:] == segments[:, :-1]
    normalizer = logits.logsumexp(dim=-1)[has_target]
    loss = (normalizer - logits.gather(2, ids[:, 1:, None])[..., 0][has_target]).mean()
    optimizer.zero_grad()
    (loss + NUMBERS.z_loss * normalizer.square().mean()).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), NUMBERS.max_norm)
    optimizer.step()
    return loss.item(), norm.item()
