"""Claim: on CPU the key-value cache writes 1.5 times the tokens a second of transformers' generate with its cache.

One process, the same threads, weights, prompts and batch size, greedy in float32; texts are equal. Weights are random,
in the shape of a 135M Llama. Texts have different lengths, as stop strings give them: transformers writes a batch until
its last text ends, and ours gives the slot to the next request. The ratio for texts of one length is printed beside it,
and the limit of the machine: each token of a batch reads all weights, and no product is faster than one of large
matrices. Contestants take turns, the first of which does not count; medians are compared. It takes five minutes.

    python benchmarks/generation.py
"""

import argparse
import dataclasses
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import numpy as np
import torch
import transformers

from benchmarks.machine_limits import MachineLimits, machine_limits
from benchmarks.verdict import conclude
from runtime.evaluation.generation import Generator, Prompt
from runtime.evaluation.placed_model import PlacedModel
from runtime.interop.huggingface import state_dict
from runtime.model.config import LLAMA2_ROPE
from runtime.model.llama.config import LlamaConfig
from runtime.model.model import Params

BAR = 1.5
SHAPE = LlamaConfig(
    vocab_size=49_152,
    hidden_size=576,
    intermediate_size=1_536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    head_dim=64,
    max_position_embeddings=2_048,
    tie_word_embeddings=True,
)
Texts = list[list[int]]
Write = Callable[[Sequence[int]], Texts]
"""Returns a text of each length, after the prompt of the same number."""


def with_ours(params: Params, config: LlamaConfig, prompts: Sequence[tuple[int, ...]], batch: int) -> Write:
    generator = Generator(PlacedModel(params, config, LLAMA2_ROPE, compute_dtype=np.float32), most_slots=batch)

    def write(lengths: Sequence[int]) -> Texts:
        asked = [Prompt(prompt, length, None, 0) for prompt, length in zip(prompts, lengths, strict=True)]
        found = dict(generator.generate(asked, lambda number, tokens: False))
        return [found[number] for number in range(len(prompts))]

    return write


def with_transformers(model: Any, prompts: Sequence[tuple[int, ...]], batch: int) -> Write:
    def write(lengths: Sequence[int]) -> Texts:
        texts: Texts = [[] for _ in prompts]
        order = sorted(range(len(prompts)), key=lambda number: -len(prompts[number]))  # as lm-eval orders them
        for begin in range(0, len(order), batch):
            numbers = order[begin : begin + batch]
            longest = max(len(prompts[number]) for number in numbers)
            ids = torch.zeros((len(numbers), longest), dtype=torch.int64)
            mask = torch.zeros_like(ids)
            for row, number in enumerate(numbers):
                ids[row, longest - len(prompts[number]) :] = torch.tensor(prompts[number])
                mask[row, longest - len(prompts[number]) :] = 1
            most = max(lengths[number] for number in numbers)
            found = model.generate(
                ids, attention_mask=mask, max_new_tokens=most, do_sample=False, eos_token_id=None, pad_token_id=0
            )
            for row, number in enumerate(numbers):
                texts[number] = found[row, longest : longest + lengths[number]].tolist()
        return texts

    return write


def most_tokens_per_second(
    config: LlamaConfig, prompts: Sequence[tuple[int, ...]], lengths: Sequence[int], batch: int, machine: MachineLimits
) -> float:
    """Return the limit of the machine: full batches, without attention, and no head at the prompts."""
    head = config.vocab_size * config.hidden_size
    prefill = 2 * (config.num_parameters - head) * sum(map(len, prompts)) / machine.flops_per_second
    one_token = machine.least_seconds(2 * config.num_parameters * batch, 4 * config.num_parameters)
    return sum(lengths) / (prefill + sum(lengths) / batch * one_token)


def torch_model(params: Params, config: LlamaConfig) -> Any:
    """Return the same weights as transformers' model."""
    document = config.to_huggingface(LLAMA2_ROPE, eos_token_id=0, bos_token_id=None, dtype="float32")
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**document))
    weights = {name: torch.from_numpy(np.array(values)) for name, values in state_dict(config.build(), params)}
    model.load_state_dict(weights, strict=False)  # a tied head has no entry
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=SHAPE.num_hidden_layers)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--longest", type=int, default=128, help="tokens of a text, at most")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))  # what XLA takes too
    config = dataclasses.replace(SHAPE, num_hidden_layers=arguments.layers)
    params = config.build().init(jax.random.key(0))
    rng = np.random.default_rng(0)
    sizes = rng.integers(16, 256, arguments.prompts)
    prompts = [tuple(rng.integers(1, config.vocab_size, size).tolist()) for size in sizes]
    contestants: dict[str, Write] = {
        "ours": with_ours(params, config, prompts, arguments.batch),
        "transformers": with_transformers(torch_model(params, config), prompts, arguments.batch),
    }
    different = rng.integers(arguments.longest // 16, arguments.longest + 1, arguments.prompts).tolist()
    alike = [arguments.longest // 2] * arguments.prompts
    machine = machine_limits()
    speed: dict[str, dict[str, float]] = {}
    for kind, lengths in (("different", different), ("alike", alike)):
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        for turn in range(arguments.turns + 1):
            texts = {}
            for name, write in contestants.items():
                began = time.perf_counter()
                texts[name] = write(lengths)
                if turn:
                    seconds[name].append(time.perf_counter() - began)
            if texts["ours"] != texts["transformers"]:
                raise SystemExit("the contestants do not write the same texts")
        speed[kind] = {name: sum(lengths) / statistics.median(values) for name, values in seconds.items()}
        print(kind, {name: round(value, 1) for name, value in speed[kind].items()}, flush=True)
    limit = most_tokens_per_second(config, prompts, different, arguments.batch, machine)
    ratio, alike_ratio = (speed[kind]["ours"] / speed[kind]["transformers"] for kind in ("different", "alike"))
    conclude(
        {
            "claim": "tokens/s of greedy text on CPU, 1.5 x transformers' generate with its cache",
            "ours": round(speed["different"]["ours"], 1),
            "reference": round(speed["different"]["transformers"], 1),
            "ratio": round(ratio, 3),
            "bar": BAR,
            "holds": ratio >= BAR,
            "ratio_of_equal_lengths": round(alike_ratio, 3),
            "limit": round(limit, 1),
            "share_of_limit": round(speed["different"]["ours"] / limit, 3),
            "machine": {name: round(value / 1e9, 1) for name, value in machine._asdict().items()},
            "layers": arguments.layers,
            "batch": arguments.batch,
            "load": round(os.getloadavg()[0], 1),
            "versions": {"jax": jax.__version__, "torch": torch.__version__, "transformers": transformers.__version__},
            "device": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        }
    )


if __name__ == "__main__":
    main()
