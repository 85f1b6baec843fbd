"""Terminals without UTF-8: no print fails."""

import os
import subprocess
import sys


def test_characters_that_an_encoding_lacks_are_escaped() -> None:
    code = "from marin_dag.cli.main import main; main(lambda parsed: [], name='toy', argv=['why', 'é→'])"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment)
    assert b"\\xe9\\u2192" in ended.stderr and b"Traceback" not in ended.stderr
