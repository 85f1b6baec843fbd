"""Messages: texts of logging calls and of raised exceptions, which change no output unless code reads them.

A definition is hashed without the texts of its messages. A closure adds those that something in it may read: a handler
that uses the exception that it caught, a handler of log records, a program that captures the output of another one.
"""

import ast
import builtins
import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from marin_dag.code.syntax import Target, dotted, nodes_of

LOG_METHODS = frozenset({"critical", "debug", "error", "exception", "info", "warning"})
_LOG_READERS = frozenset(
    {
        *("Filter", "Handler", "LogRecord", "LoggerAdapter", "addFilter", "addHandler", "assertLogs", "basicConfig"),
        *("captureWarnings", "capture_output", "check_output", "dictConfig", "dup2", "fileConfig", "getLoggerClass"),
        *("handlers", "lastResort", "redirect_stderr", "setLogRecordFactory", "setLoggerClass", "stderr", "STDOUT"),
    }
)
"""Names of what reads log records, or the output to which they go."""
_EXCEPTION_READERS = frozenset(
    {
        *("TracebackException", "__aexit__", "__cause__", "__context__", "__exit__", "add_done_callback", "exc_info"),
        *("capture_output", "check_output", "dup2", "excepthook", "exception", "format_exc", "format_exception"),
        *(
            "last_value",
            "print_exc",
            "print_exception",
            "redirect_stderr",
            "return_exceptions",
            "set_exception_handler",
        ),
        *("stderr", "STDOUT", "throw", "unraisablehook", "format_exception_only", "walk_tb", "push"),
    }
)
"""Names of what reads exceptions other than by `except ... as`."""
Meaning = Callable[[ast.expr], tuple[Target, ...]]


class Message(NamedTuple):
    """The text of a message, by its hash."""

    raised: tuple[Target, ...] | None
    """The class that is raised; None for a text of a log."""
    digest: str


class Hears(NamedTuple):
    """Whose messages a definition may read."""

    logs: bool = False
    everything: bool = False
    """Whether it may read the text of every exception."""
    caught: tuple[Target, ...] = ()
    """Classes of exceptions whose text it may read."""

    @classmethod
    def joined(cls, every: "list[Hears]") -> "Hears":
        """Return what several definitions may read together."""
        caught = dict.fromkeys(target for each in every for target in each.caught)
        return cls(any(each.logs for each in every), any(each.everything for each in every), tuple(caught))


def without_messages(statement: ast.stmt, meaning: Meaning) -> tuple[ast.stmt, tuple[Message, ...]]:
    """Return a definition without the texts of its messages, and these."""
    if not any(isinstance(node, ast.Raise | ast.Assert) or _is_log(node) for node in nodes_of(statement)):
        return statement, ()
    copied = copy.deepcopy(statement)
    loggers = _local_loggers(copied, meaning)
    messages: list[Message] = []
    for node in nodes_of(copied):
        match node:
            case ast.Raise(exc=ast.Call(func=raised) as call):
                _take(call, call.args, meaning(raised), messages)
                for keyword in call.keywords:
                    keyword.value = _taken(keyword.value, meaning(raised), messages)
            case ast.Assert(msg=ast.expr() as text):
                node.msg = _taken(text, (Target("builtins", "AssertionError"),), messages)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=logger)) as call) if _is_log(node):
                if _is_logger(logger, loggers, meaning):
                    _take(call, call.args[:1], None, messages)
    return copied, tuple(messages)


def _take(call: ast.Call, texts: list[ast.expr], raised: tuple[Target, ...] | None, found: list[Message]) -> None:
    call.args[: len(texts)] = [_taken(text, raised, found) for text in texts]


def _taken(text: ast.expr, raised: tuple[Target, ...] | None, found: list[Message]) -> ast.expr:
    """Return what a message evaluates, without its text."""
    match text:
        case ast.Constant(value=str(words)):
            found.append(_message(raised, words))
            return ast.copy_location(ast.Constant("message"), text)
        case ast.JoinedStr(values=values):
            found.append(_message(raised, ast.unparse(text)))
            kept = [value for value in values if isinstance(value, ast.FormattedValue)]
            return ast.copy_location(ast.JoinedStr([ast.Constant("message"), *kept]), text)
    return text


def _message(raised: tuple[Target, ...] | None, words: str) -> Message:
    return Message(raised, hashlib.sha256(ascii(words).encode()).hexdigest())


def _is_log(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=method), args=[_, *_])):
            return method in LOG_METHODS
    return False


def _logs(call: ast.Call, local: set[str], meaning: Meaning) -> bool:
    return isinstance(call.func, ast.Attribute) and _is_logger(call.func.value, local, meaning)


