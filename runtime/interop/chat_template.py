"""Chat template: a tokenizer's Jinja template from messages to a prompt, rendered in a sandbox like `transformers`."""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NoReturn

import jinja2
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

FILE, CONFIG = "chat_template.jinja", "tokenizer_config.json"
"""Where the template is: the file if there is one, else the field `chat_template`."""
DEFAULT = "default"
"""Name of the template among several."""
CONTINUED = "CONTINUE_FINAL_MESSAGE_TAG "
"""Mark behind a message that the prompt ends with, as in `transformers`; templates may cut its blank."""


class ChatTemplateError(ValueError):
    """The template is malformed, or refuses the messages."""


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """A template and the texts of the tokenizer's special tokens, which the template names.

    `strftime_now` is undefined, so that equal messages give equal prompts on every day.
    """

    source: str
    special_tokens: Mapping[str, str]

    @property
    def end_token(self) -> str | None:
        """The token that ends a reply."""
        return self.special_tokens.get("eos_token")

    def prompt(self, message: str) -> str:
        """Return the prompt for one message of the user; raise ChatTemplateError where the template fails."""
        return self.conversation([{"role": "user", "content": message}])

    def conversation(self, messages: Sequence[Mapping[str, str]], *, continues: bool = False) -> str:
        """Return the prompt after some messages; with `continues`, it ends in the middle of the last one.

        Raises:
            ChatTemplateError: the template fails, or leaves out the message to continue.
        """
        given = [dict(message) for message in messages]
        if continues:
            given[-1]["content"] += CONTINUED
        try:
            template = _compiled(self.source)
            options = {"add_generation_prompt": not continues, "tools": None}
            text = template.render(messages=given, **options, **self.special_tokens)
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise ChatTemplateError(f"the chat template fails: {type(error).__name__}: {error}") from error
        if not continues:
            return text
        before, mark, after = text.rpartition(CONTINUED.strip())
        if not mark:
            raise ChatTemplateError("the chat template leaves out the beginning of the reply, which the task sets")
        return before if after.startswith(" ") else before.rstrip()


def chat_template(files: Mapping[str, str]) -> ChatTemplate | None:
    """Return the template in the texts of `FILE` and `CONFIG`, by name; None without one.

    Raise ChatTemplateError if `CONFIG` is no JSON object, or its template neither a text nor a list of named ones.
    """
    try:
        config = json.loads(files.get(CONFIG, "{}"))
    except (ValueError, RecursionError) as error:
        raise ChatTemplateError(f"{CONFIG} is no JSON ({error})") from error
    if not isinstance(config, dict):
        raise ChatTemplateError(f"{CONFIG} is no JSON object")
    source = files[FILE] if FILE in files else _source(config.get("chat_template"))
    # A special token is a string, or a token with its flags.
    tokens = {name: value for name, value in config.items() if name.endswith("_token")}
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in tokens.items()}
    named = {name: text for name, text in texts.items() if isinstance(text, str) and text}
    return ChatTemplate(source, named) if source else None


def _source(given: Any) -> str | None:
    """Return the template in a config's field, of several the default one; None without one."""
    if isinstance(given, list) and all(isinstance(each, dict) for each in given):
        named = {each.get("name"): each.get("template") for each in given if isinstance(each.get("name"), str)}
        given = named.get(DEFAULT)
    if given is None or isinstance(given, str):
        return given
    raise ChatTemplateError(
        f'{CONFIG}: chat_template is neither a text nor a list of {{"name": "{DEFAULT}", "template": "..."}}'
    )


class _Generation(Extension):
    """`{% generation %}`, which marks replies for training; it adds nothing to a prompt."""

    tags: ClassVar[set[str]] = {"generation"}  # type: ignore[misc]  # Jinja declares an instance variable

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@functools.lru_cache
def _compiled(source: str) -> jinja2.Template:
    return _environment().from_string(source)


def _environment() -> ImmutableSandboxedEnvironment:
    extensions = (_Generation, "jinja2.ext.loopcontrols")
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = _json
    environment.globals["raise_exception"] = _raise
    return environment


def _json(value: Any, indent: int | None = None) -> str:
    """Return JSON without the HTML escapes of Jinja's own filter."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
