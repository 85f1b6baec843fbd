"""Stale hits and needless reruns that other engines are known for, one test each.

Edits of helpers, constants and nested functions, comments and layout are in `tests/edits/`; an edit under an unchanged
version is in `cli/test_accept.py`; another folder of an input, a renamed step, other hash seeds, processes and Pythons
are in `test_canonical.py`. A helper that is renamed or moved is other code here as elsewhere, since code can read its
name; for a step that is too expensive to repeat a user runs `accept`.
"""

import collections
import copy
import dataclasses
import datetime
import decimal
import enum
import importlib.metadata
import itertools
import os
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from pydantic import BaseModel

from marin_dag.graph.step import Input, Step, StepContext, step
from marin_dag.identity import code_identity as code
from marin_dag.identity.canonical import NotCanonicalError, canonical, sha256
from marin_dag.store.prefix import open_store
from marin_dag.values.walk import replace_references
from steps.download import DownloadConfig, download
from steps.fetch import files_in
from tests.catalogue import expect_error
from tests.marin_dag.golden import Open
from tests.marin_dag.run.test_driver import output, run
from tests.marin_dag.toy import CountConfig, TextConfig, count, text
from tests.marin_dag.toy_steps import FailConfig, WriteConfig, executions, fail, write


def digest(value: Any) -> str:
    return sha256(canonical(value, "value"))


class Rates(BaseModel, frozen=True, extra="forbid"):
    learning_rate: float = 1e-3
    weight_decay: float = 0.1


class Deep(BaseModel, frozen=True, extra="forbid"):
    inner: "Deep | Rates"


class Result(BaseModel, frozen=True, extra="forbid"):
    count: int = 0


class Anything(BaseModel, frozen=True, extra="forbid"):
    value: Any = None


@step()
def anything(config: Anything, context: StepContext) -> Result:
    return Result()


@step()
def something(config: Anything, context: StepContext) -> Result:
    return Result()


def of(value: Any) -> str:
    return anything("anything", Anything(value=value)).digest


def test_swapped_values_of_two_parameters_differ() -> None:
    assert of(Rates(learning_rate=1, weight_decay=2)) != of(Rates(learning_rate=2, weight_decay=1))
    assert of({"lr": 1, "wd": 2}) != of({"lr": 2, "wd": 1})


@pytest.mark.parametrize("depth", [1, 5, 6, 7, 20])
def test_a_leaf_of_a_deeply_nested_config_counts(depth: int) -> None:
    def nested(rate: float) -> Deep | Rates:
        config: Deep | Rates = Rates(learning_rate=rate)
        for _ in range(depth):
            config = Deep(inner=config)
        return config

    assert of(nested(1.0)) == of(nested(1.0))
    assert of(nested(1.0)) != of(nested(2.0))


def test_an_edit_at_the_top_of_a_chain_of_steps_reaches_its_end_however_long() -> None:
    def end_of_chain(word: str) -> Step[Any]:
        last: Step[Any] = text("start", TextConfig(text=word))
        for number in range(30):
            last = count(f"count{number}", CountConfig(texts={"above": last}))  # type: ignore[dict-item]
        return last

    assert end_of_chain("web").digest == end_of_chain("web").digest
    assert end_of_chain("web").digest != end_of_chain("code").digest


def test_the_same_bytes_in_another_shape_or_dtype_are_refused_rather_than_equal() -> None:
    for array in (np.zeros((2, 3)), np.zeros((3, 2)), np.zeros(6), np.zeros(6, "int64")):
        with expect_error(NotCanonicalError):
            of(array)
    assert len({of(array.tolist()) for array in (np.zeros((2, 3)), np.zeros((3, 2)), np.zeros(6, "int64"))}) == 3


def test_one_one_point_nought_true_and_the_text_are_four_values() -> None:
    assert len({of(value) for value in (1, 1.0, True, "1", decimal.Decimal(1), b"1")}) == 6
    assert len({of({key: 0}) for key in (1, 1.0, True, "1")}) == 4
    assert len({of(frozenset({value})) for value in (1, 1.0, True, "1")}) == 4
    assert len({of(value) for value in (None, "None", "", 0, False, [], {}, frozenset())}) == 8


