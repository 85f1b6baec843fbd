"""Pure calls: functions of Python and of packages that change nothing but what they return."""

import builtins
import functools
import tomllib
from pathlib import Path

_PURE_BUILTINS = frozenset(
    {
        *(
            "abs",
            "all",
            "any",
            "ascii",
            "bin",
            "bool",
            "bytearray",
            "bytes",
            "callable",
            "chr",
            "classmethod",
            "complex",
        ),
        *("dict", "divmod", "enumerate", "filter", "float", "format", "frozenset", "getattr", "hasattr", "hash", "hex"),
        *("int", "isinstance", "issubclass", "len", "list", "map", "max", "min", "object", "oct", "ord", "pow"),
        *("property", "range", "repr", "reversed", "round", "set", "slice", "sorted", "staticmethod", "str", "sum"),
        *("super", "tuple", "type", "zip"),
    }
)
_EXCEPTIONS = frozenset(
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
)
PLAIN_BUILTINS = frozenset(
    {
        *("bool", "bytearray", "bytes", "complex", "dict", "enumerate", "float", "frozenset", "int", "len", "list"),
        *("range", "repr", "set", "sorted", "str", "tuple"),
    }
)
"""Builtins whose results have no methods of a project."""
_PURE_PACKAGES = frozenset(
    {
        *("abc", "ast", "base64", "collections", "concurrent", "contextlib", "copy", "dataclasses", "datetime"),
        *("decimal", "enum", "fractions", "functools", "hashlib", "html", "inspect", "itertools"),
        *("json", "logging", "marin_dag", "math", "numbers", "operator", "pathlib", "pydantic", "pydantic_core"),
        *("re", "regex", "statistics", "string", "struct", "textwrap"),
        *("threading", "types", "typing", "typing_extensions", "unicodedata", "urllib", "weakref", "zlib"),
    }
)
_PROJECT_FILE = Path(__file__).resolve().parents[2] / "pyproject.toml"
_ACTING = frozenset(
    {
        *(
            "add",
            "addHandler",
            "addLevelName",
            "atexit",
            "basicConfig",
            "captureWarnings",
            "config",
            "copyto",
            "disable",
        ),
        *("dump", "environ", "exec", "fill_diagonal", "load", "now", "place", "put", "putmask", "random", "read"),
        *("register", "run", "save", "seed", "set", "setLoggerClass", "singledispatch_register", "start", "today"),
        *("update", "update_wrapper", "urlopen", "utcnow", "write"),
    }
)
"""Names in a dotted name of those packages that do act, or whose results differ from call to call."""
_ACTING_PREFIXES = ("register_", "set_", "setattr", "add_", "save_", "load_")
ONE_SHOT_BUILTINS = frozenset({"enumerate", "filter", "map", "reversed", "zip"})
"""Builtins whose results a reader uses up."""
_ONE_SHOT_OR_FILLED = ("collections.defaultdict", "itertools.")
"""Beginnings of dotted names whose results a reader changes."""
_PLAIN_CALLS = frozenset(
    {
        *("collections.Counter", "collections.OrderedDict", "collections.deque"),
        *("pathlib.Path", "pathlib.PurePosixPath", "re.compile", "types.MappingProxyType"),
    }
)
_KEEPS_FUNCTIONS = frozenset(
    {
        *("contextlib.asynccontextmanager", "contextlib.contextmanager", "dataclasses.dataclass", "dataclasses.field"),
        *("functools.cached_property", "functools.partial", "functools.singledispatch", "functools.total_ordering"),
        *("functools.wraps"),
        *(
            "concurrent.futures.ThreadPoolExecutor",
            "jax.tree_util.Partial",
            "typing.cast",
            "typing.runtime_checkable",
            "typing.final",
            "typing.override",
        ),
    }
)
"""Wrappers that keep the functions they get, and do not call them."""
CALLS_ITS_FIRST = frozenset({"filter", "map", "reduce"})
MUTATORS = frozenset(
    {
        *("add", "append", "appendleft", "clear", "difference_update", "discard", "extend", "extendleft", "insert"),
        *("intersection_update", "pop", "popitem", "popleft", "remove", "reverse", "rotate", "setdefault", "sort"),
        *("subtract", "symmetric_difference_update", "update", "write", "write_text", "write_bytes", "touch", "mkdir"),
        *("unlink", "rmdir", "rename", "replace_with", "open"),
    }
)
"""Methods of Python's own containers and paths that change something."""


def is_pure_builtin(name: str) -> bool:
    """Return whether calling the builtin `name` changes nothing."""
    return name in _PURE_BUILTINS or name in _EXCEPTIONS


def is_pure(dotted: str) -> bool:
    """Return whether calling what a package has under a dotted name changes nothing."""
    package, *rest = dotted.split(".")
    if package not in _PURE_PACKAGES and package not in _declared("quiet-packages"):
        return False
    return not any(part in _ACTING or part.startswith(_ACTING_PREFIXES) for part in rest)


@functools.cache
def _declared(what: str) -> frozenset[str]:
    """Return what the project declares of its packages in `[tool.marin-dag]` of its `pyproject.toml`."""
    if not _PROJECT_FILE.is_file():
        return frozenset()
    return frozenset(tomllib.loads(_PROJECT_FILE.read_text()).get("tool", {}).get("marin-dag", {}).get(what, ()))


def declarations() -> str:
    """Return all that the project declares."""
    return f"{sorted(_declared('quiet-packages'))} {sorted(_declared('keeping-functions'))}"


def is_plain(dotted: str) -> bool:
    """Return whether the result of calling a dotted name is an object of a package, whose methods call no project."""
    if dotted.startswith(_ONE_SHOT_OR_FILLED):
        return False
    return dotted in _PLAIN_CALLS or (
        is_pure(dotted) and not _is_wrapper(dotted) and not dotted.startswith("pydantic.")
    )


def keeps_functions(dotted: str) -> bool:
    """Return whether calling a dotted name calls none of the functions that it gets."""
    return _is_wrapper(dotted) or dotted.startswith(("marin_dag.", "pydantic."))


def _is_wrapper(dotted: str) -> bool:
    return dotted in _KEEPS_FUNCTIONS or dotted in _declared("keeping-functions")
