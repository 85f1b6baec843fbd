"""Train a quality classifier: wanted and unwanted documents in, a scorer out."""

from pydantic import BaseModel, Field

from marin_dag.errors import UserError
from marin_dag.graph.step import Input, Runtime, StepContext, step
from steps.document_samples import sample_documents
from steps.documents import DocumentsResult

CLASSIFIER_FOLDER = "classifier"
POSITIVE, NEGATIVE = "positive", "negative"


class TrainQualityClassifierConfig(BaseModel, frozen=True, extra="forbid"):
    """A classifier like DCLM's (arXiv:2406.11794, section 4.4), of instructions and explanations against web pages."""

    positives: tuple[Input[DocumentsResult], ...] = Field(min_length=1)
    negatives: tuple[Input[DocumentsResult], ...] = Field(min_length=1)
    bytes_per_class: int = Field(default=1 << 29, ge=1)
    """Text of each class that is sampled by `sample_key`. Training holds about the same in n-grams."""
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


@step(policy="tracked", packages=("numpy", "pyarrow"))
def train_quality_classifier(config: TrainQualityClassifierConfig, context: StepContext) -> QualityClassifierResult:
    """Sample documents of both classes by shard, then train on all of them in one process."""
    from runtime.text.quality import TrainingSet

    groups = {POSITIVE: config.positives, NEGATIVE: config.negatives}
    sample = sample_documents(context, groups, config.bytes_per_class, in_flight=config.shards_in_flight)
    training = TrainingSet(
        ((document.text[: config.max_characters], group == POSITIVE) for group, document in sample),
        held_out_share=config.held_out_share,
        max_ngram_words=config.max_ngram_words,
        table_bits=config.table_bits,
    )
    num_positives = int(training.labels.sum())
    num_negatives = len(training.labels) - num_positives
    if not training.has_both_labels():
        raise UserError(
            f"{context.name}: {num_positives:,} positive and {num_negatives:,} negative documents are too few to train "
            "on and to hold some out. Give more of both."
        )
    model = training.train(epochs=config.epochs)
    model.save(f"{context.output_path}/{CLASSIFIER_FOLDER}")
    labels, are_right = training.held_out(model)
    return QualityClassifierResult(
        classifier=CLASSIFIER_FOLDER,
        num_positives=num_positives,
        num_negatives=num_negatives,
        num_held_out=training.num_held_out,
        held_out_accuracy=float(are_right.mean()),
        held_out_positives_found=float(are_right[labels].sum() / max(labels.sum(), 1)),
        held_out_negatives_found=float(are_right[~labels].sum() / max((~labels).sum(), 1)),
    )
