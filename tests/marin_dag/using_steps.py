"""Steps that use files and programs which their digests do not cover, for tests of what the engine sees."""

import importlib.util
import linecache
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
from pydantic import BaseModel

from marin_dag.graph.step import StepContext, step

FILE, MODULE = "beside.txt", "beside_module.py"
LEAST_LENGTH = 0


class UseConfig(BaseModel, frozen=True, extra="forbid"):
    how: str
    named: str = ""


class Length(BaseModel, frozen=True, extra="forbid"):
    length: int


def _folder(path: str) -> Path:
    """The folder above the prefix, which the reading of the source cannot know."""
    return Path(path).parents[len(Path(path).parts) - Path(path).parts.index("runs") - 1]


def _in_a_thread(path: str) -> int:
    with ThreadPoolExecutor(1) as pool:
        return len(pool.submit((_folder(path) / FILE).read_text).result())


def _imported(path: str) -> int:
    spec = importlib.util.spec_from_file_location("beside_module", _folder(path) / MODULE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return int(module.LENGTH)


def _temporary(path: str) -> int:
    with tempfile.NamedTemporaryFile("w+") as file:
        file.write("own")
        file.flush()
        return len(Path(file.name).read_text())


def _by_descriptor(path: str) -> int:
    descriptor = os.open(_folder(path) / FILE, os.O_RDONLY)
    try:
        return len(os.read(descriptor, 100))
    finally:
        os.close(descriptor)


def _program(path: str) -> int:
    return len(subprocess.run([sys.executable, _folder(path) / MODULE], capture_output=True, check=True).stdout)


def _program_of_a_shell(path: str) -> int:
    return os.system(f"cd / && {sys.executable} {_folder(path) / MODULE} > {os.devnull}")


def _spawned_program(path: str) -> int:
    words = [sys.executable, str(_folder(path) / MODULE)]
    return os.waitpid(os.posix_spawn(words[0], words, dict(os.environ)), 0)[1]


def _extended_variable(path: str) -> int:
    os.environ["FLAGS_OF_USING_STEPS"] = os.environ.get("FLAGS_OF_USING_STEPS", "") or "--more"
    return 0


def _installed_module(path: str) -> int:
    return len(subprocess.run([sys.executable, "-m", "this"], capture_output=True, check=True).stdout)


def _traceback_of_another_file(path: str) -> int:
    try:
        exec(compile("1 / 0", _folder(path) / MODULE, "exec"))
    except ZeroDivisionError:
        linecache.clearcache()
        return len(traceback.format_exc()) * 0
    raise AssertionError("unreachable")


UNCOVERED: dict[str, Callable[[str], int]] = {
    "file": lambda path: len((_folder(path) / FILE).read_text()),
    "descriptor": _by_descriptor,
    "fsspec": lambda path: len(fsspec.open(f"file://{_folder(path) / FILE}").open().read()),
    "thread": _in_a_thread,
    "module": _imported,
    "program": _program,
    "program of a shell": _program_of_a_shell,
    "program by posix_spawn": _spawned_program,
    "variable": lambda path: int(os.environ.get("SOME_SETTING", "0")),
    "variable after a list of all": lambda path: len(list(os.environ)) * 0 + int(os.environ.get("SOME_SETTING", "0")),
    "variable by getenv": lambda path: int(os.getenv("SOME_SETTING") or "0"),
}
COVERED: dict[str, Callable[[str], int]] = {
    "nothing": lambda path: LEAST_LENGTH,
    "temporary file": _temporary,
    "machine": lambda path: len(Path("/etc/hostname").read_text() + Path("/proc/self/status").read_text()) * 0,
    "traceback": _traceback_of_another_file,
    "package": lambda path: len(Path(fsspec.__file__).read_text()) * 0,
    "installed module": _installed_module,
    "variables for a process": lambda path: len({**os.environ, "MORE": "1"}["MORE"]) + len(os.environ.copy()) * 0,
    "variable that it sets": _extended_variable,
    "variable of a package": lambda path: len(tempfile.gettempdir() + str(Path.home())) * 0,
    "code": lambda path: len(Path(__file__).read_text()) * 0,
}


def use(config: UseConfig, path: str) -> int:
    """Use what the config says, or the file that it names."""
    if config.named:
        return len(Path(config.named).read_text())
    return {**UNCOVERED, **COVERED}[config.how](path)


@step()
def using(config: UseConfig, context: StepContext) -> Length:
    return Length(length=use(config, context.output_path))


@step(refuses_uncovered=True)
def strict(config: UseConfig, context: StepContext) -> Length:
    return Length(length=use(config, context.output_path))


@step()
def using_in_shards(config: UseConfig, context: StepContext) -> Length:
    return Length(length=sum(context.map(use, [config, config], in_flight=1)))
