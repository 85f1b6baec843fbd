"""Packing: what a row is made of; a plain value without NumPy, so that a plan can read it."""

from typing import Literal

Packing = Literal["concatenate", "whole_documents"]
"""concatenate: a row is any stretch of the source and usually begins inside a document.
whole_documents: a row holds whole documents (best_fit.py), then padding."""
