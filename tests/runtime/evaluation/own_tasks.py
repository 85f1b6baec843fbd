"""Own tasks: a group of two, with a shared template, a filter, and a module that prepares the rows."""

import json
from pathlib import Path

FILES = {
    "animals.yaml": "group: animals\ntask:\n  - dogs\n  - foxes\n",
    "dogs.yaml": "include: _template\ntask: dogs\n",
    "foxes.yaml": "include: _template\ntask: foxes\ndescription: Foxes follow.\n",
    "_template": """
output_type: multiple_choice
process_docs: !function rows.prepare
doc_to_text: "Q: {{question}}\\nA:"
doc_to_choice: [the, fox, dog]
doc_to_target: "{{answer}}"
num_fewshot: 1
metric_list:
  - metric: acc
  - metric: acc_norm
""",
    "rows.py": "def prepare(rows):\n    return rows.filter(lambda row: row['answer'] >= 0)\n",
    "written.yaml": """
task: written
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 4}
filter_list:
  - name: number
    filter:
      - {function: regex, regex_pattern: "(\\\\d)"}
      - {function: take_first}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
""",
    "rolled.yaml": """
task: rolled
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list:
  - metric: bits_per_byte
""",
    "classed.yaml": "task: classed\nclass: !function classed.Classed\n",
    "classed.py": """
import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask


class Classed(ConfigurableTask):
    DATASET_PATH = "of/a-hub"

    def __init__(self, **options):
        super().__init__(config={"metadata": {"version": 1}})

    def has_validation_docs(self):
        return True

    def validation_docs(self):
        return self.dataset["validation"]

    def doc_to_text(self, doc):
        return doc["question"]

    def doc_to_target(self, doc):
        return f" {doc['answer']}"

    def construct_requests(self, doc, ctx, chat_template=None, apply_chat_template=False, **options):
        way = {"until": ["\\n"], "max_gen_toks": 4}
        return [
            Instance(request_type="generate_until", doc=doc, arguments=(ctx, way), idx=0, **options),
            Instance(request_type="loglikelihood", doc=doc, arguments=(ctx, " none"), idx=1, **options),
        ]

    def process_results(self, doc, results):
        text, (log_likelihood, _) = results
        return {"right": float(str(doc["answer"]) in text), "none": log_likelihood}

    def aggregation(self):
        return {"right": np.mean, "none": np.mean}

    def higher_is_better(self):
        return {"right": True, "none": False}
""",
    "unused.yaml": "task: unused\n",
}


def write_own_tasks(folder: Path) -> Path:
    """Write the definitions, and rows of which one is no item; return the folder."""
    (folder / "items").mkdir(parents=True)
    for name, content in FILES.items():
        (folder / name).write_text(content)
    for task in ("dogs", "foxes", "written", "rolled", "classed"):
        rows = [{"question": f"Which {task} is {number}?", "answer": number % 3} for number in range(6)]
        rows.append({"question": "no item", "answer": -1})
        (folder / "items" / f"{task}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return folder