def test_a_set_has_one_digest_whatever_the_order_in_which_it_was_filled() -> None:
    words = ["web", "code", "math", "books", "\u00e9"]
    assert len({of(set(order)) for order in itertools.permutations(words)}) == 1


def test_a_mapping_has_one_digest_whatever_the_order_in_which_it_was_filled() -> None:
    items = {"web": 1, "code": 2, "math": 3}.items()
    assert len({of(dict(order)) for order in itertools.permutations(items)}) == 1


def test_the_order_of_a_list_counts() -> None:
    assert of(["web", "code"]) != of(["code", "web"])


def test_one_object_twice_is_two_equal_objects() -> None:
    shared = Rates()
    assert of([shared, shared]) == of([Rates(), Rates()])
    word = "".join(["w", "eb"])
    assert of(["web", "web"]) == of([word, "web"])


def test_a_tuple_a_list_and_a_mapping_that_hold_inputs_count_them() -> None:
    def reading(word: str, number: int) -> list[Any]:
        source = text("source", TextConfig(text=word))
        wrapped = (source.as_input(), number)
        return [wrapped, list(wrapped), {"a": wrapped}, Pair(*wrapped)]

    for web, other, web_again in zip(reading("web", 1), reading("code", 1), reading("web", 1), strict=True):
        assert of(web) != of(other)
        assert of(web) == of(web_again)


class Pair(NamedTuple):
    source: Any
    number: int


def test_an_input_inside_a_named_tuple_is_an_edge_of_the_graph() -> None:
    source = text("source", TextConfig(text="web"))
    reader = anything("reader", Anything(value=Pair(source.as_input(), 1)))
    assert [item.step for _, item in reader.inputs] == [source]
    bound = replace_references(reader.config, lambda item: Input(item.name, item.digest, "p", Result()))
    assert bound.value == Pair(bound.value.source, 1)  # type: ignore[attr-defined]
    assert bound.value.source.path == "p"  # type: ignore[attr-defined]


def test_an_input_outside_fields_and_lists_is_refused_with_the_cure() -> None:
    source = text("source", TextConfig(text="web")).as_input()
    with expect_error(NotCanonicalError):
        of({source})
    with expect_error(NotCanonicalError):
        of({source: 1})
    with expect_error(NotCanonicalError):
        of(Open(known=1, unknown=source))  # type: ignore[call-arg]


def test_lambdas_closures_and_partials_are_refused() -> None:
    offset = 1
    for function in (lambda x: x + 1, lambda x: x + 100, lambda x: x + offset, len, print, int, Rates):
        with expect_error(NotCanonicalError):
            of(function)


def test_a_value_whose_text_has_its_address_is_refused() -> None:
    class Plain:
        pass

    with expect_error(NotCanonicalError):
        of(Plain())
    with expect_error(NotCanonicalError):
        of(number for number in range(3))


def test_neighbouring_texts_do_not_run_together() -> None:
    assert of(("1", "2abc")) != of(("12", "abc"))
    assert of({"a": "b,c"}) != of({"a": "b", "c": ""})
    assert of(["a", ["b"]]) != of(["a", "b"]) != of([["a"], "b"])


def test_a_value_that_looks_like_the_encoding_of_another_differs_from_it() -> None:
    for value in ([1, 2], {"a": 1}, {1, 2}, b"\x00", Rates(), datetime.date(2026, 1, 1), decimal.Decimal("1.5")):
        assert of(canonical(value, "x")) != of(value)


def test_decimals_that_print_differently_differ_and_none_is_rounded() -> None:
    assert of(decimal.Decimal("1.5")) != of(decimal.Decimal("1.50"))
    long = decimal.Decimal("1." + "0" * 40 + "1")
    assert of(long) != of(decimal.Decimal("1." + "0" * 40 + "2"))
    with decimal.localcontext(prec=3, capitals=0):
        within = of(decimal.Decimal("1E+30"))
    assert within == of(decimal.Decimal("1E+30"))


