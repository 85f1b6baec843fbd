"""The one family of errors that a user can cause and cure: printed as one message, without a traceback."""

from collections.abc import Mapping, Sequence


class UserError(Exception):
    """What was found, what is wrong with it, and the cure; the command line prints it and exits with 1."""


class RefusedConfigError(ValueError):
    """Raised by a kind's `check` for a config that a few settings mend, or that may be meant, if a person says so.

    Args:
        message: what is wrong.
        cure: field to the text that mends it or says that it is meant, as `--set STEP.FIELD=TEXT` takes it.
    """

    def __init__(self, message: str, cure: Mapping[str, str]) -> None:
        super().__init__(message)
        self.cure = dict(cure)


def listed(names: Sequence[str], most: int) -> str:
    """ "a, b and 3 more", of more names than anybody reads."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
