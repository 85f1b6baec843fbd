"""The garbage collector: paused by a plan, seldom while a command runs, never at its end."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from marin_dag.cli.main import main
from marin_dag.paused_collection import SELDOM, collection_of_a_command, collection_paused
from tests.marin_dag import toy

ROOT = Path(__file__).parents[2]
COMMAND = """
import atexit, gc, sys
from marin_dag.cli.main import main
from tests.marin_dag import toy
atexit.register(lambda: print(gc.get_freeze_count() > 10_000, *gc.get_threshold(), file=sys.stderr))
sys.exit(main(toy.build, name="toy"))
"""


@pytest.fixture(autouse=True)
def collector():
    """Restore the collector after each test."""
    before = gc.get_threshold()
    yield
    gc.enable()
    gc.set_threshold(*before)
    gc.unfreeze()


def test_a_pause_ends_and_leaves_a_disabled_collector_disabled() -> None:
    with collection_paused():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    with collection_paused():
        assert not gc.isenabled()
    assert not gc.isenabled()


@pytest.mark.parametrize("is_run", [False, True])
def test_a_command_collects_seldom_and_a_run_as_ever_and_neither_at_its_end(is_run: bool) -> None:
    before = gc.get_threshold()
    gc.unfreeze()
    with collection_of_a_command(is_run=is_run):
        assert gc.get_threshold() == (before if is_run else SELDOM)
        assert gc.isenabled()
        assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() > 0


def test_the_process_of_a_command_ends_without_a_collection(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COMMAND, "pin", "--prefix", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stderr.split() == ["True", *map(str, gc.get_threshold())]


def test_a_command_inside_another_process_leaves_the_collector_alone(tmp_path: Path) -> None:
    gc.unfreeze()
    before = gc.get_threshold()
    assert main(toy.build, name="toy", argv=["pin", "--prefix", str(tmp_path)]) == 0
    assert (gc.get_freeze_count(), gc.get_threshold()) == (0, before)


def test_what_a_pause_made_is_old_afterwards() -> None:
    with collection_paused():
        made = [[] for _ in range(1_000)]
    young = {id(each) for generation in (0, 1) for each in gc.get_objects(generation)}
    assert not any(id(each) in young for each in made)
    assert gc.get_freeze_count() == 0
