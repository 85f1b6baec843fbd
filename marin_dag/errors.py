"""Errors that a user can cause and fix: printed as one message, without a traceback."""

from collections.abc import Mapping, Sequence


class UserError(Exception):
    """An error with what is wrong, where, and the fix; the command line prints it and exits with 1."""


class RefusedConfigError(ValueError):
    """Error of a kind's `check` for a config that a few settings fix or acknowledge.

    Args:
        message: what is wrong.
        cure: field to the text that fixes or acknowledges it, as `--set STEP.FIELD=TEXT` takes it.
    """

    def __init__(self, message: str, cure: Mapping[str, str]) -> None:
        super().__init__(message)
        self.cure = dict(cure)


def listed(names: Sequence[str], most: int) -> str:
    """Return "a, b and 3 more", with at most `most` names."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
