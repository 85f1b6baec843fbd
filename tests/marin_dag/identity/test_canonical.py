"""Identity: digests are equal if and only if values are, and execution stays out."""

import copy
import dataclasses
import datetime
import decimal
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from marin_dag.graph.resources import Gpu, Tpu
from marin_dag.graph.step import Input, Once, Step, StepContext, StopAt, step
from marin_dag.identity.canonical import NotCanonicalError, canonical, sha256
from marin_dag.identity.identity import digest_of_document
from tests.catalogue import expect_error
from tests.marin_dag.golden import (
    FILE,
    Access,
    Color,
    Constant,
    Level,
    Linear,
    Open,
    Shape,
    golden_digests,
    shipped_fingerprints,
)
from tests.marin_dag.toy import CountConfig, TextConfig, TrainConfig, count, text, train

UTC = datetime.UTC
VERSIONS = ("3.11", "3.12", "3.13", "3.14")


@dataclasses.dataclass
class Thawed:
    value: float


class Mutable(BaseModel):
    value: int


def interpreters() -> dict[str, str]:
    """Return this Python, and every other supported one on the path that has what the engine's identity needs."""
    found = {"this": sys.executable}
    for version in VERSIONS:
        path = shutil.which(f"python{version}")
        has_what_it_takes = [str(path), "-c", "import sys, pydantic; print(sys.version)"]
        answer = path and subprocess.run(has_what_it_takes, capture_output=True, text=True)
        if path and answer and answer.returncode == 0 and answer.stdout.strip() not in (sys.version, ""):
            found[version] = path
    return found


def golden_in(python: str, seed: str, folder: Path) -> Any:
    """Return the golden digests as another process computes them, started elsewhere."""
    root = Path(__file__).parents[3]
    paths = [str(root), *(sys.path if python == sys.executable else ())]
    found = subprocess.run(
        [python, "-m", "tests.marin_dag.golden", "--all"],
        env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(paths), "PATH": os.environ["PATH"]},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def test_golden_digests_hold() -> None:
    cure = "digests moved, so that every output would be made again; if that is meant, see tests/marin_dag/golden.py"
    assert golden_digests() == json.loads(FILE.read_text()), cure


@pytest.mark.parametrize(
    ("python", "seed"),
    [(path, "4711") for path in interpreters().values()],
)
def test_digests_are_the_same_in_every_process_launch_folder_hash_seed_and_python(
    python: str, seed: str, tmp_path: Path
) -> None:
    assert golden_in(python, seed, tmp_path) == {**json.loads(FILE.read_text()), "shipped": shipped_fingerprints()}


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.0, -0.0, 1.0, 2.5, 1e300]),
    st.sampled_from(["", "1", "a", "None", "1.0", "True", "list", "\u00e9", "e\u0301", "\ud800"]),
    st.binary(max_size=1),
    st.sampled_from([Color.RED, Level.ONE, Access.READ, PurePosixPath("a"), datetime.date(2026, 1, 1)]),
    st.sampled_from([decimal.Decimal("1"), decimal.Decimal("1.0"), datetime.timedelta(days=1)]),
    st.sampled_from([Constant(1.0), Constant(2.0), Linear(1.0), Shape(1, 2), Open(known=1)]),
)
KEYS = st.sampled_from(["a", "b", "c", "1", 1, 2.0, None, Color.RED])
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
        st.frozensets(st.sampled_from([-1, 0, 1, 2.5, "1", "a", None, Color.RED]), max_size=3),
    ),
    max_leaves=8,
)


def typed(value: Any) -> Any:
    """Return an independent form for comparison: each leaf with its type, mappings and sets without order."""
    if isinstance(value, dict):
        return ("dict", frozenset((typed(key), typed(item)) for key, item in value.items()))
    if isinstance(value, (Shape, Open)):
        return (
            type(value).__name__,
            tuple((name, typed(item)) for name, item in sorted(dict(of_fields(value)).items())),
        )
    if isinstance(value, (list, tuple)):
        return ("list", tuple(typed(item) for item in value))
    if isinstance(value, frozenset):
        return ("set", frozenset(typed(item) for item in value))
    return (type(value).__name__, repr(value))


def of_fields(value: Any) -> Any:
    return value._asdict() if isinstance(value, Shape) else value.model_dump()


