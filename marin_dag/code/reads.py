"""Reads: what a definition looks up besides names: docstrings, files beside the code, modules by name, variables."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from marin_dag.code.syntax import nodes_of

_DOCUMENTATION = frozenset({
    "__code__", "__doc__", "cleandoc", "co_code", "co_consts", "doctest", "GenerateJsonSchema", "getdoc", "getmembers",
    "getmembers_static", "help", "json_schema", "marshal", "model_json_schema", "models_json_schema",
    "names of a class", "render_doc", "schema_json", "shortDescription", "use_attribute_docstrings",
})  # fmt: skip
"""Names by which a docstring is read, or becomes part of a schema."""
_FILES = frozenset({
    "__file__", "__loader__", "__path__", "__spec__", "co_filename", "extract_stack", "extract_tb", "f_code",
    "find_spec", "get_data", "get_importer", "getabsfile", "getfile", "getmodule", "getsourcefile", "PackageLoader",
    "resource_filename", "resource_listdir", "resource_stream", "resource_string", "run_path",
    "spec_from_file_location",
})  # fmt: skip
"""Names by which a file beside the code is found."""
_RUNNERS = frozenset({
    "__import__", "check_call", "check_output", "create_subprocess_exec", "create_subprocess_shell", "execv", "execvp",
    "find_spec", "getoutput", "getstatusoutput", "import_module", "ImportString", "Popen", "popen", "posix_spawn",
    "resolve_name", "run_module", "run_path", "runpy", "spawnv", "spec_from_file_location", "subprocess", "system",
    "timeit",
})  # fmt: skip
"""Names by which a module or file is run that a text names."""
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_][\w.]*)?")
_FROM = re.compile(r"\bfrom\s+([\w.]+)\s+import\s+")
_TAGGED = re.compile(r"(?:ext://|!?!py(?:thon)?(?:/[\w/]+)?:)([A-Za-z_][\w.]*\w)")
"""Names behind the scheme of a logging configuration, or the tag of a YAML text."""
_LISTS = frozenset({"glob", "iterdir", "listdir", "rglob", "scandir", "walk"})
_INTRODUCED = re.compile(r"(-m|\bimport(\s+[\w.]+\s*,)*)\s*$")
_PATH = re.compile(r"[\w][\w ./\\-]*")
MAX_TEXT_LENGTH = 200


class Reads(NamedTuple):
    """Files, modules and names that a definition looks up."""

    documentation: bool = False
    """Whether it may read docstrings."""
    files: bool = False
    """Whether it may find files by where the code lies."""
    paths: tuple[str, ...] = ()
    """Texts that may be names of files beside the code."""
    computes_paths: bool = False
    """Whether the definition may find such a file by a computed name."""
    own_source: bool = False
    """Whether it may read its own source file, or list a folder: it uses `__file__` other than for that folder."""
    modules: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()


NOTHING = Reads()


def reads_of(statements: Iterable[ast.stmt], meaning: Callable[[str], Iterable[str]]) -> Reads:
    """Return what statements look up; `meaning` returns the dotted names that a name may have been imported from."""
    names: set[str] = set()
    texts: dict[str, None] = {}
    environment: dict[str, None] = {}
    is_joined = False
    for statement in statements:
        for node in nodes_of(statement):
            match node:
                case ast.Call(func=ast.Attribute(attr="schema"), args=[], keywords=[]):
                    names.add("json_schema")
                case ast.Attribute(value=ast.Name(id="importlib"), attr="resources"):
                    names.add("__file__")
                case ast.Attribute(attr=attribute):
                    names.add(attribute)
                case ast.Name(id=name):
                    names.update(_imported_names([name, *meaning(name)]))
                case ast.keyword(arg="use_attribute_docstrings"):
                    names.add("use_attribute_docstrings")
                case ast.alias(name=name):
                    names.update(_imported_names([name]))
                case ast.ImportFrom(module=str(name)):
                    names.update(_imported_names(f"{name}.{each.name}" for each in node.names))
                case ast.JoinedStr() | ast.BinOp(op=ast.Add() | ast.Mod(), left=ast.Constant(value=str())):
                    is_joined = True
                case ast.Attribute(value=ast.Constant(), attr="format" | "join"):
                    is_joined = True
                case ast.Attribute(attr="__dict__", value=owner) | ast.Call(func=ast.Name(id="vars"), args=[owner]):
                    names.update(["__dict__", *(["names of a class"] if _may_be_class(owner) else [])])
                case ast.Constant(value=str(text)):
                    texts[text] = None
                case ast.Constant(value=bytes(raw)):
                    texts[raw.decode("latin-1")] = None
            environment.update(dict.fromkeys(_variables(node)))
    short = [text for text in texts if len(text) <= MAX_TEXT_LENGTH]
    names |= texts.keys() & (_DOCUMENTATION | _FILES)  # `getattr(module, "__file__")`
    is_run = bool(names & _RUNNERS)
    finds_files = bool(names & _FILES) or any(text.endswith(".py") for text in short)
    modules = [text for text in short if _MODULE.fullmatch(text) and "." in text]
    modules += [name for text in texts for name in _TAGGED.findall(text)]
    if is_run:
        modules = list(dict.fromkeys([*modules, *(name for text in texts for name in modules_run_by(text))]))
    return Reads(
        bool(names & _DOCUMENTATION),
        bool(names & _FILES),
        tuple(text for text in short if finds_files and _PATH.fullmatch(text)),
        bool(names & _FILES) and (is_joined or bool(names & _LISTS)),
        bool(names & _FILES) and (bool(names & _LISTS) or any(map(_uses_own_file, statements))),
        tuple(modules),
        tuple(environment),
    )


def _may_be_class(owner: ast.expr) -> bool:
    """Return whether an expression may be a class, by how classes are spelt."""
    match owner:
        case ast.Name(id=name):
            return name == "cls" or name[:1].isupper()
        case ast.Attribute(attr=name):
            return name == "__class__" or name[:1].isupper()
        case ast.Call(func=ast.Name(id="type")):
            return True
    return False


def modules_run_by(text: str) -> Iterator[str]:
    """Yield the modules that a text may name: by its whole, as a dotted word, after `-m`, or after `import`.

    Another single word of a sentence may be the name of a module on some path, and is none of these.
    """
    if _MODULE.fullmatch(text):
        yield text
    code = _FROM.sub(r"\1.", text)
    for found in _MODULE.finditer(code):
        if "." in found[0] or _INTRODUCED.search(code[: found.start()]):
            yield found[0]


def _uses_own_file(statement: ast.stmt) -> bool:
    nodes = nodes_of(statement)
    in_folder = {id(name) for node in nodes if _names_folder(node) for name in nodes_of(node)}
    return any(isinstance(node, ast.Name) and node.id == "__file__" and id(node) not in in_folder for node in nodes)


def _names_folder(node: ast.AST) -> bool:
    match node:
        case (
            ast.Attribute(attr="parent" | "parents" | "with_name" | "with_suffix")
            | ast.Call(func=ast.Attribute(attr="dirname") | ast.Name(id="dirname"))
        ):
            return True
    return False


def _imported_names(dotted_names: Iterable[str]) -> Iterator[str]:
    for dotted in dotted_names:
        yield from dotted.split(".")
        if dotted.startswith(("importlib.resources", "importlib_resources")):
            yield "__file__"


def _variables(node: ast.AST) -> Iterable[str]:
    match node:
        case (
            ast.Subscript(value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(name)))
            | ast.Subscript(value=ast.Name(id="environ"), slice=ast.Constant(value=str(name)))
            | ast.Call(func=ast.Attribute(attr="getenv"), args=[ast.Constant(value=str(name)), *_])
            | ast.Call(func=ast.Name(id="getenv"), args=[ast.Constant(value=str(name)), *_])
            | ast.Call(
                func=ast.Attribute(value=ast.Attribute(attr="environ"), attr="get" | "pop" | "setdefault"),
                args=[ast.Constant(value=str(name)), *_],
            )
        ):
            return (name,)
    return ()
