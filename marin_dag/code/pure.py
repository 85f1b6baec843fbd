"""Pure calls: functions of Python and of packages without side effects."""

import builtins
import functools
import re
import sys
import tomllib
from pathlib import Path

_PURE_BUILTINS = frozenset({
    "abs", "all", "any", "ascii", "bin", "bool", "bytearray", "bytes", "callable", "chr", "classmethod", "complex",
    "dict", "divmod", "enumerate", "filter", "float", "format", "frozenset", "hasattr", "hash", "hex", "int",
    "isinstance", "issubclass", "len", "list", "map", "max", "min", "object", "oct", "ord", "pow", "property", "range",
    "repr", "reversed", "round", "set", "slice", "sorted", "staticmethod", "str", "sum", "super", "tuple", "type",
    "zip",
})  # fmt: skip
_EXCEPTIONS = frozenset(
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
)
CONSUMERS = frozenset({
    "all", "any", "bytes", "dict", "frozenset", "list", "max", "min", "set", "sorted", "sum", "tuple",
})  # fmt: skip
"""Builtins that read an iterator to its end."""
ITERATORS = frozenset({"enumerate", "filter", "iter", "map", "reversed", "zip", "collections.defaultdict"})
"""Functions that return iterators, or dictionaries that grow when read; all of `itertools` do too."""
_PURE_PACKAGES = frozenset({
    "abc", "ast", "base64", "collections", "concurrent", "contextlib", "copy", "dataclasses", "datetime", "decimal",
    "enum", "fractions", "functools", "hashlib", "html", "inspect", "itertools", "json", "logging", "marin_dag", "math",
    "numbers", "operator", "pathlib", "pydantic", "pydantic_core", "re", "regex", "statistics", "string", "struct",
    "textwrap", "threading", "time", "types", "typing", "typing_extensions", "unicodedata", "urllib", "weakref", "zlib",
})  # fmt: skip
_PROJECT_FILE = Path(__file__).resolve().parents[2] / "pyproject.toml"
_ACTING = frozenset({
    "add", "addHandler", "addLevelName", "at", "atexit", "attrgetter", "basicConfig", "call", "captureWarnings",
    "config", "copyto", "delitem", "disable", "dump", "environ", "exec", "fill_diagonal", "iadd", "iand", "iconcat",
    "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior", "ipow", "irshift", "isub", "itruediv", "ixor", "load",
    "methodcaller", "now", "pack_into", "place", "put", "putmask", "random", "read", "register", "run", "save",
    "seed", "set", "setbufsize", "setcontext", "seterr", "seterrcall", "setitem", "setLoggerClass",
    "singledispatch_register", "sleep", "start", "today", "update", "update_wrapper", "urlopen", "utcnow", "write",
})  # fmt: skip
"""Functions and submodules of these packages that have side effects, or whose results vary."""
_ACTING_PREFIXES = ("register_", "set_", "setattr", "add_", "save_", "load_", "manual_seed", "rand")
_KEEPERS = frozenset({
    "asynccontextmanager", "cached_property", "callable", "cast", "checkpoint", "classmethod", "contextmanager",
    "custom_jvp", "custom_vjp", "dataclass", "Field", "field", "filter_custom_vjp", "filter_jit", "final",
    "isinstance", "issubclass", "jit", "override", "Partial", "partial", "property", "runtime_checkable",
    "singledispatch", "staticmethod", "ThreadPoolExecutor", "total_ordering", "wraps",
})  # fmt: skip
"""Functions of Python and of packages that store their function arguments without calling them."""
_READING_KINDS = (str, bytes, tuple, frozenset, int, float, complex, range, list, dict, set, re.Pattern, re.Match)
_READING_ARRAYS = frozenset({
    "T", "all", "any", "argmax", "argmin", "argsort", "astype", "cumsum", "dot", "dtype", "elements", "getChild",
    "getEffectiveLevel", "isEnabledFor", "isoformat", "item", "itemsize", "joinpath", "max", "mean", "min",
    "most_common", "name", "nbytes", "ndim", "parent", "parts", "prod", "ravel", "relative_to", "reshape", "resolve",
    "round", "shape", "size", "std", "stem", "suffix", "sum", "tobytes", "tolist", "transpose", "view", "with_name",
    "with_suffix",
})  # fmt: skip
_BASES_OF_RECORDS = frozenset({"abc", "enum", "equinox", "pydantic", "typing", "typing_extensions"})
STATEFUL = frozenset({"decimal", "locale", "os", "sys", "warnings"})
"""Packages whose values and results depend on earlier settings."""
CONFIGURABLE = frozenset({"jax", "numpy", "pandas", "torch"})
"""Packages whose functions depend on earlier settings."""
_GROWERS = frozenset({
    "add", "append", "clear", "difference_update", "discard", "extend", "insert", "intersection_update", "pop",
    "popitem", "remove", "reverse", "setdefault", "sort", "symmetric_difference_update", "update",
})  # fmt: skip
READERS = (
    frozenset(name for kind in _READING_KINDS for name in dir(kind) if not name.startswith("_")) - _GROWERS
) | _READING_ARRAYS
"""Methods that change no object of Python or of packages; any other method may change its object."""


def is_pure_builtin(name: str) -> bool:
    return name in _PURE_BUILTINS or name in _EXCEPTIONS


def is_pure(dotted: str) -> bool:
    """Return whether a call of a package's function has no side effects."""
    package, *rest = dotted.split(".")
    return (package in _PURE_PACKAGES or package in quiet_packages()) and not any(
        part in _ACTING or part.startswith(_ACTING_PREFIXES) for part in rest
    )


@functools.cache
def quiet_packages() -> frozenset[str]:
    """Return the packages that the project declares to be pure, in `[tool.marin-dag]` of its `pyproject.toml`."""
    if not _PROJECT_FILE.is_file():
        return frozenset()
    return frozenset(
        tomllib.loads(_PROJECT_FILE.read_text()).get("tool", {}).get("marin-dag", {}).get("quiet-packages", ())
    )


def calls_its_arguments(dotted: str) -> bool:
    """Return whether a function may call its arguments or their methods."""
    if dotted.startswith(("marin_dag.", "pydantic.", "typing.", "typing_extensions.")):
        return False
    return dotted not in _EXCEPTIONS and dotted.rpartition(".")[2] not in _KEEPERS


def is_calm_base(dotted: str) -> bool:
    """Return whether a package's class, or a builtin, registers no subclasses."""
    package = dotted.partition(".")[0]
    return package in sys.stdlib_module_names or package in _PURE_PACKAGES or package in quiet_packages()


def calls_no_method(dotted: str) -> bool:
    """Return whether constructing an instance below this base calls no overridable method but constructors."""
    return dotted.partition(".")[0] in _BASES_OF_RECORDS