def _is_logger(node: ast.expr, local: set[str], meaning: Meaning) -> bool:
    """Return whether an expression is surely a logger of `logging`: the module, a name for one, or a context's."""
    base, chain = dotted(node)
    if base is not None and base in local:
        return chain in ((), ("log",))
    return any(str(target) in ("logging", "logging:root", "<logger>") for target in meaning(node))


def _local_loggers(statement: ast.stmt, meaning: Meaning) -> set[str]:
    """Return local names for a logger, or for the context of a step, that nothing else binds."""
    bound: dict[str, list[bool]] = {}
    for node in nodes_of(statement):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=function)):
                is_logger = any(
                    str(target) in ("logging:getLogger", "logging.getLogger") for target in _dotted(function, meaning)
                )
                bound.setdefault(name, []).append(is_logger)
            case ast.arg(arg=name, annotation=annotation):
                written = [] if annotation is None else [str(target) for target in _dotted(annotation, meaning)]
                is_context = any(each.startswith("marin_dag.") and each.endswith("StepContext") for each in written)
                bound.setdefault(name, []).append(
                    is_context or any(each in ("logging.Logger", "logging:Logger") for each in written)
                )
            case ast.Name(id=name, ctx=ast.Store()):
                bound.setdefault(name, [])
    stored = [node.id for node in nodes_of(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return {name for name, kinds in bound.items() if kinds and all(kinds) and stored.count(name) <= len(kinds)}


def _dotted(node: ast.expr, meaning: Meaning) -> list[str]:
    base, chain = dotted(node)
    if base is None:
        return []
    targets = meaning(ast.Name(base, ast.Load()))
    return [".".join([str(target).replace(":", "."), *chain]) for target in targets]


def hears_of(statements: Iterable[ast.stmt], meaning: Meaning) -> Hears:
    """Return whose messages some statements may read."""
    names: set[str] = set()
    caught: dict[Target, None] = {}
    everything = False
    for statement in statements:
        names.update(_names_in(statement))
        handlers = [node for node in nodes_of(statement) if isinstance(node, ast.ExceptHandler) and node.name]
        loggers = _local_loggers(statement, meaning) if handlers else set()
        for node in handlers:
            if _is_read(node, loggers, meaning):
                types = _types_of(node, meaning)
                everything |= types is None
                caught.update(dict.fromkeys(types or ()))
    return Hears(bool(names & _LOG_READERS), everything or bool(names & _EXCEPTION_READERS), tuple(caught))


def _names_in(statement: ast.stmt) -> Iterator[str]:
    calls = [node.value for node in nodes_of(statement) if isinstance(node, ast.Expr) and _is_log(node)]
    logging_calls = {id(call.func) for call in calls if isinstance(call, ast.Call)}
    for node in nodes_of(statement):
        match node:
            case ast.Attribute(attr=name) if id(node) not in logging_calls:
                yield name
            case ast.Name(id=name) | ast.FunctionDef(name=name) | ast.keyword(arg=str(name)) | ast.alias(name=name):
                yield name.rpartition(".")[2]
            case ast.Constant(value=str(name)) if name.isidentifier():
                yield name


def _types_of(handler: ast.ExceptHandler, meaning: Meaning) -> list[Target] | None:
    """Return the classes that a handler catches; None where they are not plain names."""
    if handler.type is None:
        return None
    found: list[Target] = []
    for node in handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]:
        targets = meaning(node)
        if not targets:
            return None
        found.extend(targets)
    return found


def _is_read(handler: ast.ExceptHandler, loggers: set[str], meaning: Meaning) -> bool:
    """Return whether a handler does more with its exception than to raise, to log and to chain it."""
    allowed: set[int] = set()
    for node in ast.walk(handler):
        match node:
            case ast.Raise(exc=raised, cause=cause):
                allowed.update(id(each) for each in (raised, cause) if isinstance(each, ast.Name))
            case ast.Expr(value=ast.Call() as call) if _is_log(node) and _logs(call, loggers, meaning):
                allowed.update(id(each) for each in call.args if isinstance(each, ast.Name))
            case ast.Call(func=ast.Name(id="isinstance"), args=[ast.Name() as asked, _]):
                allowed.add(id(asked))
    names = [node for node in ast.walk(handler) if isinstance(node, ast.Name) and node.id == handler.name]
    return any(id(node) not in allowed for node in names)


def ancestors_of_builtin(name: str) -> frozenset[str]:
    """Return the names of a builtin exception and of its bases; an empty set for another name."""
    found = getattr(builtins, name, None)
    if not (isinstance(found, type) and issubclass(found, BaseException)):
        return frozenset()
    return frozenset(each.__name__ for each in found.__mro__)