NEIGHBOURS: tuple[Callable[[Any], Any], ...] = (
    lambda value: [value],
    lambda value: (value,),
    lambda value: {"a": value},
    lambda value: ["list", value],
    lambda value: str(value),
    lambda value: repr(value),
    lambda value: {value: value} if isinstance(value, (int, str)) else value,
    lambda value: int(value) if isinstance(value, (bool, float)) and abs(value) < 10 else value,
    lambda value: float(value) if isinstance(value, int) else value,
    lambda value: bool(value) if isinstance(value, int) else value,
    lambda value: -value if isinstance(value, float) else value,
    lambda value: list(reversed(value)) if isinstance(value, list) else value,
    lambda value: dict(reversed(value.items())) if isinstance(value, dict) else value,
    lambda value: sorted(value, key=repr) if isinstance(value, frozenset) else value,
    lambda value: dict(zip(value, list(value.values())[::-1], strict=True)) if isinstance(value, dict) else value,
    lambda value: [*value[:-2], [*value[-2:]]] if isinstance(value, list) else value,
    lambda value: ["".join(value)] if isinstance(value, list) and all(type(i) is str for i in value) else value,
    lambda value: list(value) if isinstance(value, (tuple, str)) else value,
    lambda value: canonical(value, "x"),
    copy.deepcopy,
)


@st.composite
def near_misses(draw: st.DrawFn) -> tuple[Any, Any]:
    """A value, and the same with one change somewhere inside, which may change nothing."""
    value = draw(VALUES)
    step = draw(st.sampled_from(NEIGHBOURS))

    def stepped(inner: Any) -> Any:
        if isinstance(inner, list) and inner and draw(st.booleans()):
            index = draw(st.integers(0, len(inner) - 1))
            return [*inner[:index], stepped(inner[index]), *inner[index + 1 :]]
        if isinstance(inner, dict) and inner and draw(st.booleans()):
            key = draw(st.sampled_from(list(inner)))
            return {**inner, key: stepped(inner[key])}
        return step(inner)

    return value, stepped(value)


def digest(value: Any) -> str:
    return sha256(canonical(value, "value"))


@settings(max_examples=400)
@given(near_misses())
def test_digests_are_equal_if_and_only_if_values_are(pair: tuple[Any, Any]) -> None:
    one, other = pair
    assert (digest(one) == digest(other)) == (typed(one) == typed(other))


@given(VALUES, VALUES)
def test_digests_of_unrelated_values_are_equal_if_and_only_if_the_values_are(one: Any, other: Any) -> None:
    assert (digest(one) == digest(other)) == (typed(one) == typed(other))


@given(VALUES)
def test_the_order_of_a_mapping_does_not_matter(value: Any) -> None:
    forward = {"x": value, "y": 1}
    backward = {"y": 1, "x": value}
    assert canonical(forward, "f") == canonical(backward, "b")


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        datetime.datetime(2026, 1, 1),
        lambda: 1,
        object(),
        Thawed(1.0),
        Mutable(value=1),
        np.zeros(2),
        complex(1, 2),
        int,
        [1, float("nan")],
    ],
)
def test_a_value_without_canonical_form_is_refused_with_its_path_and_the_cure(value: object) -> None:
    with expect_error(NotCanonicalError):
        canonical(value, "config.z")


def test_two_classes_with_the_same_fields_differ() -> None:
    assert canonical(Constant(1.0), "x") != canonical(Linear(1.0), "x")


def test_a_numpy_scalar_is_its_python_value() -> None:
    assert canonical(np.int64(3), "x") == 3
    assert canonical(np.float64(0.5), "x") == canonical(np.float32(0.5), "x") == 0.5
    assert canonical(np.bool_(True), "x") is True


def test_times_in_two_zones_are_one_instant() -> None:
    east = datetime.timezone(datetime.timedelta(hours=2))
    assert canonical(datetime.datetime(2026, 1, 1, 2, tzinfo=east), "x") == canonical(
        datetime.datetime(2026, 1, 1, tzinfo=UTC), "x"
    )