def test_two_classes_of_one_name_in_two_modules_differ() -> None:
    def made(module: str) -> Any:
        made = dataclasses.make_dataclass("Linear", [("peak", float)], frozen=True)
        made.__module__ = module
        return made

    assert of(made("first")(1.0)) != of(made("second")(1.0))
    colors = [enum.Enum("Color", "RED", module=module) for module in ("first", "second")]
    assert of(colors[0].RED) != of(colors[1].RED)  # type: ignore[attr-defined]


def test_the_extra_values_of_a_model_count() -> None:
    assert of(Open(known=1, unknown=1)) != of(Open(known=1, unknown=2))  # type: ignore[call-arg]
    assert of(Open(known=1, unknown=1)) != of(Open(known=1))  # type: ignore[call-arg]
    assert of(Open(known=1, a=1, b=2)) == of(Open(known=1, b=2, a=1))  # type: ignore[call-arg]


def test_a_class_that_derives_from_a_plain_one_is_refused_since_it_may_be_more() -> None:
    class Tag(str):
        pass

    for value, _name in ((Tag("a"), "str"), (collections.OrderedDict(a=1), "dict"), (collections.Counter("a"), "dict")):
        with expect_error(NotCanonicalError):
            of(value)
    assert of(np.float64(0.5)) == of(0.5)
    assert of(np.str_("a")) == of("a")


def test_two_functions_with_one_config_are_two_steps() -> None:
    assert anything("a", Anything()).digest != something("a", Anything()).digest


def test_a_digest_is_not_short() -> None:
    assert len(of(1)) == 64


def test_a_default_that_is_written_out_is_the_default() -> None:
    assert of(Rates()) == of(Rates(learning_rate=1e-3, weight_decay=0.1))


def test_a_time_of_a_source_file_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    from marin_dag.code.fingerprint import closure_now

    before = closure_now(anything.function)
    file = Path(__file__)
    os.utime(file, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns + 1))
    assert closure_now(anything.function) == before


def test_the_folder_from_which_a_run_starts_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = of(1)
    monkeypatch.chdir(tmp_path)
    assert of(1) == before


def test_a_same_size_rewrite_of_a_remote_input_is_another_input(prefix: str) -> None:
    store = open_store(prefix)

    def read(content: bytes) -> str:
        store.write("theirs/a.jsonl.gz", content)
        if "://" not in prefix:  # nor does the time of a local one hide it
            os.utime(Path(prefix, "theirs/a.jsonl.gz"), (1, 1))
        return download("theirs", DownloadConfig(fetch=files_in(store.url("theirs"), "*.gz"))).digest

    assert read(b"one") == read(b"one")
    assert read(b"one") != read(b"two")


def test_the_output_of_a_second_attempt_is_found_by_the_next_run(tmp_path: Path) -> None:
    prefix, marks = str(tmp_path / "runs"), tmp_path / "marks"
    config = FailConfig(message="reset", kind="transient", num_failures=1, marks=str(marks))
    for _ in range(2):
        assert run(prefix, [fail("passing", config)])[0] == 0
        assert executions(marks) == {"passing": 2}


def test_an_output_of_another_identity_under_the_same_name_is_never_used(tmp_path: Path) -> None:
    prefix, marks = str(tmp_path / "runs"), tmp_path / "marks"
    for text_of_it in ("aaa", "bbb", "aaa"):
        config = WriteConfig(text=text_of_it, marks=str(marks))
        assert run(prefix, [write("a", config)])[0] == 0
        assert output(prefix, write("a", config), "deep/text.txt") == text_of_it
    assert executions(marks) == {"a": 2}, "and what was made before a change is there again when it is undone"


def test_a_release_of_a_package_that_a_step_does_not_name_moves_no_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    before = of(Rates())
    code.package_version.cache_clear()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "99")
    monkeypatch.setattr(np, "__version__", "99")
    assert anything("anything", Anything(value=Rates())).digest == before


def test_the_place_and_time_of_making_a_config_do_not_count() -> None:
    config = Anything(value={"rates": [Rates(), Rates(weight_decay=0.2)], "words": ("web", frozenset({1, 2}))})
    copied = Anything(value=copy.deepcopy(config.value))
    pickled = Anything(value=pickle.loads(pickle.dumps(config.value)))
    assert anything("a", config).digest == anything("b", copied).digest == anything("c", pickled).digest
