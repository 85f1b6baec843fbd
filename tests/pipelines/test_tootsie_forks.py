"""Forks of the flagship: one that could not be planned is refused while it is made, and nothing is kept of it."""

from pathlib import Path

import pytest

from marin_dag.cli import main
from pipelines.tootsie import FOLLOW, OWN_COMMANDS, RESULTS, add_arguments, build


def call(prefix: Path, *arguments: str) -> int:
    given = {"results": RESULTS, "follow": FOLLOW, "commands": OWN_COMMANDS}
    argv = [*arguments, "--prefix", str(prefix)]
    return main(build, add_arguments=add_arguments, name="tootsie", argv=argv, **given)


def test_a_fork_with_an_abrupt_change_is_refused_with_the_words_that_make_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    fork = ("fork", "phoenix", "--as", "seedy", "--set", "seed=4")
    assert call(tmp_path, *fork) == 1
    assert """--set 'acknowledge=["seed"]'""" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*seedy*"))
    assert call(tmp_path, *fork, "--set", 'acknowledge=["seed"]') == 0
    assert call(tmp_path, "--dry-run", "--until", "ema_eval/seedy") == 2


@pytest.mark.parametrize("command", [("fork", "phoenix", "--as", "x", "--set", "z_loss=1e-4"), ("drop", "x")])
def test_what_only_writes_refuses_a_dry_run(tmp_path: Path, command: tuple[str, ...]):
    assert call(tmp_path, *command, "--dry-run") == 1
    assert not list(tmp_path.iterdir())
