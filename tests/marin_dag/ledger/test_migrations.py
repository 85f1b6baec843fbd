"""A change of the digest scheme loses nothing: the encoder of the scheme before finds what was made under it."""

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marin_dag.code import audit as code_watch
from marin_dag.graph import step as step_module
from marin_dag.graph.step import Step
from marin_dag.identity.canonical import SCHEMA_VERSION, Identity, canonical, digest_of_document, identity_of
from marin_dag.identity.diff import CodeChanged
from marin_dag.keep.collect import Collector, Roots
from marin_dag.ledger import lease
from marin_dag.ledger.acceptances import Acceptances
from marin_dag.ledger.damage import findings_of
from marin_dag.ledger.migrations import MIGRATIONS, Migration, migrate
from marin_dag.ledger.pins import Pins
from marin_dag.ledger.records import Records
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Store
from tests.catalogue import expect_error
from tests.marin_dag.run.test_driver import output, run
from tests.marin_dag.toy_steps import (
    Count,
    CountConfig,
    JoinConfig,
    NamesConfig,
    WriteConfig,
    count,
    executions,
    join,
    shouted,
    write,
)

OLD = SCHEMA_VERSION - 1


def in_old_words(node: Any, digests: dict[str, str]) -> Any:
    """A document as the scheme before wrote it: classes without their modules, inputs by their digests of then."""
    match node:
        case ["model" | "dataclass" | "namedtuple" | "enum" as tag, str(name), *rest]:
            return [tag, name.rpartition(".")[2], *(in_old_words(item, digests) for item in rest)]
        case ["input", str(digest), *rest]:
            return ["input", digests.get(digest, digest), *rest]
        case list():
            return [in_old_words(item, digests) for item in node]
    return node


def in_old_scheme(document: dict[str, Any], digests: dict[str, str]) -> Identity:
    old = {**document, "schema": OLD, "config": in_old_words(document["config"], digests)}
    return Identity(digest_of_document(old), old)


def previous(step: Step[Any]) -> Identity:
    """The encoder of the scheme before, as whoever changes the scheme keeps it."""
    start = step.predecessor
    if start is not None and start.digest == step.digest:
        return previous(start.step)
    return in_old_scheme(step.identity, {item.digest: previous(item.step).digest for _, item in step.inputs})


