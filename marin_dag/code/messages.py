"""Messages: texts of logging calls and of raised exceptions, which change no output unless code reads them.

A definition is hashed without the texts of its messages. A closure adds the texts of logs if anything in it may read
logs, and those of exceptions if anything in it uses an exception that it caught.
"""

import ast
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from marin_dag.code.syntax import Target, dotted, loaded_by, nodes_of

LOG_METHODS = frozenset({"critical", "debug", "error", "exception", "info", "warning"})
_OUTPUT_READERS = frozenset({
    "2>&1", "__code__", "capture_output", "check_output", "co_code", "co_consts", "dup2", "forkpty", "getoutput",
    "getstatusoutput", "marshal", "openpty", "pty", "redirect_stderr", "stderr", "STDOUT",
})  # fmt: skip
"""Names of what reads the output of a program, or the constants of code."""
_LOG_READERS = _OUTPUT_READERS | {
    "addFilter", "addHandler", "assertLogs", "basicConfig", "captureWarnings", "dictConfig", "fileConfig", "Filter",
    "getLoggerClass", "Handler", "handlers", "lastResort", "LoggerAdapter", "loggerClass", "LogRecord",
    "monkeypatch", "setLoggerClass", "setLogRecordFactory",
}  # fmt: skip
"""Names of what reads log records, or the output to which they go."""
_EXCEPTION_READERS = _OUTPUT_READERS | {
    "__aexit__", "__cause__", "__context__", "__exit__", "add_done_callback", "error_callback", "exc_info",
    "excepthook", "exception", "format_exc", "format_exception", "format_exception_only", "giveup", "last_exc",
    "last_value", "on_exception", "onerror", "onexc", "print_exc", "print_exception", "push", "retry_error_callback",
    "retry_if_exception", "retry_if_exception_message", "return_exceptions", "set_exception_handler", "throw",
    "TracebackException", "unittest", "unraisablehook", "walk_tb",
}  # fmt: skip
"""Names of what reads exceptions other than by `except ... as`."""
_FRAME_READERS = frozenset({
    "__closure__", "__code__", "_current_frames", "_getframe", "ag_frame", "Bytecode", "capture_locals", "cr_frame",
    "currentframe", "dir()", "dis", "eval", "exec", "f_back", "f_locals", "getargvalues", "getasyncgenlocals",
    "getclosurevars", "getcoroutinelocals", "getgeneratorlocals", "getinnerframes", "getouterframes", "getsource",
    "getsourcelines", "gi_frame", "inspect.stack", "inspect.trace", "locals", "NameError", "query()", "setprofile",
    "settrace", "show_locals", "sql()", "StackSummary", "tb_frame", "TracebackException", "UnboundLocalError", "vars()",
    "walk_stack", "walk_tb",
})  # fmt: skip
"""Names of functions that read the names of variables, such as `query` and `sql` of data frames."""
_VALUES = frozenset({Target("builtins", "StopAsyncIteration"), Target("builtins", "StopIteration")})
"""Exceptions whose argument is the value of an expression."""
Meaning = Callable[[ast.expr], tuple[Target, ...]]


class Raised(NamedTuple):
    """Texts of an exception that a definition raises."""

    errors: tuple[Target, ...]
    """The possible classes of the exception; () for a builtin one."""
    texts: tuple[str, ...]


class Messages(NamedTuple):
    """The texts of the messages of a definition."""

    logged: tuple[str, ...] = ()
    raised: tuple[Raised, ...] = ()


class TextReads(NamedTuple):
    """Reads by a definition of texts and names that the digests of other definitions leave out."""

    logs: bool = False
    exceptions: bool = False
    wrappers: tuple[Target, ...] = ()
    """Classes of exceptions that get the texts of caught exceptions: these texts are read if the class does more."""
    variables: bool = False
    """Whether the definition may read names of local variables."""


