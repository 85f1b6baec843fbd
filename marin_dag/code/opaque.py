"""Opaque names: their effect depends on values, so that no reading of the source can follow them."""

import ast
from collections.abc import Iterator

OPAQUE_CALLS = frozenset(
    {
        "importlib.util.spec_from_file_location",
        "importlib.metadata.entry_points",
        "gc.get_objects",
        "gc.get_referrers",
        "importlib.__import__",
        "importlib.machinery.SourceFileLoader",
        "pydoc.locate",
        "pydoc.safeimport",
        "site.addsitedir",
        "cloudpickle.load",
        "cloudpickle.loads",
        "inspect.findsource",
        "inspect.getcomments",
        "inspect.getframeinfo",
        "inspect.getmodule",
        "inspect.getsource",
        "inspect.getsourcelines",
        "inspect.stack",
        "inspect.trace",
        "linecache.getline",
        "linecache.getlines",
        "pickle.load",
        "pickle.loads",
        "pkgutil.iter_modules",
        "pkgutil.resolve_name",
        "pkgutil.walk_packages",
        "runpy.run_module",
        "runpy.run_path",
        "typing.get_overloads",
        "typing_extensions.get_overloads",
    }
)
PASSED_ON = OPAQUE_CALLS | {"importlib.import_module"}
"""Functions that the reading does not follow where they are called by another name."""
OPAQUE_NAMES = frozenset({"eval", "exec", "__import__", "globals"})
OPAQUE_VALUES = {
    "pydantic.ImportString": "an object by name",
    "sys.modules": "modules by name",
    **dict.fromkeys(("sys.path.append", "sys.path.extend", "sys.path.insert"), "modules of other folders"),
}
_SHOWING_LINES = (
    *("co_firstlineno", "co_lines", "extract_stack", "extract_tb", "f_lineno", "format_exc", "format_exception"),
    *("format_stack", "format_tb", "formatwarning", "lineno", "print_exc", "print_exception", "print_stack"),
    *("print_tb", "showwarning", "tb_lineno"),
)
OPAQUE_ATTRIBUTES = {
    "cache_info": "calls of a cached function",
    "__subclasses__": "classes that may be defined anywhere",
    **dict.fromkeys(("__globals__", "f_globals"), "names of a module by value"),
    **dict.fromkeys(_SHOWING_LINES, "line numbers of code"),
}


def opaque_in(name: str) -> Iterator[str]:
    """Yield what no reading can follow about a dotted name, imports resolved."""
    name = name.removeprefix("builtins.")
    if name in OPAQUE_NAMES:
        yield f"{name}(...)"
    for value, what in OPAQUE_VALUES.items():
        if name == value or name.startswith(f"{value}."):
            yield f"{value}: {what}"


def opaque_call(call: ast.Call, names: list[str], *, is_module_level: bool) -> Iterator[str]:
    """Yield what no reading can follow about a call of a function that has one of some dotted names."""
    if is_module_level and not (call.args or call.keywords) and not {"dir", "locals", "vars"}.isdisjoint(names):
        yield f"{ast.unparse(call)}: names of a module by value"
    if not OPAQUE_CALLS.isdisjoint(names):
        yield ast.unparse(call)
    keywords = {keyword.arg for keyword in call.keywords}
    if "stack_info" in keywords or ("warnings.catch_warnings" in names and keywords):
        yield f"{ast.unparse(call)}: line numbers of code"
    match call.func:
        case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=name), *_]):
            if name in OPAQUE_NAMES:
                yield ast.unparse(call.func)
        case ast.Call(func=ast.Name(id="getattr")):
            yield ast.unparse(call.func)
