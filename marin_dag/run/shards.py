"""Shards: pieces of a step's work that survive a kill of the step.

A finished shard leaves a small record below `work/<digest>/`, which outlives the attempt and names the folder of its
files. The next attempt takes the files over by link or server-side copy, after checking their bytes.
The record's name holds what the shard is (its function, that function's code, its item) and not its place in the list,
so a changed list takes over exactly the shards that are still in it.
The name also holds the epoch of the attempt's lease: a paused attempt that wakes up cannot replace the shards of its
successor. An attempt reads its own shards, and takes over those that older attempts had finished when it started.
"""

import dataclasses
import functools
import json
import logging
import types
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from marin_dag.code.audit import CodeWatch
from marin_dag.code.closure import Closure
from marin_dag.code.fingerprint import closure_of
from marin_dag.graph.context import StepStopped
from marin_dag.identity.canonical import canonical, sha256
from marin_dag.ledger.checked_json import ChecksumError, checked_body, checked_json
from marin_dag.ledger.records import FileEntry, make_manifest
from marin_dag.ledger.work_files import key_and_epoch
from marin_dag.run.input_files import InputFiles, InputOutput
from marin_dag.run.result_document import json_data
from marin_dag.run.task import FanOut
from marin_dag.run.usage import Usage, Used
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Store


class Shard(BaseModel, frozen=True, extra="forbid"):
    """Record of a finished shard: `folder` is relative to the prefix, `manifest` to the folder."""

    folder: str
    manifest: tuple[FileEntry, ...]
    result: Any
    used: Used = Used()


@dataclasses.dataclass(frozen=True)
class ShardCall:
    """The call that a worker makes for one shard; picklable if its function and item are."""

    prefix: str
    record_path: str
    folder: str
    function: Callable[[Any, str], Any]
    item: Any
    closure: Closure
    """The code as the attempt saw it; a worker may import a later version."""
    inputs: tuple[InputOutput, ...]
    attempt_began: float
    """Seconds since 1970."""

    def __call__(self) -> None:
        function = _Function(self.function)
        values = (self.item, *function.bound)
        fingerprint, definitions, _ = self.closure
        watch = CodeWatch(function.name, function.code, values, fingerprint, definitions, logging.getLogger("shard"))
        store = open_store(self.prefix)
        if store.exists(self.record_path):
            return  # finished by a worker that died before it reported; others may link the files by now
        for left in store.list(self.folder):  # left by a killed worker
            store.delete(left.path)
        url = store.make_folder(self.folder)
        watch.check()
        usage = Usage(values, self.prefix, self.attempt_began)
        with InputFiles(store).watching() as inputs, usage.recording():
            inputs.add(self.inputs)
            result = function.to_json(self.function(self.item, url))
        watch.check()
        shard = Shard(folder=self.folder, manifest=make_manifest(store, self.folder), result=result, used=usage.used())
        store.write(self.record_path, checked_json(shard))