def messages_of(statement: ast.stmt, meaning: Meaning) -> tuple[Messages, set[int]]:
    """Return the texts of the messages of a definition, and the ids of the nodes that hold them."""
    if not any(isinstance(node, ast.Raise | ast.Assert) or _is_log(node) for node in nodes_of(statement)):
        return Messages(), set()
    loggers = _local_loggers(statement, meaning)
    logged: list[str] = []
    raised: list[Raised] = []
    nodes: set[int] = set()
    for node in nodes_of(statement):
        match node:
            case ast.Raise(exc=ast.Call(func=error) as call) if errors := meaning(error):
                own = tuple(each for each in errors if each.module != "builtins")
                if _VALUES.isdisjoint(errors):
                    raised.append(Raised(own, tuple(_texts(call.args, nodes))))
            case ast.Assert(msg=ast.expr() as text):
                raised.append(Raised((), tuple(_texts([text], nodes))))
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=logger)) as call) if _is_log(node):
                if _is_logger(logger, loggers, meaning):
                    logged += _texts(call.args[:1], nodes)
    return Messages(tuple(logged), tuple(raised)), nodes


def _texts(arguments: Iterable[ast.expr], nodes: set[int]) -> Iterator[str]:
    """Yield the texts among the arguments of a message, and add their nodes to `nodes`."""
    for argument in arguments:
        match argument:
            case ast.Constant(value=str(text)):
                yield text
            case ast.JoinedStr():
                yield ast.unparse(argument)
            case _:
                continue
        nodes.add(id(argument))


def _is_log(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=method), args=[_, *_])):
            return method in LOG_METHODS
    return False


def _is_logger(node: ast.expr, local: set[str], meaning: Meaning) -> bool:
    """Return whether an expression is surely a logger of `logging`: the module, a name for one, or a context's."""
    base, chain = dotted(node)
    if base is not None and base in local:
        return chain in ((), ("log",))
    return any(str(target) in ("logging", "logging:root", "<logger>") for target in meaning(node))


