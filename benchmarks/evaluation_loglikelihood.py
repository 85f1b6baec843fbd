"""Claim: lm-eval's Hugging Face backend takes 1.3 times as long as ours for multiple-choice log-likelihoods on CPU.

Ours takes at most 1.5 times its memory: the peak of a process that answers the requests once.

One process, the same threads, weights, tokenizer and requests, in float32; log-likelihoods agree within 1e-3. Weights
are random, in the shape of a 135M Llama. Questions have four choices, and contexts of 5 to 80 words of a made-up
language. Contestants take turns, the first of which does not count; medians are compared. It takes five minutes.

    python benchmarks/evaluation_loglikelihood.py
"""

import argparse
import dataclasses
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import lm_eval
import numpy as np
import torch
import transformers
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.generation import SHAPE, torch_model
from benchmarks.verdict import conclude
from runtime.evaluation.harness import LlamaHarness
from runtime.evaluation.placed_model import PlacedModel
from runtime.interop.huggingface import SpecialTokens, write_tokenizer
from runtime.model.config import LLAMA2_ROPE

BAR, MEMORY_BAR = 1.3, 1.5
SPECIAL = SpecialTokens(0, None)
Contestant = Callable[[], list[tuple[float, bool]]]


def made_up_words(number: int) -> list[str]:
    draw = random.Random(0)
    return ["".join(draw.choices("aeioubdfgklmnprst", k=draw.randint(2, 8))) for _ in range(number)]


def write_tokenizer_of(words: list[str], folder: Path, vocab_size: int, max_length: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2_048,
        special_tokens=["<|end_of_text|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(words)], trainer)
    source = folder / "source.json"
    tokenizer.save(str(source))
    write_tokenizer(str(folder), str(source), SPECIAL, vocab_size=vocab_size, max_length=max_length)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def questions(number: int, words: list[str]) -> list[Instance]:
    draw = random.Random(1)
    requests = []
    for _ in range(number):
        context = " ".join(draw.choices(words, k=draw.randint(5, 80)))
        for _ in range(4):
            choice = " " + " ".join(draw.choices(words, k=draw.randint(1, 15)))
            requests.append(Instance("loglikelihood", {}, (context, choice), 0, metadata=("questions", 0, 1)))
    return requests


def peak_memory(contestant: str) -> int:
    """Return the peak memory of a process with this command's arguments for one contestant."""
    command = [sys.executable, __file__, *sys.argv[1:], "--alone", contestant]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=SHAPE.num_hidden_layers)
    parser.add_argument("--questions", type=int, default=80)
    parser.add_argument("--batch", type=int, default=16, help="of lm-eval's backend")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--alone", choices=("ours", "reference"), help="answer once, and print the peak memory")
    arguments = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))  # what XLA takes too
    config = dataclasses.replace(SHAPE, num_hidden_layers=arguments.layers)
    params = config.build().init(jax.random.key(0))
    words = made_up_words(1_000)
    requests = questions(arguments.questions, words)
    with tempfile.TemporaryDirectory() as folder:
        length = config.max_position_embeddings
        tokenizer = write_tokenizer_of(words, Path(folder), config.vocab_size, length)
        contestants: dict[str, Contestant] = {}
        if arguments.alone != "reference":
            placed = PlacedModel(params, config, LLAMA2_ROPE, compute_dtype=np.float32)
            contestants["ours"] = lambda: LlamaHarness(placed, tokenizer, SPECIAL).loglikelihood(requests)
        if arguments.alone != "ours":
            theirs = HFLM(
                pretrained=torch_model(params, config),
                tokenizer=transformers.AutoTokenizer.from_pretrained(folder),
                batch_size=arguments.batch,
                device="cpu",
            )
            contestants["reference"] = lambda: theirs.loglikelihood(requests, disable_tqdm=True)
        if arguments.alone:
            contestants[arguments.alone]()
            # Not `ru_maxrss`, which a process takes over from the one that starts it.
            (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
            print(int(peak) * 1024)
            return
        found: dict[str, list[tuple[float, bool]]] = {}
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        for turn in range(arguments.turns + 1):
            for name, answer in contestants.items():
                began = time.perf_counter()
                found[name] = answer()
                if turn:
                    seconds[name].append(time.perf_counter() - began)
    difference = max(abs(ours[0] - other[0]) for ours, other in zip(*found.values(), strict=True))
    if difference > 1e-3:
        raise SystemExit(f"the contestants' log-likelihoods differ by {difference}")
    memory = {name: peak_memory(name) for name in contestants}
    memory_ratio = memory["ours"] / memory["reference"]
    ours, reference = (len(requests) / statistics.median(values) for values in seconds.values())
    conclude(
        {
            "claim": "log-likelihoods/s of multiple choice on CPU, 1.3 x lm-eval's Hugging Face backend",
            "ours": round(ours, 1),
            "reference": round(reference, 1),
            "ratio": round(ours / reference, 3),
            "bar": BAR,
            "holds": ours / reference >= BAR and memory_ratio <= MEMORY_BAR,
            "memory_in_bytes": memory,
            "memory_ratio": round(memory_ratio, 3),
            "memory_bar": MEMORY_BAR,
            "layers": arguments.layers,
            "requests": len(requests),
            "load": round(os.getloadavg()[0], 1),
            "versions": {"jax": jax.__version__, "torch": torch.__version__, "lm_eval": lm_eval.__version__},
            "device": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        }
    )


if __name__ == "__main__":
    main()
