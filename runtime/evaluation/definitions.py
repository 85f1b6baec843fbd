"""Definitions of tasks: read from their YAML, without importing lm-eval or running the functions that they name."""

import functools
import importlib.metadata
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from runtime.evaluation.registry import DefinitionError, definitions, installed, members

DEFAULT_MAX_NEW_TOKENS = 256
"""lm-eval's default for definitions without a number."""
MAX_NEW_TOKENS_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
GENERATED = "generate_until"
_NO_SETTINGS = frozenset({
    "group", "group_alias", "task", "aggregate_metric_list", "task_alias", "tag", "metadata", "weight_by_size",
    "dataset_path", "dataset_name", "dataset_kwargs", "training_split", "validation_split", "test_split",
    "fewshot_split",
})  # fmt: skip
"""Fields of a group or its entry that change no task here: they concern tables, or rows, which recipes name."""


class Facts(NamedTuple):
    """The facts of a definition that a plan needs."""

    output_type: str
    num_choices: int | None
    """Number of choices of every item; None unless the definition lists them."""
    num_fewshot: int
    """Worked examples in a prompt, unless a recipe sets another number."""
    has_examples: bool
    """Whether the worked examples are in the definition, and not drawn from rows."""
    num_examples: int | None
    """Number of worked examples in the definition; None if a function returns them."""
    max_new_tokens: int
    """Longest generated answer in tokens; 0 where nothing is generated, or a class sets it."""
    runs_code: bool
    """Whether a metric runs generated code."""
    is_class: bool = False
    """Whether the task is a Python class, which alone knows how many tokens it generates."""


class _Function(str):
    """The name of a function, as `!function` gives it."""


class _SafeLoader(yaml.CSafeLoader):
    """A YAML loader that reads a function as its name."""


_SafeLoader.add_constructor("!function", lambda loader, node: _Function(loader.construct_scalar(node)))


@functools.cache
def find_definition(name: str) -> str:
    """Return the path of a definition of lm-eval's registry below `installed()`; reads thousands of files.

    Raises:
        DefinitionError: no definition has this name.
    """
    names = re.compile(rf"^(task|group)\s*:\s*[\"']?{re.escape(name)}[\"']?\s*(#.*)?$".encode(), re.MULTILINE)
    root = installed()
    first = name.partition("_")[0]
    # Folders are mostly named as their tasks begin.
    folders = sorted(root.iterdir(), key=lambda folder: (not folder.name.startswith(first), folder.name))
    for path in (path for folder in folders for path in sorted(folder.rglob("*.yaml"))):
        if names.search(path.read_bytes()):
            return str(path.relative_to(root))
    raise DefinitionError(
        f"task {name!r}: lm-eval {importlib.metadata.version('lm_eval')} has no such task. `tasks` lists the usual "
        "ones; for a definition of your own, give the path of its .yaml file."
    )


def read_definition(path: Path) -> dict[str, Any]:
    """Return a definition merged with the definitions that it includes; functions are their names.

    Raises:
        DefinitionError: a file is missing, or is no definition.
    """
    return _read(path, (), [])


def files_of(path: Path) -> list[Path]:
    """Return the files of a user's definition: its YAML, its includes, its functions' modules and its group's tasks.

    Raises:
        DefinitionError: a file is missing, is no definition, or lies outside the definition's folder.
    """
    found: list[Path] = []
    entries = read_group(path.parent, path.name) if "group" in read_definition(path) else []
    for yaml_name in {path.name: None, **{place: None for each in entries for place, _ in each.leaves.values()}}:
        _read(path.parent / yaml_name, (), found)
    root = path.parent.resolve()
    for file in found:
        if not file.is_relative_to(root):
            raise DefinitionError(
                f"{path}: {file} lies outside the folder of the definition; move it into this folder."
            )
    return sorted({file.relative_to(root) for file in found})


def _read(path: Path, above: tuple[Path, ...], found: list[Path]) -> dict[str, Any]:
    """Return a definition; append its files to `found`."""
    path = path.resolve()
    try:
        read = yaml.load(path.read_bytes(), Loader=_SafeLoader)
    except (OSError, yaml.YAMLError) as error:
        raise DefinitionError(f"{path}: cannot be read as a task definition ({error}). Correct the file.") from error
    if not isinstance(read, dict):
        raise DefinitionError(f"{path}: is a {type(read).__name__}; a task definition is a mapping with a `task`.")
    modules = (path.parent / f"{name.rpartition('.')[0].replace('.', '/')}.py" for name in _functions(read))
    found += [path, *(module for module in modules if module.exists())]
    merged: dict[str, Any] = {}
    includes = read.pop("include", [])
    for name in includes if isinstance(includes, list) else [includes]:
        included = (path.parent / name).resolve()
        if included in (path, *above):
            raise DefinitionError(f"{path}: includes itself through {name}; remove the `include`.")
        merged |= _read(included, (path, *above), found)
    return merged | read


def _functions(value: Any) -> Iterator[str]:
    match value:
        case _Function():
            yield value
        case dict():
            for item in value.values():
                yield from _functions(item)
        case list():
            for item in value:
                yield from _functions(item)


def modules_of(path: Path) -> list[Path]:
    """Return the Python modules whose functions a definition names."""
    files: list[Path] = []
    _read(path, (), files)
    return [file for file in dict.fromkeys(files) if file.suffix == ".py"]