def _local_loggers(statement: ast.stmt, meaning: Meaning) -> set[str]:
    """Return the parameters that are loggers or contexts of steps by their annotation, and that nothing binds again."""
    found = set()
    for node in nodes_of(statement):
        match node:
            case ast.arg(arg=name, annotation=ast.expr() as annotation):
                written = [str(target).replace(":", ".") for target in meaning(annotation)]
                is_context = any(each.startswith("marin_dag.") and each.endswith("StepContext") for each in written)
                if is_context or "logging.Logger" in written:
                    found.add(name)
    names = [node for node in nodes_of(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    others = [node.arg for node in nodes_of(statement) if isinstance(node, ast.arg)]
    return {name for name in found - {node.id for node in names} if others.count(name) == 1}


def text_reads_of(statements: Iterable[ast.stmt], meaning: Meaning) -> TextReads:
    names: set[str] = set()
    wrappers: dict[Target, None] = {}
    is_read = False
    for statement in statements:
        names.update(_names_in(statement))
        names.update("monkeypatch" for _ in _patches_in(statement, meaning))
        handlers = [node for node in nodes_of(statement) if isinstance(node, ast.ExceptHandler) and node.name]
        loggers = _local_loggers(statement, meaning) if handlers else set()
        for handler in handlers:
            found = _Handler(handler, loggers, meaning)
            is_read |= found.reads
            wrappers.update(dict.fromkeys(found.wrappers))
    is_logged = bool(names & _LOG_READERS)  # a log that is read has the texts of the exceptions that are logged
    reads_errors = is_logged or is_read or bool(names & _EXCEPTION_READERS)
    return TextReads(is_logged, reads_errors, tuple(wrappers), bool(names & _FRAME_READERS))


_PATCHING = frozenset({"mock", "pytest", "unittest"})
"""Packages that patch functions of others."""


def _patches_in(statement: ast.stmt, meaning: Meaning) -> Iterator[ast.AST]:
    """Yield the nodes that name a package that patches, or the filters of a logger."""
    is_logger_made = any(getattr(node, "attr", getattr(node, "id", "")) == "getLogger" for node in nodes_of(statement))
    for node in nodes_of(statement):
        match node:
            case ast.Import(names=[*_]) | ast.ImportFrom(module=str()):
                if not _PATCHING.isdisjoint(name.partition(".")[0] for name in loaded_by(node, "")):
                    yield node
            case ast.Name() if any(each.module.partition(".")[0] in _PATCHING for each in meaning(node)):
                yield node
            case ast.Attribute(value=logger, attr="filters") if is_logger_made or _is_logger(logger, set(), meaning):
                yield node


def _names_in(statement: ast.stmt) -> Iterator[str]:
    calls = [node.value for node in nodes_of(statement) if isinstance(node, ast.Expr) and _is_log(node)]
    logging_calls = {id(call.func) for call in calls if isinstance(call, ast.Call)}
    for node in nodes_of(statement):
        match node:
            case ast.Attribute(value=ast.Name(id="inspect"), attr=name):
                yield from (name, f"inspect.{name}")
            case ast.Attribute(value=ast.Attribute(attr="Logger"), ctx=ast.Store()):
                yield "setLoggerClass"
            case ast.Attribute(attr=name, ctx=ast.Store()) if name in LOG_METHODS:
                yield "setLoggerClass"
            case ast.Call(func=ast.Name(id="setattr"), args=[_, ast.Constant(value=name), _]) if name in LOG_METHODS:
                yield "setLoggerClass"
            case ast.Call(args=arguments) if any(getattr(each, "attr", "") == "Logger" for each in arguments):
                yield "setLoggerClass"
            case ast.ImportFrom(module="inspect"):
                yield from (f"inspect.{each.name}" for each in node.names)
            case ast.Call(func=ast.Name(id="vars" | "dir" as name), args=[]):
                yield f"{name}()"
            case ast.Call(func=ast.Attribute(attr="query" | "sql" as name)):
                yield f"{name}()"
            case ast.Attribute(attr=name) if id(node) not in logging_calls:
                yield name
            case ast.Name(id=name) | ast.FunctionDef(name=name) | ast.keyword(arg=str(name)) | ast.alias(name=name):
                yield name.rpartition(".")[2]
            case ast.Constant(value=str(name)) if name.isidentifier():
                yield name
            case ast.Constant(value=str(text)) if "2>&1" in text:
                yield "2>&1"


_OF_TEXTS = frozenset(
    {"isinstance", "len", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "repr", "rpartition"}
    | {"rstrip", "split", "splitlines", "str", "strip", "type"}
)
"""Functions and methods that make a part of a message of an exception."""


class _Handler:
    """An exception handler; `reads` says whether it does more than raise, log, chain or wrap the exception."""

    def __init__(self, handler: ast.ExceptHandler, loggers: set[str], meaning: Meaning) -> None:
        self._name = handler.name
        self.wrappers: list[Target] = []
        """Classes of exceptions that get the exception, or its text."""
        allowed: set[int] = set()
        for node in ast.walk(handler):
            match node:
                case ast.Raise(exc=raised, cause=cause):
                    allowed.update(id(each) for each in (raised, cause) if isinstance(each, ast.Name))
                    if isinstance(raised, ast.Call) and (errors := meaning(raised.func)):
                        allowed.update(self._shown([*raised.args, *(each.value for each in raised.keywords)]))
                        self.wrappers += [each for each in errors if each.module != "builtins"]
                case ast.Expr(value=ast.Call(func=ast.Attribute(value=logger)) as call) if _is_log(node):
                    if _is_logger(logger, loggers, meaning):
                        allowed.update(self._shown(call.args))
                case ast.Call(func=ast.Name(id="isinstance"), args=[ast.Name() as asked, _]):
                    allowed.add(id(asked))
        names = [node for node in ast.walk(handler) if isinstance(node, ast.Name) and node.id == self._name]
        self.reads = any(id(node) not in allowed for node in names)

    def _shown(self, texts: Iterable[ast.expr]) -> set[int]:
        """Return the uses of the exception in arguments that only show it."""
        shown: set[int] = set()
        for text in texts:
            nodes = list(ast.walk(text))
            functions = [node.func for node in nodes if isinstance(node, ast.Call)]
            calls = {getattr(each, "attr", getattr(each, "id", "")) for each in functions}
            if calls <= _OF_TEXTS and not any(isinstance(node, ast.NamedExpr) for node in nodes):
                shown.update(id(node) for node in nodes if isinstance(node, ast.Name) and node.id == self._name)
        return shown
