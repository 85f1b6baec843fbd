"""Train a quality classifier: wanted and unwanted documents in, a scorer out."""

import functools

from pydantic import BaseModel, Field

from marin_dag.errors import UserError
from marin_dag.graph.step import Input, Runtime, StepContext, step
from steps.documents import DocumentsResult

CLASSIFIER_FOLDER = "classifier"


class TrainQualityClassifierConfig(BaseModel, frozen=True, extra="forbid"):
    """A classifier like DCLM's (arXiv:2406.11794, section 4.4), of instructions and explanations against web pages."""

    positives: tuple[Input[DocumentsResult], ...] = Field(min_length=1)
    negatives: tuple[Input[DocumentsResult], ...] = Field(min_length=1)
    documents_per_class: int = Field(default=200_000, ge=1)
    """About how many documents are sampled by a hash of their texts, if there are so many. Training holds all of them:
    about 2 GB for the default of web pages."""
    max_characters: int = Field(default=20_000, ge=1)
    """Training reads this much of a text, so that one book does not fill the memory."""
    max_ngram_words: int = Field(default=2, ge=1, le=5)
    table_bits: int = Field(default=20, ge=8, le=26)
    """The table has two to this many rows of 4 bytes."""
    epochs: int = Field(default=5, ge=1)
    held_out_share: float = Field(default=0.05, gt=0, lt=1)
    shards_in_flight: Runtime[int] = 64


class QualityClassifierResult(BaseModel, frozen=True, extra="forbid"):
    classifier: str
    """Folder of the model, relative to the step's output."""
    num_positives: int
    """Sampled documents, held-out ones included."""
    num_negatives: int
    num_held_out: int
    held_out_accuracy: float
    """The share of held-out documents whose more probable class is right."""
    held_out_positives_found: float
    held_out_negatives_found: float


class SampledShard(BaseModel, frozen=True, extra="forbid"):
    num_documents: int


@step(policy="tracked", packages=("numpy", "pyarrow"))
def train_quality_classifier(config: TrainQualityClassifierConfig, context: StepContext) -> QualityClassifierResult:
    """Write the n-grams of sampled documents by shard, then train on all of them in one process."""
    from runtime.text.quality_training import TrainingSet, read_sample

    work = [*_shards(config.positives, True, config), *_shards(config.negatives, False, config)]
    sample = functools.partial(_sample_shard, config.max_characters, config.max_ngram_words, config.table_bits)
    found = context.map(sample, work, in_flight=config.shards_in_flight, name="features")
    num_positives, num_negatives = (
        sum(shard.num_documents for shard, item in zip(found, work, strict=True) if item[1] == is_positive)
        for is_positive in (True, False)
    )
    samples = [read_sample(f"{context.output_path}/features/{index:05d}") for index in range(len(work))]
    training = TrainingSet(samples, [is_positive for _, is_positive, _ in work], config.held_out_share)
    if not training.has_both_labels():
        raise UserError(
            f"{context.name}: {num_positives:,} positive and {num_negatives:,} negative documents are too few to train "
            "on and to hold some out. Give more of both."
        )
    model = training.train(epochs=config.epochs, max_ngram_words=config.max_ngram_words, table_bits=config.table_bits)
    model.save(f"{context.output_path}/{CLASSIFIER_FOLDER}")
    negative, positive = training.held_out(model)
    return QualityClassifierResult(
        classifier=CLASSIFIER_FOLDER,
        num_positives=num_positives,
        num_negatives=num_negatives,
        num_held_out=training.num_held_out,
        held_out_accuracy=(negative.num_right + positive.num_right) / training.num_held_out,
        held_out_positives_found=positive.num_right / max(positive.num_documents, 1),
        held_out_negatives_found=negative.num_right / max(negative.num_documents, 1),
    )


def _shards(
    inputs: tuple[Input[DocumentsResult], ...], is_positive: bool, config: TrainQualityClassifierConfig
) -> list[tuple[str, bool, float]]:
    """Return the shards of a class, its label, and the fraction of its documents that is sampled."""
    total = sum(documents.result.num_documents for documents in inputs)
    fraction = min(1.0, config.documents_per_class / max(total, 1))
    return [(documents.join(shard), is_positive, fraction) for documents in inputs for shard in documents.result.shards]


def _sample_shard(
    max_characters: int, max_ngram_words: int, table_bits: int, item: tuple[str, bool, float], path: str
) -> SampledShard:
    from runtime.text.documents import read_batches
    from runtime.text.quality_training import sampled, write_sample

    shard, _, fraction = item
    sample = sampled(
        ([document.text for document in batch] for batch in read_batches(shard)),
        fraction=fraction,
        max_characters=max_characters,
        max_ngram_words=max_ngram_words,
        table_bits=table_bits,
    )
    write_sample(path, sample)
    return SampledShard(num_documents=len(sample.keys))
