"""Warned outputs: the outputs that the steps of one driver made and warned about."""

from marin_dag.ledger.records import Record
from marin_dag.run.live import LineDisplay


class WarnedOutputs:
    """Shows each warning once the output is committed, and keeps it for the end of the run."""

    def __init__(self, display: LineDisplay) -> None:
        self._display = display
        self.records: dict[str, Record] = {}
        """By name of the step."""

    def add(self, name: str, record: Record | None) -> None:
        """Note the record that the step `name` has made, if it has warnings."""
        if record is None or not record.warnings:
            return
        self.records[name] = record
        for warning in record.warnings:
            self._display.say(f"{name}: warning: {warning.text}")
