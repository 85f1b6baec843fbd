"""Early interrupt: one line instead of a traceback for Ctrl-C while a pipeline's modules are imported.

A pipeline calls `install_interrupt_handler` above its other imports, so nothing heavy may be imported here. Once
`cli.main` runs, it handles interrupts itself.
"""

import sys
from types import TracebackType

INTERRUPTED = 130


def install_interrupt_handler() -> None:
    """End the process with one line and exit code 130 on an uncaught interrupt."""
    shown = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not is_interrupt(error):
            shown(kind, error, trace)
            return
        print("interrupted", file=sys.stderr)
        raise SystemExit(INTERRUPTED)

    sys.excepthook = hook


def is_interrupt(error: BaseException) -> bool:
    """Return whether an error is Ctrl-C, or pydantic's error for a Ctrl-C while it built a model."""
    # By name: pydantic may not be imported yet.
    is_from_pydantic = type(error).__name__ == "SchemaError" and "KeyboardInterrupt" in str(error)
    return is_from_pydantic or isinstance(error, KeyboardInterrupt)