@pytest.fixture
def before_the_change(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The engine as it was: digests of the scheme before. Undone by the test."""

    def identity_of_then(step: Step[Any]) -> Identity:
        found = identity_of(step)
        return found if found.document["schema"] == OLD else in_old_scheme(found.document, {})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_module, "identity_of", identity_of_then)
        patch.setattr(code_watch, "canonical", lambda value, path: in_old_words(canonical(value, path), {}))
        yield patch


def graph(marks: Path, **choices: Any) -> list[Step[Any]]:
    a = write("a", WriteConfig(text="aaa", marks=str(marks)))
    both = join("both", JoinConfig(texts=(a, a), marks=str(marks)), **choices)
    first = count("first", CountConfig(stride=2, until_step=10, marks=str(marks)))
    second = first.then("second", until_step=15)
    branch = count("branch", CountConfig(stride=7, until_step=8, start=first.at(step=5), marks=str(marks)))
    return [a, both, first, second, branch]


def test_after_a_migration_everything_is_done_and_nothing_is_made_again(
    prefix: str, tmp_path: Path, before_the_change: pytest.MonkeyPatch
) -> None:
    marks = tmp_path / "marks"
    old_steps = graph(marks)
    assert run(prefix, old_steps)[0] == 0
    before_the_change.undo()
    made, steps, records = executions(marks), graph(marks), Records(open_store(prefix))
    old_records = {step.key: records.get(step.key) for step in old_steps}
    assert not {step.digest for step in steps} & {step.digest for step in old_steps}

    found = migrate(records, steps, previous)

    assert found.refused == ()
    assert {step.key for step in steps} <= set(found.keys)
    assert run(prefix, steps)[0] == 0
    assert executions(marks) == made
    for old, new in zip(old_steps, steps, strict=True):
        record = records.get(new.key)
        assert record == old_records[old.key].model_copy(
            update={"key": new.key, "digest": new.digest, "identity": new.identity, "migrated_from": old.key}
        )
        assert output(prefix, new, record.manifest[0].path) == output(prefix, old, record.manifest[0].path)
        (entry,) = records.store.list(MIGRATIONS, f"{new.digest}/")
        migration = Migration.model_validate_json(records.store.read(entry.path))
        assert (migration.old_digest, migration.new_digest) == (old.digest, new.digest)
        assert (migration.old_schema, migration.new_schema) == (OLD, SCHEMA_VERSION)
    assert {key: records.get(key) for key in old_records} == old_records


def test_what_is_migrated_goes_on_and_is_read_like_anything_else(
    tmp_path: Path, before_the_change: pytest.MonkeyPatch
) -> None:
    prefix, marks = str(tmp_path / "runs"), tmp_path / "marks"
    assert run(prefix, graph(marks))[0] == 0
    before_the_change.undo()
    steps = graph(marks)
    migrate(Records(open_store(prefix)), steps, previous)
    longer = steps[3].then("longer", until_step=20)
    third = join("third", JoinConfig(texts=(steps[1], steps[0]), marks=str(marks)))
    assert run(prefix, [*steps, longer, third])[0] == 0
    assert Count.model_validate(Records(open_store(prefix)).get(longer.key).result) == Count(step=20, value=40)
    assert output(prefix, third, "text.txt") == "aaaaaaaaa"
    assert {name: executions(marks)[name] for name in ("a", "both", "count0", "count14", "count19")} == {
        "a": 1, "both": 1, "count0": 1, "count14": 1, "count19": 1,
    }  # fmt: skip


def test_a_migration_that_was_killed_is_completed_by_the_next_and_a_third_does_nothing(
    tmp_path: Path, before_the_change: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks, old = tmp_path / "marks", tmp_path / "old"
    assert run(str(old), graph(marks))[0] == 0
    before_the_change.undo()
    steps = graph(marks)
    for num_writes in itertools.count():
        prefix = tmp_path / f"killed{num_writes}"
        shutil.copytree(old, prefix)
        has_died = False
        try:
            migrate(Records(DyingStore(str(prefix), num_writes)), steps, previous)  # type: ignore[arg-type]
        except KeyboardInterrupt:
            has_died = True
        records = Records(open_store(str(prefix)))
        with monkeypatch.context() as patch:
            patch.setattr(lease, "_is_gone", lambda holder: True)  # as the process is that was killed
            second = migrate(records, steps, previous)
        assert {step.key for step in steps} <= records.committed_keys()
        assert migrate(records, steps, previous).keys == ()
        if not has_died:
            assert second.keys == ()
            assert num_writes > 3 * len(steps)
            return


class DyingStore:
    """A store whose process dies at a write."""

    def __init__(self, prefix: str, num_writes: int) -> None:
        self._store: Store = open_store(prefix)
        self._left = num_writes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def create(self, path: str, data: bytes) -> bool:
        if self._left == 0:
            raise KeyboardInterrupt
        self._left -= 1
        return self._store.create(path, data)


def test_code_that_drifted_under_its_version_is_not_carried_over_unnoticed(
    tmp_path: Path, before_the_change: pytest.MonkeyPatch
) -> None:
    prefix, marks = str(tmp_path / "runs"), tmp_path / "marks"
    versioned: dict[str, Any] = {"policy": "versioned", "version": "1"}
    old_steps = graph(marks, **versioned)
    assert run(prefix, old_steps)[0] == 0
    before_the_change.undo()
    steps = graph(marks, **versioned)

    def after_an_edit(step: Step[Any]) -> Identity:
        document = previous(step).document
        other = {**document, "code": {**document["code"], "fingerprint": "0" * 64}}
        return Identity(digest_of_document(other), other)

    found = migrate(Records(open_store(prefix)), [steps[1]], after_an_edit)
    assert found.keys == ()
    (reason,) = found.refused
    assert reason.startswith(f"both ({old_steps[1].digest[:8]}): its code changed since under one declared version")


def test_an_encoder_of_no_earlier_scheme_is_refused(tmp_path: Path) -> None:
    step = write("a", WriteConfig(text="aaa"))
    records = Records(open_store(str(tmp_path)))
    with expect_error(ValueError):
        migrate(records, [step], lambda step: step.computed_identity)
    with expect_error(ValueError):
        migrate(records, [step], lambda step: previous(step)._replace(digest="1"))


def test_names_pins_acceptances_and_finished_shards_go_along(
    tmp_path: Path, before_the_change: pytest.MonkeyPatch
) -> None:
    prefix, marks = str(tmp_path / "runs"), tmp_path / "marks"
    store = open_store(prefix)
    records = Records(store)
    versioned: dict[str, Any] = {"policy": "versioned", "version": "1"}

    def begun() -> Step[Any]:
        return shouted("begun", NamesConfig(names=("ape", "zebra"), refuses="zebra", marks=str(marks)))

    old_steps = graph(marks, **versioned)
    assert run(prefix, old_steps)[0] == 0
    assert run(prefix, [begun()])[0] == 1
    records.label("another-name", old_steps[1].key)
    Pins(store).pin(old_steps[0].key, "a", "cited")
    difference = CodeChanged(("f",), (), (), "0" * 64, old_steps[1].identity["code"]["fingerprint"])
    Acceptances(store).accept(old_steps[1].digest, "both", difference, "the same")
    before_the_change.undo()
    steps = graph(marks, **versioned)
    for _ in range(2):
        found = migrate(records, [*steps, begun()], previous)
        assert found.refused == ()
    assert steps[1].key in records.labels()["another-name"]
    assert {pin.key: pin.because for pin in Pins(store).all()} == {old_steps[0].key: "cited", steps[0].key: "cited"}
    (accepted,) = Acceptances(store).in_force(steps[1].digest)
    assert (accepted.old_code, accepted.because) == ("0" * 64, "the same")
    (marks / "repaired").touch()
    assert run(prefix, [begun()])[0] == 0
    assert executions(marks)["ape"] == 1, "its shard was finished under the digest of then"


def test_collecting_the_records_of_the_scheme_before_leaves_the_outputs_that_both_share(
    tmp_path: Path, before_the_change: pytest.MonkeyPatch
) -> None:
    prefix, marks = str(tmp_path / "runs"), tmp_path / "marks"
    assert run(prefix, graph(marks))[0] == 0
    before_the_change.undo()
    steps, store = graph(marks), open_store(prefix)
    names = frozenset(step.name for step in steps)
    late = Collector(store, Roots(frozenset(), names), older_than_seconds=0)
    found_before = [garbage for garbage in late.find() if garbage.kind == "output"]
    migrate(Records(store), steps, previous)
    assert set(late.delete(found_before)) == {"a step that has just begun reads it, or it was pinned or migrated"}

    collector = Collector(store, Roots(frozenset(step.key for step in steps), names), older_than_seconds=0)
    found = collector.find()
    assert {garbage.digest for garbage in found if garbage.kind == "output"} == {item.digest for item in found_before}
    assert set(collector.delete(found)) == {""}
    records = Records(store)
    assert records.committed_keys() >= {step.key for step in steps}
    for key in records.committed_keys():
        assert findings_of(store, records.get(key), map(records.get, records.committed_keys())) == []
    everything = Collector(store, Roots(frozenset(), names), older_than_seconds=0)
    for _ in range(2):  # a log that belongs to several records goes when the last of them is gone
        assert set(everything.delete(everything.find())) == {""}
    assert [entry.path for entry in store.list("outputs")] == []