def read_facts(path: Path, settings: str = "") -> Facts:
    """Return the facts of a definition with the settings of its group.

    Raises:
        DefinitionError: a field is no mapping.
    """
    read = read_definition(path) | (json.loads(settings) if settings else {})
    choices = read.get("doc_to_choice")
    for name in ("fewshot_config", "generation_kwargs"):
        if not isinstance(read.get(name) or {}, dict):
            raise DefinitionError(f"{path}: {name} is {read[name]!r}; write a mapping.")
    samples = (read.get("fewshot_config") or {}).get("samples")
    output_type, is_class = read.get("output_type") or GENERATED, "class" in read
    arguments = read.get("generation_kwargs") or {}
    limits = [int(arguments[name]) for name in MAX_NEW_TOKENS_NAMES if arguments.get(name) is not None]
    return Facts(
        output_type=output_type,
        num_choices=len(choices) if isinstance(choices, list) else None,
        num_fewshot=int(read.get("num_fewshot") or 0),
        has_examples=samples is not None,
        num_examples=len(samples) if isinstance(samples, list) else None,
        max_new_tokens=0 if output_type != GENERATED or is_class else next(iter(limits), DEFAULT_MAX_NEW_TOKENS),
        runs_code=bool(read.get("unsafe_code")),
        is_class=is_class,
    )


def names_in(folder: Path) -> dict[str, Path]:
    """Return the tasks and groups that the YAML files below a folder define.

    Raises:
        DefinitionError: there are none, or a file cannot be read.
    """
    found = {file: read_definition(file) for file in sorted(folder.rglob("*.yaml"))}
    if not found:
        raise DefinitionError(f"{folder}: has no .yaml files; give the folder of the task definitions.")
    return {str(each.get("group") or each.get("task")): file for file, each in found.items()}


class Entry(NamedTuple):
    """A task of a group, or a group inside it."""

    name: str
    num_fewshot: int | None
    """Worked examples that the group sets; None leaves them to the definition."""
    leaves: dict[str, tuple[str, str]]
    """Task -> path of its definition below the root, and further settings of the group as JSON ("" for none)."""


def read_group(
    root: Path, yaml_name: str, settings: Mapping[str, Any] = MappingProxyType({}), above: tuple[str, ...] = ()
) -> list[Entry]:
    """Return the entries of a group's file below `root`, whose tasks have `settings` in place of the group's.

    Raises:
        DefinitionError: a task has no definition, or the group has settings that only a task's own file can hold.
    """
    path = root / yaml_name
    if yaml_name in above:
        raise DefinitionError(f"{path}: the group holds itself; remove it from its tasks.")
    read = read_definition(path)
    known = {name: str(file.relative_to(root)) for name, file in names_in(path.parent).items()}

    def entries_of(name: str, given: dict[str, Any]) -> list[Entry]:
        base = given.pop("include", None)
        if base is not None:
            return [_leaf(name, str((path.parent / base).relative_to(root)), given)]
        if name not in known and root == installed():
            if members(name)[0] in definitions():
                return _together(name, [_leaf(each, definitions()[each], given) for each in members(name)])
            known[name] = find_definition(name)
        if name not in known:
            raise DefinitionError(f"{path}: {path.parent} has no definition of {name!r}; add it.")
        if "group" not in read_definition(root / known[name]):
            return [_leaf(name, known[name], given)]
        return _together(name, read_group(root, known[name], given, (*above, yaml_name)))

    inherited = {**_settings(read), **settings}
    return [found for each in read["task"] for found in _entries(each, path, inherited, entries_of)]


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a group or an entry sets for its tasks."""
    return {name: value for name, value in given.items() if name not in _NO_SETTINGS}


def _entries(
    entry: Any, path: Path, inherited: Mapping[str, Any], entries_of: Callable[[str, dict[str, Any]], list[Entry]]
) -> list[Entry]:
    """Return what an item of a group's list is: a name, a name with settings, or a group written out."""
    fields = {"task": entry} if isinstance(entry, str) else entry
    given, name = {**inherited, **_settings(fields)}, fields.get("task")
    if isinstance(name, list):
        inner = [found for each in name for found in _entries(each, path, given, entries_of)]
        return _together(str(fields.get("group")), inner)
    if not isinstance(name, str) or (functions := list(_functions(given))):
        what = f"names the functions {functions}" if isinstance(name, str) else "has no `task: NAME`"
        raise DefinitionError(f"{path}: the entry {entry} {what}; write this task in a file of its own.")
    return entries_of(name, given)


def _leaf(name: str, yaml_name: str, given: Mapping[str, Any]) -> Entry:
    settings = {field: value for field, value in given.items() if field != "num_fewshot"}
    text = json.dumps(settings, sort_keys=True) if settings else ""
    return Entry(name, given.get("num_fewshot"), {name: (yaml_name, text)})


def _together(name: str, entries: list[Entry]) -> list[Entry]:
    """Return one entry for a group, or its entries where they have different numbers of worked examples."""
    if len({entry.num_fewshot for entry in entries}) != 1:
        return entries
    leaves = {leaf: place for entry in entries for leaf, place in entry.leaves.items()}
    return [Entry(name, entries[0].num_fewshot, leaves)]
