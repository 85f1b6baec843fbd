"""What earlier versions saved, byte for byte: a run of months goes on with a program that has changed meanwhile.

`saved/format_N.zip` holds the folder of a `small_run` of 12 steps that was killed at its step 9, as the program left it
that wrote that format: a temporary checkpoint of step 4 and a milestone of step 5. A new format adds one.
"""

import shutil
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest

from runtime.training.checkpoint_reader import FORMAT, READABLE_FORMATS
from tests.runtime.training import small_run

SAVED = Path(__file__).parent / "saved"


def test_there_is_one_of_each_format_that_is_read():
    assert {path.name for path in SAVED.iterdir()} == {f"format_{number}.zip" for number in READABLE_FORMATS}
    assert FORMAT in READABLE_FORMATS


@pytest.mark.parametrize("step", [4, 5])
@pytest.mark.parametrize("number", READABLE_FORMATS)
def test_a_run_goes_on_with_what_an_earlier_version_saved(number: int, step: int, tmp_path: Path):
    with zipfile.ZipFile(SAVED / f"format_{number}.zip") as saved:
        saved.extractall(tmp_path / "old")
    if step == 4:  # the temporary one alone
        shutil.rmtree(tmp_path / "old" / "records")
    updates = []

    def step_function(state, *arguments):
        updates.append(int(state.optimizer.count))
        return small_run.train_step(state, *arguments)

    reached = small_run.run(tmp_path / "old", lease_epoch=2, step_function=step_function)
    undisturbed = small_run.run(tmp_path / "new", lease_epoch=1)
    assert updates == list(range(step, 12))
    assert reached.consumed_tokens == undisturbed.consumed_tokens
    assert reached.data_position == undisturbed.data_position
    # The machine that saved it may have rounded otherwise than this one.
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5), reached.state, undisturbed.state)
    rows, expected = ([run.metrics[index] for index in range(12)] for run in (reached, undisturbed))
    assert [row.step for row in rows] == list(range(1, 13))
    np.testing.assert_allclose([row.loss for row in rows], [row.loss for row in expected], rtol=1e-5)
    # Both formats are from before log-normalisers were recorded by source.
    (of_sources, expected) = (
        {(row.step, row.source): row.log_normalizer_sum for row in map(run.source_losses.__getitem__, range(24))}
        for run in (reached, undisturbed)
    )
    expected = {key: value if key[0] > step else np.nan for key, value in expected.items()}
    assert of_sources == pytest.approx(expected, rel=1e-5, nan_ok=True)
