"""Chat templates that a command asks for."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from marin_dag.errors import UserError

if TYPE_CHECKING:
    from runtime.interop.chat_template import ChatTemplate


def required_template(option: str, place: object, files: Mapping[str, str], *, cure: str) -> "ChatTemplate":
    """Return the chat template in the texts of a tokenizer's files.

    Args:
        option: the option that needs the template.
        place: folder, file or step of the files.
        files: texts by name of the file.
        cure: how a user gives another template.

    Raises:
        UserError: there is no template, or a malformed one.
    """
    from runtime.interop.chat_template import ChatTemplateError, chat_template

    try:
        found = chat_template(files)
    except ChatTemplateError as error:
        raise UserError(f"{option}: {place}: {error}. Remove {option}, or {cure}.") from error
    if found is None:
        raise UserError(
            f"{option}: {place} has no chat template; most base models have none. Remove {option}, or {cure}."
        )
    return found
