"""Pins: outputs that `gc` keeps although no pipeline names them any more."""

from pydantic import BaseModel, ValidationError

from marin_dag.errors import UserError
from marin_dag.ledger.provenance import now, user_name
from marin_dag.store.store import Store, StoreError

PINS = "pins"


class Pin(BaseModel, frozen=True, extra="forbid"):
    """Keeps the record `key` and its files, but not the inputs they were made from."""

    key: str
    name: str
    author: str
    because: str
    created: str


class Pins:
    """The pins of one prefix."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def pinned(self) -> frozenset[str]:
        return frozenset(entry.path.removeprefix(f"{PINS}/").removesuffix(".json") for entry in self._store.list(PINS))

    def all(self) -> list[Pin]:
        found = []
        for entry in self._store.list(PINS):
            try:
                found.append(Pin.model_validate_json(self._store.read(entry.path)))
            except ValidationError as error:
                raise StoreError(
                    f"{self._store.url(entry.path)}: not a pin ({error.error_count()} errors). Repair or delete "
                    "it; `gc` keeps the output as long as the file exists."
                ) from None
        return sorted(found, key=lambda pin: (pin.created, pin.key))

    def pin(self, key: str, name: str, because: str) -> bool:
        """Pin `key`; return False if it was pinned already."""
        pin = Pin(key=key, name=name, author=user_name(), because=because, created=now())
        return self._store.create(_path(key), pin.model_dump_json(indent=1).encode())

    def unpin(self, key: str, name: str) -> None:
        if key not in self.pinned():
            raise UserError(f"pin {name} --unpin: it is not pinned. `pin` without a step lists the pins.")
        self._store.delete(_path(key))


def _path(key: str) -> str:
    return f"{PINS}/{key}.json"
