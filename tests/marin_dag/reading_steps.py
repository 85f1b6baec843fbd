"""Steps that read the file of an input in many ways, for tests of damaged inputs."""

import contextlib
import io
import mmap
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
from pydantic import BaseModel

from marin_dag.errors import UserError
from marin_dag.graph.step import Input, StepContext, step

FILE = "deep/data.bin"


class BytesConfig(BaseModel, frozen=True, extra="forbid"):
    content: str
    num_bytes: int = 64


class Bytes(BaseModel, frozen=True, extra="forbid"):
    num_bytes: int


class ReadConfig(BaseModel, frozen=True, extra="forbid"):
    source: Input[Bytes]
    how: str


class Sum(BaseModel, frozen=True, extra="forbid"):
    total: int


@step()
def make_bytes(config: BytesConfig, context: StepContext) -> Bytes:
    data = (config.content * config.num_bytes).encode()[: config.num_bytes]
    with fsspec.open(f"{context.output_path}/{FILE}", "wb", auto_mkdir=True) as file:
        file.write(data)
    return Bytes(num_bytes=len(data))


def _through_fsspec(path: str) -> bytes:
    with fsspec.open(path, "rb") as file:
        return bytes(file.read())


def _of_a_filesystem(path: str) -> bytes:
    system, inner = fsspec.url_to_fs(path)
    return bytes(system.cat_file(inner))


def _ranges(path: str) -> bytes:
    system, inner = fsspec.url_to_fs(path)
    with system.open(inner, "rb") as file:
        head = file.read(10)
        return bytes(head + file.read())


def _by_descriptor(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 1 << 20)
    finally:
        os.close(descriptor)


def _mapped(path: str) -> bytes:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data[:]


def _raw(path: str) -> bytes:
    with io.FileIO(path) as file:
        return file.read()


def _in_a_thread(path: str) -> bytes:
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(_through_fsspec, path)
    return b"nothing" if future.exception() else future.result()


def _caught(path: str) -> bytes:
    with contextlib.suppress(UserError):
        return _through_fsspec(path)
    return b"something else"


def _relative(path: str) -> bytes:
    return Path(os.path.relpath(path)).read_bytes()


def _through_a_link(path: str) -> bytes:
    return Path(os.path.realpath(path)).read_bytes()


def _own_error(path: str) -> bytes:
    """Read past the engine, as a native library does, and find the damage by a checksum of its own."""
    sys.audit("checked_by_reader", path)
    with open(path, "rb") as file:
        data = file.read()
    if len(set(data)) > 1:
        raise ValueError(f"{path}: chunk 3 has another checksum.")
    return data


LOCAL: dict[str, Callable[[str], bytes]] = {
    "path": lambda path: Path(path).read_bytes(),
    "descriptor": _by_descriptor,
    "map": _mapped,
    "memmap": lambda path: np.memmap(path, np.uint8, "r").tobytes(),
    "fromfile": lambda path: np.fromfile(path, np.uint8).tobytes(),
    "raw file": _raw,
    "relative": _relative,
    "link": _through_a_link,
    "own checksum": _own_error,
}
ANYWHERE: dict[str, Callable[[str], bytes]] = {
    "fsspec": _through_fsspec,
    "filesystem": _of_a_filesystem,
    "ranges": _ranges,
    "thread": _in_a_thread,
    "caught": _caught,
}


@step()
def read_bytes(config: ReadConfig, context: StepContext) -> Sum:
    data = {**LOCAL, **ANYWHERE}[config.how](config.source.join(FILE))
    with fsspec.open(f"{context.output_path}/copy.bin", "wb", auto_mkdir=True) as file:
        file.write(data)
    return Sum(total=sum(data))


def read_shard(item: tuple[str, str], path: str) -> int:
    source, how = item
    data = {**LOCAL, **ANYWHERE}[how](source)
    with fsspec.open(f"{path}/copy.bin", "wb", auto_mkdir=True) as file:
        file.write(data)
    return sum(data)


@step()
def read_in_shards(config: ReadConfig, context: StepContext) -> Sum:
    items: list[Any] = [(config.source.join(FILE), config.how)] * 2
    return Sum(total=sum(context.map(read_shard, items, in_flight=2)))
