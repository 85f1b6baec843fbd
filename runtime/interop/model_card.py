"""ModelCard: what an export says about itself, for people (README.md) and for programs (training.json)."""

import dataclasses
import json

import fsspec

from runtime.optim.ema import HOT


@dataclasses.dataclass(frozen=True)
class ModelCard:
    """Facts about an export, none of which changes between two runs of the same step."""

    name: str
    weights: str
    """Name of the exponential moving average that these weights are, or "hot" for the weights themselves."""
    average_decay: float | None
    """Share of the average that each update kept; None for the weights themselves."""
    dtype: str
    step: int
    consumed_tokens: int
    num_parameters: int
    architecture: str
    """The model's title, such as "Llama"."""
    sequence_length: int
    phase_digest: str
    """Identity of the training phase."""
    tokenizer_digest: str
    """SHA-256 of tokenizer.json."""
    num_merged: int = 0
    """Number of checkpoints whose weighted average the weights are; 0 for weights of one checkpoint."""
    merged_weights: str | None = None
    """Weights of the checkpoints that were merged: the name of their average, or "hot"; None without a merge."""

    def markdown(self) -> str:
        """Return the card, with the front matter that model hubs read."""
        meaning = "the weights as last trained"
        if self.average_decay is not None:
            meaning = (
                f"the exponential moving average of the weights with decay {self.average_decay:g}, not the weights as "
                "last trained"
            )
        if self.num_merged:
            which = "weights as last trained" if self.merged_weights == HOT else f"EMA weights `{self.merged_weights}`"
            meaning = f"the weighted average of the {which} of {self.num_merged} checkpoints"
        return f"""---
library_name: transformers
pipeline_tag: text-generation
---
# {self.name}

A {self.architecture} of {self.num_parameters:,} parameters, trained for {self.step:,} updates on
{self.consumed_tokens:,} tokens at a sequence length of {self.sequence_length:,}.

- Weights: **{"merged" if self.num_merged else self.weights}** ({meaning}), stored as {self.dtype}.
- A base model: it continues text. There is no chat template.
- {"Merge" if self.num_merged else "Training phase"} `{self.phase_digest}`
- tokenizer.json, SHA-256 `{self.tokenizer_digest}`

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
```
"""


def write_card(folder: str, card: ModelCard) -> tuple[str, ...]:
    """Write both forms; return the names of the files."""
    document = json.dumps(dataclasses.asdict(card), indent=2, sort_keys=True) + "\n"
    for name, text in (("README.md", card.markdown()), ("training.json", document)):
        with fsspec.open(f"{folder}/{name}", "wb") as file:
            file.write(text.encode())
    return ("README.md", "training.json")
