"""The harness adapter gives the numbers that lm-eval's own Hugging Face adapter gives for the exported folder."""

import copy
import dataclasses
import itertools
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lm_eval.api.instance import Instance

from runtime.evaluation import placed_model
from runtime.evaluation.device_memory import DeviceRoom
from runtime.evaluation.generation import Generator, Prompt
from runtime.evaluation.harness import GenerationError, GenerationRequest, LlamaHarness, generation_request
from runtime.evaluation.placed_model import PlacedModel
from runtime.evaluation.sampling import Sampling
from runtime.evaluation.scoring import Score, Scored, Scorer
from runtime.interop.chat_template import ChatTemplate, ChatTemplateError
from runtime.interop.huggingface import SpecialTokens, read_model, write_model, write_tokenizer
from runtime.model.computation import whole
from runtime.model.config import LLAMA3_ROPE
from runtime.model.llama.config import LlamaConfig
from runtime.model.llama.model import LlamaParams
from runtime.model.model import logits
from runtime.model.rotary import inverse_frequencies
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from runtime.training.watchdog import Watchdog
from tests.catalogue import expect_error
from tests.deferred_import import DeferredModule, torch, transformers
from tests.runtime.interop.small_llama import CONFIG, model, tokenizer_file

their_adapter = DeferredModule("lm_eval.models.huggingface")
ONE_DEVICE = make_mesh(MeshShape(), jax.devices()[:1])
MAX_LENGTH = CONFIG.max_position_embeddings
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "naïve",
    "café",
    "日本",
    "42",
    ",",
    ".",
    "don't",
]


def text(seed: int, num_words: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=num_words))


def request(kind: str, *arguments: object) -> Instance:
    return Instance(kind, {}, tuple(arguments), 0, metadata=("a_task", 0, 1))


@pytest.fixture(scope="module")
def without_bos(tmp_path_factory):
    """Return our adapter and theirs, over one exported folder."""
    return adapters(tmp_path_factory.mktemp("export"), with_bos=False, params=model())


@pytest.fixture(scope="module", params=[False, True], ids=["no-bos", "bos"])
def both(request, without_bos, tmp_path_factory):
    """Return the adapters over a folder without a BOS token, then over one with it."""
    return adapters(tmp_path_factory.mktemp("bos"), with_bos=True, params=model()) if request.param else without_bos


def adapters(
    folder: Path, *, with_bos: bool, params: LlamaParams, chat_template: str | None = None, **described: Any
) -> tuple[LlamaHarness, Any]:
    """Return the adapters over one folder; `described` are further settings of its model's files."""
    special = SpecialTokens(0, 1 if with_bos else None)
    write_model(str(folder), params, CONFIG, LLAMA3_ROPE, special, dtype="float32")
    source = tokenizer_file(folder.parent / f"tokenizer-{with_bos}.json", with_bos=with_bos)
    write_tokenizer(str(folder), str(source), special, vocab_size=CONFIG.vocab_size, max_length=MAX_LENGTH)
    for name in ("config.json", "generation_config.json"):
        (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | described))
    if chat_template is not None:
        (folder / "chat_template.jinja").write_text(chat_template)
    read = read_model(str(folder))
    placed = PlacedModel(read.params, read.config, read.rope, compute_dtype=jnp.float32, mesh=ONE_DEVICE)
    ours = LlamaHarness(
        placed, read.tokenizer, read.special_tokens, end_token_ids=read.end_token_ids, template=read.template,
        tokens_per_batch=1024,
    )  # fmt: skip
    theirs = their_adapter.HFLM(
        pretrained=transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32),
        tokenizer=transformers.AutoTokenizer.from_pretrained(folder),
        batch_size=4,
        device="cpu",
    )
    return ours, theirs


def a_model(**options: Any) -> PlacedModel:
    return PlacedModel(model(), CONFIG, LLAMA3_ROPE, **{"compute_dtype": jnp.float32, "mesh": ONE_DEVICE} | options)


def a_scorer(**options: Any) -> Scorer:
    return Scorer(a_model(), **{"tokens_per_batch": 512} | options)


def greedy(prompts: Sequence[tuple[int, ...]], num_tokens: int, is_finished: Callable = lambda _, text: False) -> list:
    asked = [Prompt(prompt, num_tokens, None, 0) for prompt in prompts]
    texts = dict(Generator(a_model()).generate(asked, is_finished))
    return [texts[number] for number in range(len(prompts))]


