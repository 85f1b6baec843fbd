"""The example run, made once: building it and rendering the page take most of the time of these tests."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def _load() -> ModuleType:
    # With --import-mode=importlib a test cannot import its neighbour by name.
    path = Path(__file__).with_name("example_run.py")
    spec = importlib.util.spec_from_file_location("report_example_run", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def example() -> ModuleType:
    return _load()


@pytest.fixture(scope="session")
def report(example):
    return example.example_report()


@pytest.fixture(scope="session")
def page(report) -> str:
    from runtime.report.page import render

    return render(report)
