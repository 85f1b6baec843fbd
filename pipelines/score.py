"""Score models without training: folders in Hugging Face's format, or models of the hub at a pinned commit.

    python -m pipelines.score FOLDER --tasks piqa,arc_easy:25 --limit 200
    python -m pipelines.score hub:OWNER/NAME@COMMIT FOLDER --tasks mmlu:5 --against published.json

Several models are also compared item by item. Scores are steps: made once, resumed after a kill, explained by `why`.
"""

import argparse
import dataclasses
import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from marin_dag.cli import main as command_line
from marin_dag.cli.session import Session, command
from marin_dag.errors import UserError
from marin_dag.graph.resources import Cpu
from marin_dag.graph.step import Step
from marin_dag.run.supply import usable_cpus
from pipelines import recipe
from pipelines.chat_templates import required_template
from pipelines.machines import MACHINES, resources_named
from pipelines.score_table import print_table, read_published
from pipelines.scoring import add_argument, generated_code
from pipelines.tasks_command import show_tasks
from runtime.evaluation.definitions import names_in, read_definition
from runtime.evaluation.registry import groups
from runtime.evaluation.suites import SUITES, TaskSpec
from steps.download import DownloadConfig, download
from steps.evaluation_items import OwnItemsConfig, own_evaluation_items
from steps.fetch import Fetch, HuggingFaceModel, files_in, model_in

HUB = "hub:"


def build(arguments: argparse.Namespace) -> Sequence[Step[Any]]:
    """Return the steps that score each model."""
    if not arguments.model or not arguments.tasks:
        raise UserError("name a model and its tasks: `python -m pipelines.score FOLDER --tasks piqa,arc_easy:25`.")
    if arguments.against is not None:
        read_published(arguments.against)  # before anything runs
    items = None if arguments.items is None else _own_items(arguments.items)
    own = {} if arguments.include_path is None else names_in(Path(arguments.include_path))
    tasks = [_entry(word.strip(), own, arguments.items) for word in arguments.tasks.split(",")]
    names = _names(arguments.model)
    resources = Cpu(usable_cpus()) if arguments.on is None else resources_named(arguments.on)
    is_chat = arguments.apply_chat_template
    with generated_code(arguments.run_generated_code):
        return [
            recipe.score(
                download(f"download/{name}", DownloadConfig(fetch=_fetch(model, is_chat))),
                tasks,
                items=items,
                resources=resources,
                limit=arguments.limit,
                compute_dtype=arguments.compute_dtype,
                apply_chat_template=is_chat,
            )
            for name, model in names.items()
        ]


def task_named(word: str) -> TaskSpec:
    """Return the task that `TASK` or `TASK:SHOTS` names."""
    task, colon, shots = word.partition(":")
    if colon and not shots.isdecimal():
        raise UserError(f"--tasks {word}: {shots!r} is no number of worked examples; write TASK or TASK:5.")
    return TaskSpec(task, int(shots) if colon else None)


def _entry(word: str, own: Mapping[str, Path], items: str | None) -> TaskSpec | Sequence[TaskSpec]:
    """Return the suite of that name, or the task; a task goes before a suite."""
    is_suite = word in SUITES and word not in {*groups(), *own}
    return SUITES[word] if is_suite else _with_own(task_named(word), own, items)


def _with_own(spec: TaskSpec, own: Mapping[str, Path], items: str | None) -> TaskSpec:
    """Return the spec of a task, with definition and rows if it is among a user's own."""
    if spec.task not in own:
        return spec
    if items is None:
        raise UserError(f"--tasks {spec.task}: a task of --include-path needs its rows: --items DIR with TASK.jsonl.")
    path = own[spec.task]
    rows = "*" if "group" in read_definition(path) else spec.task
    return dataclasses.replace(spec, task=str(path), items=f"{items.rstrip('/')}/{rows}.jsonl")