def greedy_continuation(ours: LlamaHarness, context: str) -> str:
    return ours.generate_until([request("generate_until", context, {"until": [], "max_gen_toks": 3})])[0]


def test_log_likelihoods_and_greedy_flags_equal_those_of_lm_evals_own_adapter(both):
    ours, theirs = both
    pairs = [(text(i, 1 + i * 5), " " + text(100 + i, 1 + i % 4)) for i in range(24)]
    pairs += [(text(7, 12), f" {letter}") for letter in "ABCD"]  # one shared context, one token each
    pairs += [("", text(8, 4)), ("trailing space ", "fox"), ("two spaces  ", " fox"), ("Answer:", "\nthe dog")]
    pairs += [(text(9, 200), " " + text(10, 3)), ("<|begin_of_text|>the", " fox"), ("<|end_of_text|>the", " fox")]
    pairs += [("", f"<|{side}_of_text|>over a lazy dog") for side in ("begin", "end")]
    pairs += [(context, greedy_continuation(ours, context)) for context in (text(11, 9), text(12, 30))]
    requests = [request("loglikelihood", *pair) for pair in pairs]
    expected, found = theirs.loglikelihood(requests, disable_tqdm=True), ours.loglikelihood(requests)
    np.testing.assert_allclose([x[0] for x in found], [x[0] for x in expected], atol=1e-3)
    assert [x[1] for x in found] == [x[1] for x in expected]
    assert {x[1] for x in found} == {True, False}
    assert ours.num_truncated["a_task"] >= 1


BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"
UNUSUAL = {
    "loglikelihood": [
        ("t", "he"), ("quic", "k"), ("the quick", ""), ("", ""), (" ", "fox"), ("   ", "   "), ("the", " "),
        ("", BEGIN), ("", f"{END}fox"), (f"{BEGIN}{BEGIN}the", " fox"), (f"{BEGIN}the {BEGIN}", " fox"),
        (f"the {BEGIN}{BEGIN}", "fox"), (END * 2, " fox"), (text(5, 300), " the fox"), ("日本", "é"), ("é", "é日本"),
        ("the\n\n", "fox"), ("the\t ", "\tfox"), ("the fox", END), ("the", f" fox{END}"), (" the", " the"),
        ("👩‍👧 the", "👩‍👧"),
        *((text(6, words), " a lazy dog") for words in range(62, 66)), ("e\u0301", "\u0301"), ("the\u00a0", "fox"),
    ],
    "loglikelihood_rolling": [
        (BEGIN,), (f"{BEGIN}the fox",), (f"{BEGIN}{BEGIN}the fox",), (END,), ("日本é",), (text(3, 120),),
        (" ",), ("\n\nthe",), (f"the {END}the",), ("👩‍👧",), *((text(6, words),) for words in range(62, 66)),
    ],
    "generate_until": [
        (prompt, {"until": until, "max_gen_toks": 12})
        for prompt in ("the", "naïve 日本", f"{BEGIN}{BEGIN}the", text(5, 300))
        for until in ([], ["ï", "日", "own"], ["w"], ["\ufffd"])
    ]
    + [
        (prompt, {"max_gen_toks": 9, **more})
        for prompt in (" ", "the\n", f"the {END}", "👩‍👧")
        for more in ({}, {"until": "o"}, {"until": ["e", "xf"]}, {"until": [END, " "]})
    ],
}  # fmt: skip
"""Merges across the border, no tokens at all, several BOS, too long, and stop strings inside a token or a character."""


@pytest.mark.parametrize("kind", UNUSUAL)
def test_unusual_requests_are_answered_or_refused_as_by_lm_evals_own_adapter(both, kind):
    num_refused = 0
    for arguments in UNUSUAL[kind]:
        ours, theirs = (answer_of(adapter, kind, arguments) for adapter in both)
        assert (ours is None) == (theirs is None), arguments
        num_refused += ours is None
        if ours is None or kind == "generate_until":
            assert ours == theirs, arguments
        else:
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, err_msg=str(arguments))
    assert (num_refused > 0) == (kind == "loglikelihood")


def answer_of(adapter: Any, kind: str, arguments: tuple[Any, ...]) -> Any:
    try:
        (found,) = getattr(adapter, kind)([request(kind, *copy.deepcopy(arguments))], disable_tqdm=True)
    except (AssertionError, IndexError, ValueError):
        return None
    return found


