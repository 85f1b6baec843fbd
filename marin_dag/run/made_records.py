"""Made records: the records that a driver has seen last, and the warnings about the outputs that its steps made."""

from marin_dag.ledger.records import Record, Records
from marin_dag.run.live import Display

MAX_RECENT = 64
"""Records kept in memory: steps that start together read the same few inputs."""


class MadeRecords:
    """Records by key, from memory where this driver has just made or read them, else from the store."""

    def __init__(self, records: Records, display: Display) -> None:
        self._records, self._display = records, display
        self._recent: dict[str, Record] = {}
        """The newest last."""
        self.warned: dict[str, Record] = {}
        """Records with warnings, of the steps that this driver has made, by name of the step."""

    def get(self, key: str) -> Record:
        """Return a committed record; raise StoreError if there is none."""
        record = self._recent.pop(key, None) or self._records.get(key)
        self._keep(record)
        return record

    def add(self, name: str, record: Record) -> None:
        """Note the record that a step of this driver has made, and show the warnings about its output."""
        self._keep(record)
        if record.warnings:
            self.warned[name] = record
        for warning in record.warnings:
            self._display.say(f"{name}: warning: {warning.text}")

    def _keep(self, record: Record) -> None:
        self._recent[record.key] = record
        if len(self._recent) > MAX_RECENT:
            del self._recent[next(iter(self._recent))]
