"""Resources: what a step asks the cluster for. Never identity: the same step on other chips is the same step."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Cpu:
    """Cores of one machine; `num_cpus=0` only schedules."""

    num_cpus: int

    def __post_init__(self) -> None:
        if self.num_cpus < 0:
            raise ValueError(f"Cpu.num_cpus is {self.num_cpus}; ask for 0 cores or more.")

    def __str__(self) -> str:
        return f"{self.num_cpus} cpu"


@dataclasses.dataclass(frozen=True)
class Gpu:
    """`count` accelerators of one kind, by Ray's name for it ("H200")."""

    kind: str
    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"Gpu.count is {self.count}; ask for 1 or more, or use Cpu.")

    def __str__(self) -> str:
        return f"{self.count} x {self.kind}"


@dataclasses.dataclass(frozen=True)
class Tpu:
    """Whole slices by their public name: `Tpu("v4-2048")`, `Tpu("v5litepod-256", num_slices=2)`."""

    slice: str
    num_slices: int = 1

    def __post_init__(self) -> None:
        generation, _, size = self.slice.rpartition("-")
        if not generation or not size.isdigit():
            raise ValueError(f"Tpu.slice is {self.slice!r}; write generation and size, such as 'v4-2048'.")
        if self.num_slices < 1:
            raise ValueError(f"Tpu.num_slices is {self.num_slices}; ask for 1 or more.")

    def __str__(self) -> str:
        return self.slice if self.num_slices == 1 else f"{self.num_slices} x {self.slice}"


Resources = Cpu | Gpu | Tpu