def test_of_equally_likely_tokens_the_first_is_taken_as_by_lm_evals_own_adapter(tmp_path):
    params = model()
    params = dataclasses.replace(params, lm_head=jnp.repeat(params.lm_head[:, ::2], 2, axis=1))
    pair = adapters(tmp_path, with_bos=False, params=params)
    prompts = [(text(seed, 5), {"until": [], "max_gen_toks": 12}) for seed in range(4)]
    for prompt in prompts:
        ours, theirs = (answer_of(adapter, "generate_until", prompt) for adapter in pair)
        assert ours == theirs
    context = prompts[0][0]
    scored = [(context, pair[0]._decode([token])) for token in range(40, 120)]
    ours, theirs = (
        adapter.loglikelihood([request("loglikelihood", *arguments) for arguments in scored], disable_tqdm=True)
        for adapter in pair
    )
    assert [flag for _, flag in ours] == [flag for _, flag in theirs]


@pytest.mark.parametrize(("context", "num_truncated"), [("", 0), ("the quick brown fox", 1)])
def test_a_truncated_prompt_counts_once_for_any_continuation(both, context, num_truncated):
    ours, _ = both
    before = ours.num_truncated["long"]
    long = Instance("loglikelihood", {}, (context, text(2, 3 * MAX_LENGTH)), 0, metadata=("long", 0, 1))
    ours.loglikelihood([long])
    assert ours.num_truncated["long"] - before == num_truncated


def test_rolling_log_likelihoods_cover_texts_longer_than_the_context(both):
    ours, theirs = both
    texts = ["fox", text(1, 20), text(2, 400), text(3, 97)]
    assert len(ours.tok_encode(texts[2])) > 2 * MAX_LENGTH
    requests = [request("loglikelihood_rolling", string) for string in texts]
    np.testing.assert_allclose(
        ours.loglikelihood_rolling(requests), theirs.loglikelihood_rolling(requests, disable_tqdm=True), rtol=1e-5
    )


def test_a_continuation_longer_than_the_context_counts_every_token_once(both):
    ours, _ = both
    texts = [text(2, 400), text(3, 97)]
    assert len(ours.tok_encode(texts[0])) > 2 * MAX_LENGTH
    scores = ours.loglikelihood([request("loglikelihood", "", string) for string in texts])
    whole = ours.loglikelihood_rolling([request("loglikelihood_rolling", string) for string in texts])
    if not ours.tok_encode(""):  # else a whole text begins with a token more
        np.testing.assert_allclose([score for score, _ in scores], whole, rtol=1e-5)
    np.testing.assert_allclose([score for score, _ in scores], whole, rtol=1e-2)
    (behind,) = ours.loglikelihood([request("loglikelihood", text(4, 30), " " + texts[0])])
    assert np.isfinite(behind[0]) and not behind[1]


