"""What a sequence is made of: a word of the config, apart from the arrays of `packing`; a plan needs no NumPy."""

from typing import Literal

Packing = Literal["concatenate", "whole_documents"]
"""concatenate: a row is any stretch of the source, and begins in the middle of a document more often than not.
whole_documents: a row holds whole documents and, behind them, padding."""
