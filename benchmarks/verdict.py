"""Verdict: the last line of a benchmark, and an exit status that says whether its claim holds."""

import json
import sys
from collections.abc import Mapping
from typing import Any


def conclude(line: Mapping[str, Any]) -> None:
    """Print `line` as JSON; exit with 1 if its `holds` is false. None claims nothing, as in a smoke test."""
    print(json.dumps(line), flush=True)
    if line["holds"] is not None and not line["holds"]:
        sys.exit(f"does not hold: {line['claim']}")
