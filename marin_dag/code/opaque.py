"""Opaque code: names whose effect depends on values, so that no reading of the source can follow them."""

from collections.abc import Iterator

OPAQUE_CALLS = frozenset(
    {
        "importlib.util.spec_from_file_location",
        "importlib.metadata.entry_points",
        "inspect.getcomments",
        "inspect.getsource",
        "inspect.getsourcelines",
        "pkgutil.iter_modules",
        "pkgutil.resolve_name",
        "pkgutil.walk_packages",
        "runpy.run_module",
        "runpy.run_path",
    }
)
_OPAQUE_NAMES = frozenset({"eval", "exec", "__import__", "globals"})
_OPAQUE_VALUES = {
    "pydantic.ImportString": "an object by name",
    "sys.modules": "modules by name",
}
OPAQUE_ATTRIBUTES = {
    "__subclasses__": "classes that may be defined anywhere",
}


def is_opaque_builtin(name: str) -> bool:
    """Return whether a name that is neither defined nor imported is opaque."""
    return name in _OPAQUE_NAMES or name in _OPAQUE_VALUES


def opaque_in(name: str) -> Iterator[str]:
    """Yield what is opaque about a dotted name, imports resolved."""
    if name in _OPAQUE_NAMES:
        yield f"{name}(...)"
    for value, what in _OPAQUE_VALUES.items():
        if name == value or name.startswith(f"{value}."):
            yield f"{value}: {what}"
