"""Dedup spans as a step: a removed sentence survives in a document that stays, across sources."""

import pytest

from runtime.text.documents import read_documents
from runtime.text.span_rule import RepeatedSpans
from steps.dedup_spans import TOO_LITTLE, DedupSpansConfig, dedup_spans
from tests.steps.text_steps import WrittenConfig, written

BANNER = "This site uses cookies. Accept them all now. Or go away from here."
FACT = "A toy of Nuremberg was wound in 1580."
PROSE = "The toy went out to sea. Nobody knew who had wound it. It was a child of the valley."
MORE = "Wood is what it was made of. The key was made of iron. Both were lost in the river."
END_OF_BANNER = BANNER.partition(". ")[2]


@pytest.fixture
def without_spans(run_alone):
    """Return `without_spans(name, shards, *against)`, which returns the output and its texts."""

    def run(name, shards, *against, keys_per_task=8_000_000):
        documents = run_alone(written, WrittenConfig(shards=shards), f"{name}-written")
        config = DedupSpansConfig(
            documents=documents, against=against, spans=RepeatedSpans(), keys_per_task=keys_per_task
        )
        output = run_alone(dedup_spans, config, name)
        return output, [document.text for document in read_documents([output.join(s) for s in output.result.shards])]

    return run


@pytest.mark.parametrize("keys_per_task", [1, 8_000_000])
@pytest.mark.parametrize("is_one_shard", [True, False], ids=["one shard", "three shards"])
def test_a_document_with_little_left_stays_if_another_lost_a_sentence_for_it(
    without_spans, is_one_shard, keys_per_task
):
    texts = (f"{BANNER} {PROSE}", f"{BANNER} {FACT}", f"{MORE} {END_OF_BANNER} {FACT}")
    shards = (texts,) if is_one_shard else tuple((text,) for text in texts)
    output, left = without_spans("toys", shards, keys_per_task=keys_per_task)
    assert left == [f"{BANNER} {PROSE}", FACT, MORE]
    assert (output.result.num_edited, output.result.num_held, output.result.dropped) == (2, 1, {})
    assert output.result.dropped_spans == (None,) * len(shards)


def test_a_later_source_keeps_what_was_dropped_from_an_earlier_one(without_spans):
    earlier, left = without_spans("earlier", ((f"{BANNER} {PROSE}",), (f"{BANNER} {FACT}",)))
    assert left == [f"{BANNER} {PROSE}"]
    assert earlier.result.dropped == {TOO_LITTLE: 1}
    later, left = without_spans("later", ((f"{MORE} {END_OF_BANNER} {FACT}", f"{PROSE} {MORE}"),), earlier)
    assert left == [f"{MORE} {END_OF_BANNER} {FACT}"]
    assert later.result.dropped == {TOO_LITTLE: 1}
    _, left = without_spans("last", ((f"{PROSE} {MORE} {FACT} The end. So it was.",),), earlier, later)
    assert left == [f"{FACT} The end. So it was."]
