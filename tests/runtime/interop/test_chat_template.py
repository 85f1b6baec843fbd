"""Chat templates give the prompts of `transformers`, and a faulty or hostile one is an error."""

import json

import pytest

from runtime.interop.chat_template import CONFIG, FILE, ChatTemplate, ChatTemplateError, chat_template
from tests.catalogue import expect_error
from tests.deferred_import import transformers

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
CHATML = (
    "{%- if tools %}{{ tools | tojson }}{% endif %}\n{{ bos_token }}\n"
    "{% for message in messages %}\n    {% if message.role == 'tool' %}{% continue %}{% endif %}\n"
    "{% generation %}<|{{ message.role }}|>{{ message | tojson }}{{ eos_token }}{% endgeneration %}\n{% endfor %}\n"
    "{%- if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.mark.parametrize("message", ['Why is <b>the</b> sea "blue" & salty?', "naïve\n  {{ bos_token }}", ""])
def test_a_prompt_is_that_of_transformers(message: str) -> None:
    (expected,), _ = transformers.utils.chat_template_utils.render_jinja_template(
        [[{"role": "user", "content": message}]], chat_template=CHATML, add_generation_prompt=True, **TOKENS
    )
    assert ChatTemplate(CHATML, TOKENS).prompt(message) == expected


@pytest.mark.parametrize("last", ["The answer is", "trailing  ", ""])
@pytest.mark.parametrize(
    "template", [CHATML.replace("message | tojson", f"message.content{cut}") for cut in ("", " | trim")]
)
def test_a_prompt_that_continues_a_reply_is_that_of_transformers(template: str, last: str) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": last},
    ]
    (expected,), _ = transformers.utils.chat_template_utils.render_jinja_template(
        [messages], chat_template=template, continue_final_message=True, **TOKENS
    )
    assert ChatTemplate(template, TOKENS).conversation(messages, continues=True) == expected
    with expect_error(ChatTemplateError):
        ChatTemplate("{{ messages[0].content }}", {}).conversation(messages, continues=True)


def test_the_template_is_that_of_the_file_or_of_the_config() -> None:
    listed = [{"name": "rag", "template": "b"}, {"name": "default", "template": "a"}]
    for config in ({"chat_template": "a"}, {"chat_template": listed}):
        assert chat_template({CONFIG: json.dumps(config)}) == ChatTemplate("a", {})
        assert chat_template({CONFIG: json.dumps(config), FILE: "c"}) == ChatTemplate("c", {})
    flagged = {"eos_token": {"content": "</s>", "special": True}, "pad_token": None}
    assert chat_template({CONFIG: json.dumps(flagged), FILE: "c"}) == ChatTemplate("c", {"eos_token": "</s>"})
    assert chat_template({CONFIG: json.dumps({"chat_template": listed[:1]})}) is None
    assert chat_template({CONFIG: '{"chat_template": ["a"]}', FILE: "c"}) == ChatTemplate("c", {})
    assert chat_template({}) is None and chat_template({CONFIG: json.dumps(flagged)}) is None


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no system message') }}",
        "{% if %}",
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ strftime_now('%d') }}",
        "{% for _ in range(10 ** 9) %}{% endfor %}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_template_that_fails_is_an_error(source: str) -> None:
    with expect_error(ChatTemplateError):
        ChatTemplate(source, {}).prompt("a")


@pytest.mark.parametrize("config", ["{", "[]", "[" * 100_000])
def test_a_config_that_is_no_object_is_an_error(config: str) -> None:
    with pytest.raises(ChatTemplateError):
        chat_template({CONFIG: config})


@pytest.mark.parametrize("given", [["a"], {"default": "a"}, 3, [{"name": "default", "template": ["a"]}]], ids=str)
def test_a_template_that_is_neither_text_nor_a_list_of_named_ones_is_an_error(given: object) -> None:
    with expect_error(ChatTemplateError):
        chat_template({CONFIG: json.dumps({"chat_template": given})})
