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
    "unused.yaml": "task: unused\n",
}


def write_own_tasks(folder: Path) -> Path:
    """Write the definitions, and rows of which one is no item; return the folder."""
    (folder / "items").mkdir(parents=True)
    for name, content in FILES.items():
        (folder / name).write_text(content)
    for task in ("dogs", "foxes", "written", "rolled"):
        rows = [{"question": f"Which {task} is {number}?", "answer": number % 3} for number in range(6)]
        rows.append({"question": "no item", "answer": -1})
        (folder / "items" / f"{task}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return folder
