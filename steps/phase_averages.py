"""Phase averages: whether a phase will keep the weights that somebody wants of it, known while it is planned."""

from marin_dag.errors import RefusedConfigError
from marin_dag.inputs import Input
from runtime.optim.ema import average_named
from steps.train_phase import TrainPhaseConfig, TrainPhaseResult


def refuse_unkept_average(field: str, phase: Input[TrainPhaseResult], name: str | None, *, instead: str) -> None:
    """Raises RefusedConfigError where the phase keeps no average called `name`, with what `field` may say instead.

    Of another kind of phase its result tells.
    """
    config = phase.config_of(TrainPhaseConfig)
    if name is None or config is None:
        return
    try:
        average_named(config.averages, name, owner=f"{field}: {phase.name}")
    except ValueError as error:
        raise RefusedConfigError(str(error), {field: instead}) from None