def test_runtime_fields_names_and_resources_stay_out_of_the_digest() -> None:
    one = text("text/web", TextConfig(text="web", workers=1))
    other = text("renamed", TextConfig(text="web", workers=64), resources=Tpu("v4-8"))
    assert one.digest == other.digest
    assert canonical(Constant(1.0, workers=1), "x") == canonical(Constant(1.0, workers=2), "x")
    assert one.digest == text("text/web", TextConfig(text="web"), resources=Gpu("H200", 8)).digest


def test_an_input_is_its_digest_and_not_its_name() -> None:
    def counted(name: str, content: str) -> Step[Any]:
        return count("count", CountConfig(texts={"x": text(name, TextConfig(text=content))}))  # type: ignore[dict-item]

    assert counted("a", "web").digest == counted("b", "web").digest
    assert counted("a", "web").digest != counted("a", "code").digest


def test_a_folder_of_an_output_is_another_input_than_all_of_it() -> None:
    source = text("a", TextConfig(text="web"))
    whole = CountConfig(texts={"x": source})  # type: ignore[dict-item]
    part = CountConfig(texts={"x": source.folder("train")})  # type: ignore[dict-item]
    assert count("c", whole).digest != count("c", part).digest


def trajectory() -> tuple[Step[Any], Step[Any]]:
    data = text("a", TextConfig(text="web"))
    kestrel = train("kestrel", TrainConfig(start=None, until_step=10, data=data))  # type: ignore[arg-type]
    return kestrel, data


def test_the_stop_is_in_the_key_and_not_in_the_digest() -> None:
    kestrel, _ = trajectory()
    later = kestrel.fork("later", until_step=20)
    assert later.digest == kestrel.digest
    assert (kestrel.key, later.key) == (f"{kestrel.digest}@10", f"{kestrel.digest}@20")


def test_a_phase_cut_in_two_is_the_same_run() -> None:
    kestrel, _ = trajectory()
    second = kestrel.then("second", until_step=20)
    third = second.then("third", until_step=30)
    assert third.key == kestrel.fork("whole", until_step=30).key


def test_a_phase_that_changes_a_field_is_another_run_with_the_milestone_it_left() -> None:
    kestrel, _ = trajectory()
    ocelot = kestrel.then("ocelot", until_step=20, z_loss=1e-4)
    earlier = kestrel.at(step=5).then("ocelot", until_step=20, z_loss=1e-4)
    assert len({kestrel.digest, ocelot.digest, earlier.digest}) == 3


def test_a_versioned_step_counts_by_its_version_and_records_the_fingerprint() -> None:
    one = text("a", TextConfig(text="web"), policy="versioned", version="1")
    document = one.identity
    other_code = {**document, "code": {**document["code"], "fingerprint": "0" * 64, "definitions": {}}}
    assert digest_of_document(document) == digest_of_document(other_code) == one.digest
    assert document["code"]["definitions"]["tests.marin_dag.toy.weigh"]
    assert text("a", TextConfig(text="web"), policy="versioned", version="2").digest != one.digest
    tracked = text("a", TextConfig(text="web")).identity
    changed = {**tracked, "code": {**tracked["code"], "fingerprint": "0" * 64}}
    assert digest_of_document(tracked) != digest_of_document(changed)


class RestoreResult(BaseModel, frozen=True, extra="forbid"):
    count: int


class RestoreConfig(BaseModel, frozen=True, extra="forbid"):
    start: Input[RestoreResult] | None
    until_step: StopAt[int]
    restore: Once[str] = "everything"


@step(continues="start")
def restored(config: RestoreConfig, context: StepContext) -> RestoreResult:
    return RestoreResult(count=1)


def test_a_start_from_a_folder_does_not_continue_the_run() -> None:
    first = restored("first", RestoreConfig(start=None, until_step=10))
    whole, part = (
        restored("next", RestoreConfig(start=start, until_step=20)) for start in (first, first.folder("average"))
    )
    assert whole.digest == first.digest != part.digest


def test_a_once_field_makes_another_run_and_is_not_inherited() -> None:
    first = restored("first", RestoreConfig(start=None, until_step=10))
    weights = first.then("weights", until_step=20, restore="weights")
    after = weights.then("after", until_step=30)
    assert weights.digest != first.digest
    assert after.config.restore == "everything"  # type: ignore[attr-defined]
    assert after.digest == weights.digest
    assert after.then("again", until_step=40, restore="weights").digest != weights.digest
