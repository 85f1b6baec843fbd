"""Methods that run without a call that names them: constructors, operators, properties."""

import ast

CONSTRUCTORS = (
    "__init__",
    "__check_init__",
    "__post_init__",
    "model_post_init",
    "__new__",
    "__set_name__",
    "__attrs_post_init__",
    "__del__",
    "_generate_next_value_",
    "_missing_",
)
FACTORIES = ("converter", "default_factory", "factory", "init")
"""Arguments of a field that are called when an instance is made."""


def is_accessor(decorator: ast.expr) -> bool:
    return is_setter(decorator) or (isinstance(decorator, ast.Attribute) and decorator.attr == "getter")


def is_enum(made: ast.ClassDef) -> bool:
    """Return whether making a class makes instances of it, by how bases are spelt."""
    return any(ast.unparse(base).endswith(("Enum", "Flag")) for base in made.bases)


def makes(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a method runs when an instance is made, or when an instance is called as a decorator."""
    is_run = any("validator" in ast.unparse(each) or is_setter(each) for each in method.decorator_list)
    return is_run or method.name in CONSTRUCTORS or method.name == "__call__"


def is_setter(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Attribute) and decorator.attr in ("setter", "deleter")


def answers(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a method runs by an operator, an index, an attribute, or `dict` and `**`."""
    kinds = ("property", "getter", "setter", "deleter")
    is_property = any(ast.unparse(each).endswith(kinds) for each in method.decorator_list)
    return is_property or method.name == "keys" or (method.name.startswith("__") and not makes(method))
