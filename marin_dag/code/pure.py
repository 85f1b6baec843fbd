"""Pure calls: functions of Python and of packages that change nothing but what they return."""

import builtins
import functools
import re
import tomllib
from pathlib import Path

_PURE_BUILTINS = frozenset({
    "abs", "all", "any", "ascii", "bin", "bool", "bytearray", "bytes", "callable", "chr", "classmethod", "complex",
    "dict", "divmod", "enumerate", "filter", "float", "format", "frozenset", "getattr", "hasattr", "hash", "hex", "int",
    "isinstance", "issubclass", "len", "list", "map", "max", "min", "object", "oct", "ord", "pow", "property", "range",
    "repr", "reversed", "round", "set", "slice", "sorted", "staticmethod", "str", "sum", "super", "tuple", "type",
    "zip",
})  # fmt: skip
_EXCEPTIONS = frozenset(
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
)
PLAIN_BUILTINS = frozenset({
    "bool", "bytearray", "bytes", "chr", "complex", "dict", "enumerate", "float", "frozenset", "int", "len", "list",
    "range", "repr", "set", "sorted", "str", "tuple",
})  # fmt: skip
"""Builtins whose results have no methods of a project."""
CALLERS = frozenset({
    "accumulate", "apply", "apply_along_axis", "cond", "dropwhile", "eval_shape", "filter", "filterfalse", "fori_loop",
    "fromfunction", "frompyfunc", "groupby", "map", "max", "min", "nlargest", "nsmallest", "reduce", "scan", "sort",
    "sorted", "starmap", "sub", "subn", "switch", "takewhile", "tree_map", "tree_map_with_path", "tree_reduce",
    "vectorize", "vmap", "while_loop",
})  # fmt: skip
"""Functions that call a function that they get."""
FILLED = ("enumerate", "filter", "iter", "map", "reversed", "zip", "collections.defaultdict", "itertools.")
"""Beginnings of names whose results a reader changes."""
_PURE_PACKAGES = frozenset({
    "abc", "ast", "base64", "collections", "concurrent", "contextlib", "copy", "dataclasses", "datetime", "decimal",
    "enum", "fractions", "functools", "hashlib", "html", "inspect", "itertools", "json", "logging", "marin_dag", "math",
    "numbers", "operator", "pathlib", "pydantic", "pydantic_core", "re", "regex", "statistics", "string", "struct",
    "textwrap", "threading", "time", "types", "typing", "typing_extensions", "unicodedata", "urllib", "weakref", "zlib",
})  # fmt: skip
_PROJECT_FILE = Path(__file__).resolve().parents[2] / "pyproject.toml"
_ACTING = frozenset({
    "add", "addHandler", "addLevelName", "atexit", "basicConfig", "call", "captureWarnings", "config", "copyto",
    "delitem", "disable", "dump", "environ", "exec", "fill_diagonal", "iadd", "iand", "iconcat", "ifloordiv",
    "ilshift", "imatmul", "imod", "imul", "ior", "ipow", "irshift", "isub", "itruediv", "ixor", "load",
    "methodcaller", "now", "pack_into", "place", "put", "putmask", "random", "read", "register", "run", "save",
    "seed", "set", "setbufsize", "setcontext", "seterr", "seterrcall", "setitem", "setLoggerClass",
    "singledispatch_register", "sleep", "start", "today", "update", "update_wrapper", "urlopen", "utcnow", "write",
})  # fmt: skip
"""Names in a dotted name of those packages that do act, or whose results differ from call to call."""
_ACTING_PREFIXES = ("register_", "set_", "setattr", "add_", "save_", "load_", "manual_seed", "rand")
_KEEPERS = frozenset({
    "asynccontextmanager", "cached_property", "cast", "checkpoint", "contextmanager", "custom_jvp", "custom_vjp",
    "dataclass", "Field", "field", "filter_custom_vjp", "filter_jit", "final", "jit", "override", "Partial", "partial",
    "runtime_checkable", "singledispatch", "ThreadPoolExecutor", "total_ordering", "wraps",
})  # fmt: skip
"""Functions of packages that keep the functions they get, and do not call them."""
_SHARING = frozenset({
    "asanyarray", "asarray", "ascontiguousarray", "atleast_1d", "broadcast_to", "ChainMap", "frombuffer", "ravel",
    "reshape", "squeeze", "swapaxes", "transpose", "view",
})  # fmt: skip
"""Functions of packages whose results are, or show, their arguments."""
_MAKING_ARRAYS = frozenset({
    "abs", "add", "append", "arange", "argsort", "array", "bincount", "clip", "concatenate", "copy", "cumprod",
    "cumsum", "default_rng", "delete", "diff", "divide", "dot", "empty", "empty_like", "exp", "eye", "full",
    "full_like", "geomspace", "hstack", "identity", "insert", "linspace", "log", "logspace", "matmul", "maximum",
    "minimum", "multiply", "ones", "ones_like", "outer", "power", "repeat", "roll", "sort", "sqrt", "stack", "subtract",
    "tile", "tril", "triu", "unique", "vstack", "where", "zeros", "zeros_like",
})  # fmt: skip
"""Functions of NumPy whose results share no numbers with their arguments."""
GROWERS = frozenset({
    "add", "append", "clear", "difference_update", "discard", "extend", "insert", "intersection_update", "mkdir",
    "open", "pop", "popitem", "remove", "rename", "reverse", "rmdir", "setdefault", "sort",
    "symmetric_difference_update", "touch", "unlink", "update",
})  # fmt: skip
"""Methods of Python's containers and paths that change their object and no argument."""
_READING_KINDS = (str, bytes, tuple, frozenset, int, float, complex, range, list, dict, set, re.Pattern, re.Match)
_READING_ARRAYS = frozenset({
    "T", "all", "any", "argmax", "argmin", "argsort", "astype", "cumsum", "dot", "dtype", "elements", "getChild",
    "getEffectiveLevel", "isEnabledFor", "isoformat", "item", "itemsize", "joinpath", "max", "mean", "min",
    "most_common", "name", "nbytes", "ndim", "parent", "parts", "prod", "ravel", "relative_to", "reshape", "resolve",
    "round", "shape", "size", "std", "stem", "suffix", "sum", "tobytes", "tolist", "transpose", "view", "with_name",
    "with_suffix",
})  # fmt: skip
STATEFUL = frozenset({"decimal", "locale", "os", "sys", "warnings"})
"""Packages whose values and results depend on earlier settings."""
CONFIGURABLE = frozenset({"jax", "numpy", "pandas", "torch"})
"""Packages the results of whose functions depend on earlier settings."""
READERS = frozenset(name for kind in _READING_KINDS for name in dir(kind)) - GROWERS | _READING_ARRAYS
"""Attributes and methods that change no object of Python or of packages; any other method may change its object."""


def is_pure_builtin(name: str) -> bool:
    return name in _PURE_BUILTINS or name in _EXCEPTIONS


def is_pure(dotted: str) -> bool:
    """Return whether calling what a package has under a dotted name changes nothing."""
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


def is_plain(dotted: str) -> bool:
    """Return whether the result of calling a dotted name is an object of a package, whose methods call no project."""
    is_kept = keeps(dotted) and not dotted.startswith("marin_dag.values.")
    return is_pure(dotted) and not is_kept and not dotted.startswith(FILLED)


def shares(dotted: str) -> bool:
    """Return whether others may hold the result of calling a dotted name, as with `logging.getLogger`."""
    last = dotted.rpartition(".")[2]
    if dotted.startswith("numpy."):
        return last not in _MAKING_ARRAYS
    return last in _SHARING or last.startswith("get")


def keeps(dotted: str) -> bool:
    """Return whether calling a dotted name calls none of the functions that it gets."""
    is_own = dotted.startswith(("marin_dag.", "pydantic.", "typing.", "typing_extensions."))
    return is_own or (is_pure(dotted) and dotted.rpartition(".")[2] in _KEEPERS)
