"""Cluster definitions for Google Cloud, checked by Ray's schema and loaders."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from marin_dag.graph.resources import Tpu, slice_shape
from pipelines.sizes import SCALES

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "infra/gcp/cluster.yaml"
SLICES = sorted((ROOT / "infra/gcp").glob("*.sed"))


def made_by(slices: Path) -> dict[str, Any]:
    """Return the definition of a cluster with these slices, made as docs/how-to/cluster.md says."""
    done = subprocess.run(["sed", "-f", slices, TEMPLATE], capture_output=True, text=True, check=True)
    assert not re.search("@[A-Z]+@", done.stdout), "a placeholder is left"
    definition: dict[str, Any] = yaml.safe_load(done.stdout)
    return definition


@pytest.fixture(params=SLICES, ids=lambda path: path.stem)
def definition(request: pytest.FixtureRequest) -> dict[str, Any]:
    return made_by(request.param)


def test_each_slice_of_the_main_run_and_one_for_trials_has_a_definition():
    slices = {made_by(path)["available_node_types"]["tpu"]["node_config"]["acceleratorType"] for path in SLICES}
    assert slices == {"v4-2048", "v5litepod-256", "v6e-8"}
    scale = SCALES["8b"]
    wanted = (scale.kestrel_resources, scale.main_resources, scale.scoring_resources)
    assert {resources.slice for resources in wanted if isinstance(resources, Tpu)} == slices


def test_ray_accepts_the_definition_and_knows_its_slices(definition: dict[str, Any]):
    # In a process of its own: the imports of Ray's loaders print warnings.
    script = """
import json, sys
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.autoscaler._private.gcp.config import get_node_type
definition = json.load(sys.stdin)
prepared = prepare_config(definition)  # as `ray up` does: with its defaults, then by its schema
validate_config(prepared)
assert not any(prepared[key] for key in prepared if key.endswith("setup_commands")), prepared
print(json.dumps({name: get_node_type(kind["node_config"]).name for name, kind in
                  prepared["available_node_types"].items()}))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], input=json.dumps(definition), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"head": "COMPUTE", "cpu": "COMPUTE", "tpu": "TPU"}


def test_a_machine_of_a_slice_declares_its_chips(definition: dict[str, Any]):
    from ray._private.accelerators.tpu import TPUAcceleratorManager, get_chips_per_host

    tpu = definition["available_node_types"]["tpu"]
    shape = slice_shape(tpu["node_config"]["acceleratorType"])
    assert tpu["resources"]["TPU"] == shape.chips_per_host == get_chips_per_host(shape.topology, shape.generation)
    assert TPUAcceleratorManager.is_valid_tpu_accelerator_topology(shape.generation, shape.topology)
    assert tpu["min_workers"] == tpu["max_workers"] <= definition["max_workers"]


def test_every_machine_asks_for_the_token_and_the_dashboard_listens_only_on_the_head(definition: dict[str, Any]):
    assert definition["file_mounts"] == {"~/.ray/auth_token": "~/.ray/auth_token"}
    (head,) = [command for command in definition["head_start_ray_commands"] if "ray start" in command]
    (worker,) = [command for command in definition["worker_start_ray_commands"] if "ray start" in command]
    assert all(command.startswith("RAY_AUTH_MODE=token ") for command in (head, worker))
    assert "--dashboard-host=127.0.0.1" in head


def test_machines_use_the_account_that_setup_makes(definition: dict[str, Any]):
    setup = (ROOT / "infra/gcp/setup.sh").read_text()
    assert "account=marin-dag@$PROJECT.iam.gserviceaccount.com" in setup
    kinds = definition["available_node_types"]
    accounts = [kinds[name]["node_config"]["serviceAccounts"][0]["email"] for name in ("head", "cpu")]
    accounts.append(kinds["tpu"]["node_config"]["serviceAccount"]["email"])
    assert set(accounts) == {"marin-dag@PROJECT.iam.gserviceaccount.com"}
    assert definition["docker"]["image"].endswith("-docker.pkg.dev/PROJECT/marin-dag/runtime:latest")
    assert "-docker.pkg.dev/$PROJECT/marin-dag/runtime:latest" in setup


def test_the_bucket_deletes_nothing_by_age():
    rules = json.loads((ROOT / "infra/gcp/lifecycle.json").read_text())["rule"]
    # Without the seal of a lease a paused trainer could publish; the work of a phase may be months old.
    assert "Delete" not in {rule["action"]["type"] for rule in rules}


@pytest.mark.parametrize(
    "script", ["infra/gcp/setup.sh", "infra/slurm/ray.sbatch", "tests/infra/run_slurm.sh", "tests/infra/srun"]
)
def test_shellcheck_finds_nothing(script: str):
    shellcheck = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run([shellcheck, "--severity=warning", ROOT / script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