def _fetch(model: str, is_chat: bool) -> Fetch:
    if model.startswith(HUB):
        repository, at, revision = model.removeprefix(HUB).partition("@")
        if not at:
            raise UserError(f"{model}: pin the commit that its page on the hub shows: {model}@COMMIT.")
        return HuggingFaceModel(repo=repository, revision=revision)
    found = model_in(model)
    if "://" not in model:  # a remote folder is read after its download
        from runtime.interop.huggingface_config import read_json
        from runtime.model.architectures import config_from_huggingface

        file = f"{found.folder}/config.json"
        config_from_huggingface(read_json(file), file)  # refuses a model that the project cannot represent
        if is_chat:
            _check_template(Path(found.folder))
    return found


def _check_template(folder: Path) -> None:
    from runtime.interop.chat_template import CONFIG, FILE
    from runtime.interop.huggingface_config import read_text

    texts = {name: read_text(str(folder / name)) for name in (FILE, CONFIG) if (folder / name).is_file()}
    required_template("--apply-chat-template", folder, texts, cure=f"add a {FILE} to the folder")


def _own_items(folder: str) -> Step[Any]:
    return own_evaluation_items(
        "items", OwnItemsConfig(download=download("download/items", DownloadConfig(fetch=files_in(folder, "*.jsonl"))))
    )


def _names(models: Sequence[str]) -> dict[str, str]:
    """Return a step's name for each model: its last part, or more where two end alike."""
    names: dict[str, str] = {}
    for model in models:
        name = next((label for label in _labels(model) if label not in names), "")
        if not name or model in names.values():
            raise UserError(f"--model {model}: given twice; name each model once.")
        names[name] = model
    return names


def _labels(model: str) -> Iterator[str]:
    """Yield what a model may be called, the shortest first."""
    place, revision = model if "://" in model else str(Path(model).absolute()), ""
    if model.startswith(HUB):
        place, _, revision = model.removeprefix(HUB).partition("@")
    parts = PurePosixPath(place).parts
    for count in range(1, len(parts) + 1):
        label = re.sub(r"[^A-Za-z0-9_.-]+", "-", "-".join(parts[-count:])).strip("-._")
        if label:
            yield from (label, f"{label}-{revision[:8]}") if revision else (label,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options for models, tasks and machines."""
    add = parser.add_argument
    add("--model", action="append", default=[], metavar="FOLDER|hub:ID@REV", help="a model; also as leading words")
    add("--tasks", metavar="TASK[:SHOTS],...", help="tasks of lm-eval, such as piqa,arc_easy:25, or suites")
    add("--limit", type=int, metavar="N", help="only the first N items of each task")
    add("--items", metavar="DIR", help="items of your own, one TASK.jsonl a task, in place of the evaluation package")
    add("--include-path", metavar="DIR", help="tasks of your own: YAML files of lm-eval, with their rows in --items")
    add("--against", metavar="FILE.json", help="published scores to compare with (docs/reference/evaluation.md)")
    add("--compute-dtype", choices=("float32", "bfloat16"), default="float32", help="of the model (default float32)")
    add("--apply-chat-template", action="store_true", help="prompts are conversations, worked examples their turns")
    add("--on", metavar="MACHINE", help=f"machine of each score: {MACHINES} (default: every core here)")
    add_argument(parser)


@command("tasks", "list the tasks that can be scored: form, shots, chance, items, suites")
def tasks(session: Session) -> int:
    parsed = session.parsed
    return show_tasks(session, session.graph().steps if parsed.model and parsed.tasks else ())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code. If the first word is no command, words before the options are models."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    words = list(itertools.takewhile(lambda word: not word.startswith("-"), given))
    if words and words[0] not in {*command_line.COMMANDS, tasks.name}:
        given = [part for word in words for part in ("--model", word)] + given[len(words) :]
    if arguments is None:
        sys.argv[1:] = given  # printed commands repeat them
    return command_line.main(
        build,
        name="score",
        add_arguments=add_arguments,
        commands=(tasks,),
        after_run=print_table,
        argv=None if arguments is None else given,
    )


if __name__ == "__main__":
    sys.exit(main())