@pytest.mark.parametrize("likeliest", list(itertools.product([True, False], repeat=3)))
def test_a_continuation_longer_than_the_context_is_greedy_if_every_part_is(without_bos, likeliest, monkeypatch):
    ours, _ = without_bos
    string = " ".join(["the"] * (5 * MAX_LENGTH // 2))
    num_tokens = len(ours.tok_encode(string, add_special_tokens=False))
    assert 2 * MAX_LENGTH < num_tokens <= 3 * MAX_LENGTH
    asked = []

    def score(sequences):
        asked.extend(sequences)
        return [Score(-1.0, flag) for flag in (True, *likeliest, True)]

    monkeypatch.setattr(ours._scorer, "score", score)
    short = request("loglikelihood", "the", " fox")
    found = ours.loglikelihood([short, request("loglikelihood", "", string), short])
    assert found == [(-1.0, True), (-3.0, all(likeliest)), (-1.0, True)]
    assert sum(len(sequence.targets) for sequence in asked[1:4]) == num_tokens


def test_greedy_text_equals_that_of_lm_evals_own_adapter(without_bos):
    ours, theirs = without_bos
    contexts = [text(i, n) for i, n in enumerate((1, 5, 9, 30, 300))]
    free = [request("generate_until", context, {"until": [], "max_gen_toks": 12}) for context in contexts]
    expected = theirs.generate_until(free, disable_tqdm=True)
    assert ours.generate_until(free) == expected
    stop = expected[0][2:4]
    stopped = [request("generate_until", context, {"until": [stop], "max_gen_toks": 12}) for context in contexts]
    found = ours.generate_until(stopped)
    assert found == theirs.generate_until(stopped, disable_tqdm=True)
    assert found[0] == expected[0].split(stop)[0] != expected[0]
    # Whichever of several comes first in the text.
    several = [
        request("generate_until", context, {"until": ["never", stop], "max_gen_toks": 12}) for context in contexts
    ]
    assert ours.generate_until(several) == found


def test_repeats_of_a_sampled_request_differ_whatever_is_asked_beside_them(without_bos):
    ours, _ = without_bos
    ways = {"temperature": 1.0, "seed": 3, "max_gen_toks": 6}
    sampled, other = (request("generate_until", text(seed, 6), ways) for seed in (20, 21))
    first, beside, again = ours.generate_until([sampled, other, sampled])
    assert first != again
    assert ours.generate_until([other]) == [beside]


def test_a_truncated_prompt_of_generated_text_is_counted(without_bos):
    ours, _ = without_bos
    asked = [Instance("generate_until", {}, (prompt, {"max_gen_toks": 2}), 0, metadata=("written", 0, 1))
             for prompt in (text(1, 3), text(2, 3 * MAX_LENGTH))]  # fmt: skip
    before = ours.num_truncated["written"]
    ours.generate_until(asked)
    assert ours.num_truncated["written"] - before == 1


def test_a_prompt_that_fits_beside_its_generated_text_is_not_truncated(without_bos):
    ours, _ = without_bos
    prompt = " ".join(["the"] * 100)
    room = len(ours.tok_encode(prompt))
    for too_many, task in enumerate(("fits", "one too many")):
        arguments = (prompt, {"max_gen_toks": MAX_LENGTH - room + too_many, "until": []})
        ours.generate_until([Instance("generate_until", {}, arguments, 0, metadata=(task, 0, 1))])
        assert ours.num_truncated[task] == too_many


def test_an_empty_context_is_the_beginning_of_a_text(both):
    ours, _ = both
    beginning = "<|begin_of_text|>" if ours.prefix_token_id == 1 else "<|end_of_text|>"
    assert ours.tok_encode(beginning) == [ours.prefix_token_id]
    assert greedy_continuation(ours, "") == greedy_continuation(ours, beginning)
    with expect_error(ValueError):
        ours.loglikelihood([request("loglikelihood", "the quick fox", "")])


STRICT = (
    "{% for message in messages %}{% if message.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "<{{ message.role }}>{{ message.content | trim }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
SYSTEM, QUESTION, REPLY = (
    {"role": role, "content": text(seed, 6)} for seed, role in enumerate(("system", "user", "assistant"))
)


def test_conversations_and_their_several_ends_are_those_of_lm_evals_own_adapter(without_bos, tmp_path):
    prompt = text(30, 6)
    written = greedy([tuple(without_bos[0].tok_encode(prompt))], 12)[0]
    end = written[5]
    # Files of chat models list several ends, and may name a BOS that their tokenizer does not put before a text.
    ours, theirs = adapters(
        tmp_path, with_bos=False, params=model(), chat_template=STRICT, eos_token_id=[0, end], bos_token_id=1
    )
    assert (ours.prefix_token_id, ours.eot_token_id) == (theirs.prefix_token_id, theirs.eot_token_id) == (0, 0)
    for turns in ([QUESTION], [SYSTEM, QUESTION], [SYSTEM, QUESTION, REPLY, QUESTION]):
        assert ours.apply_chat_template(turns) == theirs.apply_chat_template(turns)
        with_reply = ([*turns, REPLY], False)
        assert ours.apply_chat_template(*with_reply) == theirs.apply_chat_template(*with_reply)
    asked = [(prompt, {"until": [], "max_gen_toks": 12}), (ours.apply_chat_template([QUESTION]), {"max_gen_toks": 12})]
    for arguments in asked:
        found, expected = (answer_of(adapter, "generate_until", arguments) for adapter in (ours, theirs))
        assert found == expected
    assert answer_of(ours, "generate_until", asked[0]) == ours._decode(written[: written.index(end) + 1])
    for kind, arguments in (("loglikelihood", ("", "the fox")), ("loglikelihood_rolling", ("the fox",))):
        found, expected = (answer_of(adapter, kind, arguments) for adapter in (ours, theirs))
        np.testing.assert_allclose(found, expected, rtol=1e-4)
    ours._template = ChatTemplate("{{ raise_exception('no conversation') }}", {})
    with expect_error(ChatTemplateError):
        ours.apply_chat_template([QUESTION])


def test_text_ends_before_the_end_of_text_token(without_bos):
    ours, _ = without_bos
    tokens = [ours.tok_encode("fox", add_special_tokens=False)[0], ours.eot_token_id, 40, 41]
    assert ours._cut(tokens, ()) == ours._decode(tokens[:1])


def test_generation_ends_at_the_end_of_text_token_or_a_stop_string(without_bos, monkeypatch):
    ours, _ = without_bos
    word = ours.tok_encode("fox", add_special_tokens=False)
    found = []

    def generate(prompts, is_finished):
        found.extend(is_finished(0, tokens) for tokens in (word, [*word, ours.eot_token_id], [*word, *word]))
        return [(0, word)]

    monkeypatch.setattr(ours._generator, "generate", generate)
    ours.generate_until([request("generate_until", "now the", {"until": ["never", "xf"], "max_gen_toks": 3})])
    assert found == [False, True, True]


def test_a_score_is_the_plain_sum_of_log_softmax_at_the_targets(monkeypatch):
    # A batch has more targets than the head takes at once, and the last of them are fewer.
    monkeypatch.setattr("runtime.evaluation.scoring.QUERIES_PER_BATCH", 100)
    monkeypatch.setattr("runtime.evaluation.scoring.FEW_QUERIES", 20)
    params = model()
    scorer = a_scorer()
    rng = np.random.default_rng(0)
    sequences = []
    for _ in range(30):
        length = int(rng.integers(1, MAX_LENGTH + 1))
        tokens = tuple(int(t) for t in rng.integers(0, CONFIG.vocab_size, length + 1))
        sequences.append(Scored(tokens[:-1], tokens[-int(rng.integers(1, length + 1)) :]))
    for sequence, score in zip(sequences, scorer.score(sequences), strict=True):
        expected, is_greedy = plain_score(params, sequence)
        assert score.log_likelihood == pytest.approx(expected, abs=2e-3)
        assert score.is_greedy == is_greedy


@jax.jit
def plain_logits(params: LlamaParams, tokens: jax.Array) -> jax.Array:
    frequencies = inverse_frequencies(LLAMA3_ROPE, CONFIG.head_dim)
    segment_ids = jnp.zeros_like(tokens)
    return logits(CONFIG.build(), params, tokens, segment_ids, frequencies, computation=whole(jnp.float32))


def plain_score(params: LlamaParams, sequence: Scored) -> tuple[float, bool]:
    tokens = np.zeros((1, MAX_LENGTH), np.int32)
    tokens[0, : len(sequence.inputs)] = sequence.inputs
    values = np.asarray(plain_logits(params, tokens), np.float64)[0, : len(sequence.inputs)]
    log_shares = (values - np.logaddexp.reduce(values, axis=-1, keepdims=True))[-len(sequence.targets) :]
    picked = log_shares[np.arange(len(sequence.targets)), list(sequence.targets)]
    return float(picked.sum()), bool((log_shares.argmax(-1) == np.array(sequence.targets)).all())


def test_every_kind_of_request_together_compiles_few_programs(without_bos):
    ours, _ = without_bos
    config = dataclasses.replace(CONFIG, rms_norm_eps=2e-5)  # programs of its own
    placed = PlacedModel(model(), config, LLAMA3_ROPE, compute_dtype=jnp.float32, mesh=ONE_DEVICE)
    harness = LlamaHarness(placed, ours._tokenizer, SpecialTokens(0, None), tokens_per_batch=512)
    built = placed_model.program_of
    programs: list[Any] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(placed_model, "program_of", lambda *key: programs.append(built(*key)) or programs[-1])
        for seed in range(3):
            texts = [text(seed + n, 1 + 4 * n) for n in range(12)]
            harness.loglikelihood([request("loglikelihood", string, " fox") for string in texts])
            harness.loglikelihood_rolling([request("loglikelihood_rolling", string) for string in texts])
            harness.generate_until([request("generate_until", string, {"max_gen_toks": 4}) for string in texts])
    assert sum(program._cache_size() for program in set(programs)) <= 10


def test_the_score_of_a_sequence_does_not_depend_on_others():
    scorer = a_scorer()
    lonely = Scored((5, 6, 7, 8), (7, 9))
    crowd = [Scored(tuple(range(n, n + 60)), (1,)) for n in range(40)]
    (alone,) = scorer.score([lonely])
    together = scorer.score([*crowd, lonely])[-1]
    assert together.log_likelihood == pytest.approx(alone.log_likelihood, abs=1e-4)


class Asked(Watchdog):
    """Notes what was waited for."""

    def __init__(self) -> None:
        super().__init__("batch")
        self.numbers: list[int] = []

    def awaits(self, number):
        self.numbers.append(number)
        return super().awaits(number)


def test_the_watchdog_sees_each_wait_for_scores_and_for_each_new_token():
    asked = Asked()
    placed = a_model(watchdog=asked)
    Scorer(placed).score([Scored((5, 6, 7, 8), (7, 9))])
    list(Generator(placed).generate([Prompt((5, 6), 3, None, 0)], lambda number, tokens: False))
    assert asked.numbers == [1, 2, 3, 4]


def test_progress_ends_at_the_number_of_sequences():
    seen: list[tuple[int, int]] = []
    scorer = a_scorer(on_progress=lambda done, total: seen.append((done, total)))
    scorer.score([Scored(tuple(range(n % 30, n % 30 + 100)), (n % 4,)) for n in range(60)])
    assert len(seen) > 2 and seen == sorted(seen) and seen[-1] == (60, 60)


def test_a_continuation_is_greedy_only_if_each_of_its_tokens_is():
    scorer, prompt = a_scorer(), (5, 6, 7)

    def likeliest(tokens: tuple[int, ...]) -> int:
        ((token,),) = greedy([tokens], 1)
        return token

    first = likeliest(prompt)
    other = (first + 1) % CONFIG.vocab_size
    both, last_alone, first_alone = (
        (first, likeliest((*prompt, first))),
        (other, likeliest((*prompt, other))),
        (first, (likeliest((*prompt, first)) + 1) % CONFIG.vocab_size),
    )
    sequences = [Scored((*prompt, targets[0]), targets) for targets in (both, last_alone, first_alone)]
    assert [score.is_greedy for score in scorer.score(sequences)] == [True, False, False]


def test_a_short_text_takes_no_tokens_of_its_neighbours():
    prompts = [(5, 6, 7, 8), (9, 10, 11), (12, 13), (14,)]
    free = [greedy([prompt], 4)[0] for prompt in prompts]
    lasts = [tuple(text[:length]) for text, length in zip(free, (1, 4, 2, 4), strict=True)]
    assert len(set(lasts)) == len(prompts)
    found = greedy(prompts, 4, lambda _, tokens: tuple(tokens) in lasts)
    assert found == [list(last) for last in lasts]


def test_no_requests_give_no_scores():
    assert a_scorer().score([]) == []
    assert greedy([], 3) == []


@pytest.mark.parametrize(
    "sequence",
    [
        Scored((1, 2), ()),
        Scored((1,), (1, 2)),
        Scored((1,) * (MAX_LENGTH + 1), (1,)),
        Scored((1,), (CONFIG.vocab_size,)),
    ],
)
def test_a_sequence_that_does_not_fit_the_model_is_an_error(sequence):
    with expect_error(ValueError):
        a_scorer().score([sequence])


def test_generation_arguments_are_read_as_lm_eval_reads_them():
    read = generation_request({"until": "\nQ:", "do_sample": False, "temperature": 0.7, "max_new_tokens": 9})
    assert read == GenerationRequest(("\nQ:",), 9)
    assert generation_request({"until": ["</s>"]}) == GenerationRequest(("</s>",), 256)
    assert generation_request({"temperature": None, "max_gen_toks": 3}) == GenerationRequest((), 3)
    drawn = generation_request({"temperature": 0.8, "top_p": 0.9, "top_k": 40, "seed": 7})
    assert drawn == GenerationRequest((), 256, Sampling(0.8, 0.9, 40, 7))
    assert generation_request({"do_sample": False, "temperature": 0.8, "top_k": 40}).sampling is None
    assert generation_request({"max_gen_toks": None}).max_new_tokens == generation_request({}).max_new_tokens


@pytest.mark.parametrize(
    "arguments",
    [
        {"do_sample": True},
        {"temperature": 0.8, "top_p": 0.0},
        {"temperature": 0.8, "top_k": -1},
        {"num_beams": 4},
        {"until": [3]},
        {"until": ["\n", ""]},
    ],
)
def test_impossible_and_unknown_generation_arguments_are_an_error(arguments):
    with expect_error(GenerationError):
        generation_request(arguments)


@pytest.mark.parametrize("arguments", [{"do_sample": True}, {"max_gen_toks": MAX_LENGTH}])
def test_an_impossible_generation_is_an_error_before_any_request(without_bos, arguments):
    longest = request("generate_until", "the fox", {"max_gen_toks": MAX_LENGTH - 1})
    without_bos[0].check_requests([longest])
    with expect_error(GenerationError):
        without_bos[0].check_requests([longest, request("generate_until", "the fox", arguments)])


@pytest.mark.parametrize(
    ("kind", "last", "row_tokens"),
    [
        ("generate_until", {"max_gen_toks": 56}, 512),
        ("loglikelihood", " dog", 256),
        ("loglikelihood_rolling", None, 256),
    ],
)
def test_a_request_that_no_device_has_room_for_is_an_error_with_its_item_before_any_request(
    without_bos, monkeypatch, kind, last, row_tokens
):
    ours, _ = without_bos
    monkeypatch.setattr(ours, "_device_room", DeviceRoom(longest_text=128, row_tokens=row_tokens))
    monkeypatch.setattr(ours, "_max_length", 2 * MAX_LENGTH)
    num_words = 72 if kind == "generate_until" else 200
    fitting, long = (" ".join(["the"] * number) for number in (num_words, num_words + 56 + 1))
    assert len(ours.tok_encode(fitting)) == num_words

    def asked(*texts: str) -> list[Instance]:
        parts = ((text,) if last is None else (text, last) for text in texts)
        return [Instance(kind, {}, part, 0, metadata=("a_task", 7 + n, 1)) for n, part in enumerate(parts)]

    ours.check_requests(asked(fitting))
    with expect_error(ValueError):
        ours.check_requests(asked(fitting, long))


def test_text_longer_than_the_context_is_an_error(without_bos):
    ours, _ = without_bos
    with expect_error(GenerationError):
        ours.generate_until([request("generate_until", "fox", {"max_gen_toks": MAX_LENGTH})])


def test_one_config_field_scores_in_bfloat16_close_to_float32():
    config = LlamaConfig(**{**CONFIG.__dict__, "max_position_embeddings": 64})
    sequences = [Scored(tuple(range(n, n + 20)), (n + 3,)) for n in range(8)]
    exact, rough = (
        Scorer(PlacedModel(model(), config, LLAMA3_ROPE, compute_dtype=dtype, mesh=ONE_DEVICE)).score(sequences)
        for dtype in (jnp.float32, jnp.bfloat16)
    )
    assert all(isinstance(score, Score) for score in rough)
    np.testing.assert_allclose([s.log_likelihood for s in rough], [s.log_likelihood for s in exact], atol=0.5)
    assert exact != rough


@pytest.mark.parametrize("compute_dtype", ["float32", "bfloat16"])
def test_a_bfloat16_export_scores_the_same_widened_or_not(tmp_path, compute_dtype):
    special = SpecialTokens(eos_token_id=0, bos_token_id=None)
    write_model(str(tmp_path), model(), CONFIG, LLAMA3_ROPE, special, dtype="bfloat16")
    tokenizer_file(tmp_path / "tokenizer.json")
    stored, widened = (read_model(str(tmp_path), as_stored=as_stored) for as_stored in (True, False))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(stored.params)} == {"bfloat16"}
    assert {leaf.dtype.name for leaf in jax.tree.leaves(widened.params)} == {"float32"}
    rng = np.random.default_rng(0)
    sequences = [
        Scored(tuple(rng.integers(0, 320, length).tolist()), tuple(rng.integers(0, 320, 5).tolist()))
        for length in (9, 60, 200)
    ]
    dtype = np.dtype(jnp.dtype(compute_dtype))
    scores = [
        Scorer(PlacedModel(read.params, read.config, read.rope, compute_dtype=dtype, mesh=ONE_DEVICE)).score(sequences)
        for read in (stored, widened)
    ]
    for ours, wide in zip(*scores, strict=True):
        assert ours.log_likelihood == pytest.approx(wide.log_likelihood, abs=1e-4)
        assert ours.is_greedy == wide.is_greedy
    assert min(score.log_likelihood for score in scores[0]) < -10, "or agreement would be cheap"
