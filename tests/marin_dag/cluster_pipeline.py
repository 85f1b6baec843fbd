"""Pipeline with a command line for tests of detached runs: python cluster_pipeline.py [COMMAND] --marks DIR."""

import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from marin_dag.cli.main import main
from marin_dag.graph.step import Step
from tests.marin_dag.cluster_steps import graph


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--marks", required=True)
    parser.add_argument("--gate", type=int, default=-1)
    parser.add_argument("--deaf", action="store_true")


def build(arguments: Namespace) -> list[Step[Any]]:
    steps = graph(arguments.marks, arguments.gate, is_deaf=arguments.deaf)
    return [steps["main"], steps["branch"]]


if __name__ == "__main__":
    sys.exit(main(build, add_arguments=add_arguments, name="walks"))
