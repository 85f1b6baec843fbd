"""Special tokens are those of the tokenizer's file, and the sample does not depend on how sources are cut."""

import hashlib
from pathlib import Path

import pytest
from tokenizers.processors import TemplateProcessing

from marin_dag.errors import UserError
from marin_dag.graph.inputs import Input
from runtime.text.documents import Document, read_documents, sample_key, size_of, write_documents
from runtime.text.tokenizer_training import BEGIN_OF_TEXT, END_OF_TEXT, LONGEST_RUN, _cut, train
from steps.documents import DocumentsResult
from steps.input_tokenizer import InputTokenizerConfig, LocalTokenizer, input_tokenizer
from steps.train_tokenizer import TrainTokenizerConfig, train_tokenizer
from tests.catalogue import expect_error


@pytest.fixture
def taken(run_alone, tmp_path):
    """Return a function that imports a tokenizer of 256 bytes and two special tokens."""
    document = train(["x"], vocab_size=258).to_str()
    (tmp_path / "tokenizer.json").write_text(document)
    local = LocalTokenizer(folder=str(tmp_path), sha256=hashlib.sha256(document.encode()).hexdigest())
    return lambda **names: run_alone(input_tokenizer, InputTokenizerConfig(tokenizer=local, **names), "tokenizer")


@pytest.mark.parametrize("misspelt", ["<|begin_of_txt|>", "<s>", ""])
def test_a_bos_token_missing_from_the_file_is_refused(taken, misspelt):
    with expect_error(UserError):
        taken(bos_token=misspelt)


def test_an_eos_token_missing_from_the_file_is_refused(taken):
    with expect_error(UserError):
        taken(eos_token="<|eot_id|>")


def test_bos_is_omitted_only_on_request(taken):
    assert taken(bos_token=None).result.bos_token_id is None


def test_the_names_of_llama_3_are_the_defaults(taken):
    result = taken().result
    assert (result.bos_token_id, result.eos_token_id, result.vocab_size) == (0, 1, 258)


def test_a_file_saved_with_padding_is_imported(run_alone, tmp_path):
    tokenizer = train(["x"], vocab_size=258)
    tokenizer.enable_padding(length=16, pad_token=END_OF_TEXT, pad_id=1)
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    local = LocalTokenizer(folder=str(tmp_path), sha256=hashlib.sha256(tokenizer.to_str().encode()).hexdigest())
    assert run_alone(input_tokenizer, InputTokenizerConfig(tokenizer=local), "tokenizer").result.bos_token_id == 0


@pytest.mark.parametrize(
    ("added", "bos_token"), [([BEGIN_OF_TEXT], None), ([BEGIN_OF_TEXT, END_OF_TEXT], BEGIN_OF_TEXT)]
)
def test_a_file_that_opens_texts_with_other_tokens_is_refused(run_alone, tmp_path, added, bos_token):
    tokenizer = train(["x"], vocab_size=258)
    template = " ".join([added[0], "$A", *added[1:]])
    specials = [(token, tokenizer.token_to_id(token)) for token in added]
    tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=specials)
    document = tokenizer.to_str()
    (tmp_path / "tokenizer.json").write_text(document)
    local = LocalTokenizer(folder=str(tmp_path), sha256=hashlib.sha256(document.encode()).hexdigest())
    with expect_error(UserError):
        run_alone(input_tokenizer, InputTokenizerConfig(tokenizer=local, bos_token=bos_token), "tokenizer")


def test_only_very_long_runs_of_characters_are_cut_for_the_trainer():
    """Uncut, each of the two runs would take the trainer a quarter of an hour."""
    texts = ["a book of words"] * 3
    long = "x" + " " * 1_000_000 + "y" + "ACGT" * 250_000
    assert train([*texts, long], vocab_size=262).get_vocab_size() == 262
    assert "".join(_cut(long)) == long
    assert max(len(run) for piece in _cut(long) for run in piece.split(" ")) <= LONGEST_RUN
    assert list(_cut("word " * LONGEST_RUN)) == ["word " * LONGEST_RUN]


def cut(folder: Path, documents: list[Document], num_shards: int) -> Input[DocumentsResult]:
    """Return the documents in `shards` shards, in their order."""
    names = []
    for index in range(num_shards):
        names.append(f"{index}.parquet")
        part = slice(index * len(documents) // num_shards, (index + 1) * len(documents) // num_shards)
        write_documents(str(folder / names[-1]), documents[part])
    size = sum(map(size_of, documents))
    result = DocumentsResult(shards=tuple(names), num_documents=len(documents), num_bytes=size, dropped={})
    return Input(name="documents", digest="d" * 64, path=str(folder), result=result)


def lowest(documents: list[Document], num_bytes: int) -> list[Document]:
    """Return the sample by its definition."""
    taken, size = [], 0
    for document in sorted(documents, key=sample_key):
        if size < num_bytes:
            taken.append(document)
            size += size_of(document)
    return [document for document in documents if document in taken]


MANY_SMALL = [Document(f"s/{number}", f"Text number {number * 7919} of many. " * 4, "s") for number in range(800)]
FEW_LARGE = [Document(f"l/{number}", f"Text {number * 104729} as long as a book. " * 60, "l") for number in range(9)]


@pytest.fixture
def sampled(run_alone, tmp_path, monkeypatch):
    """Return the texts of a training, and the digest."""

    def sample(sources, num_shards, **changes):
        seen = []
        train_on = train
        monkeypatch.setattr(
            "runtime.text.tokenizer_training.train",
            lambda texts, *, vocab_size: train_on(seen.extend(texts) or seen, vocab_size=vocab_size),
        )
        cuts = {
            name: cut(tmp_path / f"{name}-{num_shards}", documents, num_shards) for name, documents in sources.items()
        }
        config = TrainTokenizerConfig(documents=cuts, vocab_size=270, **changes)
        made = run_alone(train_tokenizer, config, f"tokenizer-{num_shards}")
        monkeypatch.setattr("runtime.text.tokenizer_training.train", train_on)
        return seen, made.result.digest

    return sample


def test_the_sample_agrees_with_its_definition_for_1_2_or_16_shards(sampled):
    sources = {"small": MANY_SMALL, "large": FEW_LARGE}
    found = [sampled(sources, num_shards, bytes_per_source=4_000) for num_shards in (1, 2, 16)]
    expected = [document.text for documents in (FEW_LARGE, MANY_SMALL) for document in lowest(documents, 4_000)]
    assert [texts for texts, _ in found] == [expected] * 3
    assert len({digest for _, digest in found}) == 1


def test_shards_sample_no_more_than_the_wanted_bytes(run_alone, tmp_path):
    documents = cut(tmp_path / "documents", MANY_SMALL, 2)
    config = TrainTokenizerConfig(documents={"small": documents}, vocab_size=270, bytes_per_source=4_000)
    made = run_alone(train_tokenizer, config, "tokenizer")
    shards = sorted(str(path) for path in Path(made.path).glob("samples/*/documents.parquet"))
    held = [sum(map(size_of, read_documents([shard]))) for shard in shards]
    assert len(held) == 2 and all(size < 4_000 + 150 for size in held)
