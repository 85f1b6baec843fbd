"""Early interrupt: Ctrl-C while a pipeline's modules are imported, which takes half a second, ends with one line.

A pipeline calls `say_it_in_one_line` above its other imports; nothing heavy may be imported here. Once `cli.main` runs,
it hears interrupts itself.
"""

import sys
from types import TracebackType

INTERRUPTED = 130


def say_it_in_one_line() -> None:
    """From now on an interrupt that nobody catches is no traceback, and the process exits with 130."""
    shown = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not is_interrupt(error):
            shown(kind, error, trace)
            return
        print("interrupted", file=sys.stderr)
        raise SystemExit(INTERRUPTED)

    sys.excepthook = hook


def is_interrupt(error: BaseException) -> bool:
    """Whether it is Ctrl-C, or the error that pydantic makes of one that met it in a model."""
    # By its name: pydantic may not be loaded yet.
    is_pydantic_s = type(error).__name__ == "SchemaError" and "KeyboardInterrupt" in str(error)
    return is_pydantic_s or isinstance(error, KeyboardInterrupt)