@dataclasses.dataclass
class ShardMap:
    """A call of `context.map`: takes over finished shards, runs the rest, and returns all results in order."""

    store: Store
    records_folder: str
    lease_epoch: int
    output_path: str
    name: str
    function: Callable[[Any, str], Any]
    items: Sequence[Any]
    log: logging.Logger
    inputs: tuple[InputOutput, ...]
    """The outputs that the step reads, whose files a shard checks when it opens them."""
    usage: Usage
    """Gets what the shards read."""

    def __post_init__(self) -> None:
        self._function = _Function(self.function)
        self._closures = [closure_of(self._function.code, item, *self._function.bound) for item in self.items]
        self._keys = self._shard_keys()

    def _shard_keys(self) -> list[str]:
        """Return a key for each shard; equal items differ by their number among the equal ones.

        Paths below the attempt's output or the prefix are replaced: they differ between attempts and prefixes.
        """
        name = self._function.name
        called = [name, canonical(self._function.bound, f"{self.name}: bound by {name}")]
        own_output, prefix = (json.dumps(path)[1:-1] for path in (self.store.url(self.output_path), self.store.prefix))
        seen: dict[str, int] = {}
        keys = []
        for index, (item, closure) in enumerate(zip(self.items, self._closures, strict=True)):
            shard = json.dumps([*called, closure.fingerprint, canonical(item, f"{self.name}[{index}]")])
            content = sha256(shard.replace(f"{own_output}/", "<output>/").replace(f"{prefix}/", "<prefix>/"))
            seen[content] = seen.get(content, 0) + 1
            keys.append(sha256([content, seen[content]]))
        return keys

    def run(
        self,
        fan_out: FanOut,
        in_flight: int,
        stop_requested: Callable[[], bool],
        progress: Callable[[int, int, str], None],
        on_finished: Callable[[int, Any], None] | None = None,
    ) -> tuple[list[Any], list[FileEntry]]:
        """Return the results in the order of the items, and all files relative to the output."""
        if in_flight < 1:
            raise ValueError(f"context.map(in_flight={in_flight}): use at least 1.")
        results: dict[int, Any] = {}

        def finished(index: int) -> None:
            results[index] = self._function.from_json(shards[index].result)
            if on_finished is not None:
                on_finished(index, results[index])

        shards = self._take_over()
        if shards:
            self.log.info("%s: %d of %d were finished by earlier attempts", self.name, len(shards), len(self.items))
        progress(len(shards), len(self.items), self.name)
        for index in sorted(shards):
            finished(index)
        missing = [index for index in range(len(self.items)) if index not in shards]
        for number in fan_out.run([self._call(index) for index in missing], in_flight, self.name, stop_requested):
            index = missing[number]
            shards[index] = self._read(self._record_path(index))
            progress(len(shards), len(self.items), self.name)
            finished(index)
        if len(shards) < len(self.items):
            raise StepStopped(f"{self.name}: {len(shards):,} of {len(self.items):,} finished")
        for shard in shards.values():
            self.usage.add(shard.used)
        files = [
            entry.model_copy(update={"path": f"{self.name}/{index:05d}/{entry.path}"})
            for index in range(len(self.items))
            for entry in shards[index].manifest
        ]
        return [results[index] for index in range(len(self.items))], files

    def _call(self, index: int) -> ShardCall:
        return ShardCall(
            self.store.prefix,
            self._record_path(index),
            self._folder(index),
            self.function,
            self.items[index],
            self._closures[index],
            self.inputs,
            self.usage.began,
        )

    def _take_over(self) -> dict[int, Shard]:
        kept: dict[str, list[tuple[int, str]]] = {}
        for entry in self.store.list(self.records_folder):
            key, epoch = key_and_epoch(entry.path)
            if epoch <= self.lease_epoch:
                kept.setdefault(key, []).append((epoch, entry.path))
        taken = {}
        for index, key in enumerate(self._keys):
            for _, path in sorted(kept.get(key, ()), reverse=True):
                try:
                    shard = self._read(path)
                except (ChecksumError, ValidationError):
                    self.log.warning("%s: not a record of a shard; running the shard again", self.store.url(path))
                    continue
                if self._took_over(shard, index):
                    taken[index] = shard
                    break
        return taken

    def _took_over(self, shard: Shard, index: int) -> bool:
        """Link the files of an older shard into this attempt's folder; return False if a file is missing or changed."""
        if shard.folder == self._folder(index):
            return True
        for file in shard.manifest:
            source = f"{shard.folder}/{file.path}"
            if not self.store.exists(source) or self.store.settle(source) != (file.size_in_bytes, file.crc32c):
                self.log.warning("%s: missing or changed since the shard finished; running the shard again", source)
                return False
        self.store.make_folder(self._folder(index))
        for file in shard.manifest:
            self.store.copy(f"{shard.folder}/{file.path}", f"{self._folder(index)}/{file.path}")
        return True

    def _read(self, path: str) -> Shard:
        return Shard.model_validate_json(checked_body(self.store.read(path)))

    def _record_path(self, index: int) -> str:
        return f"{self.records_folder}/{self._keys[index]}.{self.lease_epoch:08d}.json"

    def _folder(self, index: int) -> str:
        return f"{self.output_path}/{self.name}/{index:05d}"


class _Function:
    """The function of a shard, without the partials around it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        bound: list[Any] = []
        while isinstance(function, functools.partial):
            bound += [function.args, function.keywords]
            function = function.func
        is_function = isinstance(function, types.FunctionType) or hasattr(function, "__wrapped__")
        self.code: Any = function if is_function else type(function).__call__
        """The function whose code is the shard's."""
        self.bound = tuple(bound if is_function else [*bound, function])
        """The arguments that the partials bind, and a callable object."""
        self.name = f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"
        self._inner = function

    def to_json(self, value: Any) -> Any:
        """Return a result as JSON data; raise TypeError if JSON does not keep it as it is."""
        if isinstance(value, BaseModel) and self._model is None:
            raise TypeError(
                f"{self.name} returned a {type(value).__qualname__}, which its signature does not say. Annotate its "
                "return type, so that the result of a finished shard can be read back."
            )
        return json_data(value, self._model, self.name)

    def from_json(self, data: Any) -> Any:
        if self._model is None:
            return data
        try:
            return self._model.model_validate(data)
        except ValidationError as error:
            raise TypeError(
                f"{self.name}: the result of a finished shard does not fit {self._model.__qualname__}: {error}"
            ) from error

    @functools.cached_property
    def _model(self) -> type[BaseModel] | None:
        annotation = getattr(self._inner, "__annotations__", {}).get("return")
        if isinstance(annotation, str):
            try:
                annotation = eval(annotation, getattr(self._inner, "__globals__", {}))
            except NameError as error:
                raise TypeError(
                    f"{self.name}: its return type {annotation!r} cannot be resolved ({error}). Define it in the "
                    "module of the function."
                ) from None
        return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
