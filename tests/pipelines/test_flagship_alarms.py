"""Monitors on the figures of the flagship's own run and its extension: no alarm, and each planted fault is found."""

import math

import pytest

from runtime.training.figure_checks import first_loss_of
from runtime.training.monitors import Monitors
from steps.phase_config import resets_level_at
from tests.pipelines.flagship_figures import Figures, flagship_phases, read_figures, rows_of


@pytest.fixture(scope="module")
def phases():
    return flagship_phases()


@pytest.fixture(scope="module")
def figures():
    return read_figures()


def followed(phases, figures, name) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Return the alarms of a phase and its spikes without an alarm, after the steps of the phases before it."""
    phase, line = phases[name], []
    while phase is not None:
        until = line[0].step - 1 if line else phases[name].config.until_step
        own = {step: found for step, found in figures[phase.name].items() if step <= until}
        line = [*rows_of(phase, own), *line]
        phase = None if phase.predecessor is None else phases[phase.predecessor.step.name]
    config = phases[name].config
    first_loss = first_loss_of(config.model) if config.start is None else None
    monitors = Monitors(lambda step: step <= config.begin_step or resets_level_at(config, step), first_loss=first_loss)
    alarms, spikes = [], []
    for row in line:
        found = [(alarm.monitor, alarm.step) for alarm in monitors.observe(row)]
        if row.step > config.begin_step:
            alarms += found
            spikes += [(spike.monitor, spike.step) for spike in monitors.single_spikes]
    return alarms, spikes


def test_the_figures_are_those_of_the_recipe(phases, figures):
    """After a change of the recipe, the docstring of flagship_figures.py says how to record them again."""
    steps = {name: range(each.config.begin_step + 1, each.config.until_step + 1) for name, each in phases.items()}
    assert {name: [*found] for name, found in figures.items()} == {name: [*each] for name, each in steps.items()}


def test_the_flagship_and_its_extension_raise_no_alarm(phases, figures):
    seen = {name: followed(phases, figures, name) for name in phases}
    assert {name: alarms for name, (alarms, _) in seen.items() if alarms} == {}
    assert sum(len(spikes) for _, spikes in seen.values()) <= 2, "an odd document is an event"


def louder(found: Figures) -> Figures:
    return found._replace(grad_norm=20 * found.grad_norm)


def higher(found: Figures) -> Figures:
    return found._replace(loss=found.loss + 5.0)


def lower(found: Figures) -> Figures:
    return found._replace(loss=found.loss / 3)


def longer(found: Figures) -> Figures:
    return found._replace(update_norm=3 * found.update_norm)


FAULTS = {
    "grad_norm": (1, louder), "loss_spike": (2, higher), "low_loss": (1, lower), "persistent_loss": (10, higher),
    "update_norm": (20, longer),
}  # fmt: skip
LAST_STEPS = {"kestrel": 690, "ocelot": 841, "jellyfish": 921, "phoenix": 1201, "starling": 1301}
"""Where a fault ends in each phase: its last step, or one before its last decay."""
LONG = ("kestrel", "phoenix")
"""Phases with enough steps since the learning rate rose, or at a steady one, for all monitors."""


@pytest.mark.parametrize(
    ("name", "monitor"),
    [(name, monitor) for name in LAST_STEPS for monitor in (FAULTS if name in LONG else ("grad_norm", "loss_spike"))],
)
def test_a_fault_planted_in_the_run_is_found(phases, figures, name, monitor):
    num_steps, fault = FAULTS[monitor]
    planted = range(LAST_STEPS[name] - num_steps + 1, LAST_STEPS[name] + 1)
    own = {step: fault(found) if step in planted else found for step, found in figures[name].items()}
    alarms, _ = followed(phases, figures | {name: own}, name)
    assert monitor in {found for found, step in alarms if step in planted}


def test_a_first_loss_of_another_vocabulary_is_found(phases, figures):
    first = figures["kestrel"][1]
    own = figures["kestrel"] | {1: first._replace(loss=first.loss + math.log(4))}
    assert ("first_loss", 1) in followed(phases, figures | {"kestrel": own}, "kestrel")[0]
