"""Restore: what a phase takes from the state it starts from; plain values for plans."""

from typing import Literal

Restore = Literal["everything", "everything_but_optimizer", "weights_and_optimizer", "weights"]
RESTORES_POSITION = ("everything", "everything_but_optimizer")
"""Values that keep the data position of the phase before."""
RESTORES_OPTIMIZER = ("everything", "weights_and_optimizer")
"""Values that keep the optimizer's state."""
