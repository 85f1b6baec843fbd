"""Definitions of tasks: read from their YAML, without importing lm-eval or running the functions that they name."""

import functools
import importlib.metadata
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

DEFAULT_MAX_NEW_TOKENS = 256
"""lm-eval's default for definitions without a number."""
MAX_NEW_TOKENS_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
GENERATED = "generate_until"


class DefinitionError(ValueError):
    """A definition that is missing or cannot be read."""


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
    """Longest generated answer in tokens; 0 where nothing is generated."""
    runs_code: bool
    """Whether a metric runs generated code."""


class _Function(str):
    """The name of a function, as `!function` gives it."""


class _SafeLoader(yaml.CSafeLoader):
    """A YAML loader that reads a function as its name."""


_SafeLoader.add_constructor("!function", lambda loader, node: _Function(loader.construct_scalar(node)))


def installed() -> Path:
    """Return lm-eval's folder of definitions."""
    return Path(str(importlib.metadata.distribution("lm_eval").locate_file("lm_eval/tasks")))


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
    for yaml_name in {path.name: None, **dict.fromkeys(find_leaves(path.parent, path.name).values())}:
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


def read_facts(path: Path) -> Facts:
    """Return the facts of a definition.

    Raises:
        DefinitionError: the task is a Python class.
    """
    read = read_definition(path)
    if "class" in read:
        raise DefinitionError(f"{path}: the task is a Python class, which reads rows of its own. Use a task in YAML.")
    choices = read.get("doc_to_choice")
    samples = (read.get("fewshot_config") or {}).get("samples")
    output_type = read.get("output_type") or GENERATED
    arguments = read.get("generation_kwargs") or {}
    limits = [int(arguments[name]) for name in MAX_NEW_TOKENS_NAMES if arguments.get(name) is not None]
    return Facts(
        output_type=output_type,
        num_choices=len(choices) if isinstance(choices, list) else None,
        num_fewshot=int(read.get("num_fewshot") or 0),
        has_examples=samples is not None,
        num_examples=len(samples) if isinstance(samples, list) else None,
        max_new_tokens=0 if output_type != GENERATED else next(iter(limits), DEFAULT_MAX_NEW_TOKENS),
        runs_code=bool(read.get("unsafe_code")),
    )


def find_leaves(root: Path, yaml_name: str) -> dict[str, str]:
    """Return the tasks of a group below `root`, or the task itself, with the paths of their definitions.

    Raises:
        DefinitionError: a task has no definition, or the group's file has settings for it.
    """
    read = read_definition(root / yaml_name)
    if "group" not in read:
        return {str(read.get("task")): yaml_name}
    folder = (root / yaml_name).parent
    known = {str(each.get("task")): path for path in sorted(folder.rglob("*.yaml")) if (each := read_definition(path))}
    names = list(_leaf_names(read))
    if missing := [name for name in names if name not in known]:
        raise DefinitionError(f"{root / yaml_name}: {folder} has no definition of {missing}; add it.")
    return {name: str(known[name].relative_to(root)) for name in names}


def _leaf_names(read: Mapping[str, Any]) -> Iterator[str]:
    for entry in read["task"]:
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry.get("task"), list):
            yield from _leaf_names(entry)
        else:
            raise DefinitionError(f"group {read['group']!r}: {entry} has settings; move them to the file of that task.")
