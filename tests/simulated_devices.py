"""Scripts on simulated devices, in their own processes, since the number of devices is set before JAX starts."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def report_of(script: Path, *, num_devices: int, flags: str = "", **environment: str) -> Any:
    """Return the JSON that `script` prints; its warnings are errors. `flags` are added to XLA's."""
    count = f"--xla_force_host_platform_device_count={num_devices} {flags}"
    finished = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        capture_output=True,
        text=True,
        env=os.environ
        | {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {count}", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
        | environment,
        cwd=ROOT,
        timeout=600,
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)
