"""A checkpoint is complete or invisible, and what comes back is what went in, on any mesh."""

import concurrent.futures
import errno
import functools
import itertools
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from marin_dag.store.retry import is_transient
from runtime.data.flat_array import key_value_store
from runtime.training import checkpoint, checkpoint_files, checkpoint_reader
from runtime.training.checkpoint_reader import CheckpointError, TornCheckpointError
from runtime.training.temporary import Segments, TemporaryCheckpoints
from tests.catalogue import expect_error
from tests.gcs_server.faults import Fault


class SmallState(eqx.Module):
    params: dict[str, jax.Array]
    mu: dict[str, jax.Array]
    averages: dict[str, dict[str, jax.Array]]
    count: jax.Array
    key: jax.Array


def state_on(devices: int, *, model: int = 1, averages: tuple[str, ...] = ("averaged",), seed: int = 0) -> SmallState:
    mesh = Mesh(np.array(jax.devices()[:devices]).reshape(-1, model), ("data", "model"))
    split, whole = NamedSharding(mesh, PartitionSpec("data", "model")), NamedSharding(mesh, PartitionSpec())
    rng = np.random.default_rng(seed)

    def weights(scale: float) -> dict[str, jax.Array]:
        return {
            "embed": jax.device_put(rng.normal(size=(16, 6)).astype(np.float32) * np.float32(scale), split),
            "norm": jax.device_put(np.ones(6, np.float32), whole),
        }

    return SmallState(
        params=weights(1.0),
        mu={name: jnp.zeros_like(value) for name, value in weights(0.0).items()},
        averages={name: weights(2.0 + index) for index, name in enumerate(averages)},
        count=jax.device_put(np.int32(7), whole),
        key=jax.device_put(jax.random.key_data(jax.random.key(3)), whole),
    )


def assert_equal_states(a: object, b: object) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert one.dtype == other.dtype
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def saved(folder: Path, state: object, **metadata: object) -> str:
    path = str(folder / "checkpoint")
    checkpoint.save(path, state, {"step": 5, **metadata}).wait()
    return path


def test_a_checkpoint_restores_the_saved_state(tmp_path):
    state = state_on(1)
    path = saved(tmp_path, state, data_position={"consumed": {"web": 2**40}})
    restored, metadata = checkpoint.load(path, state_on(1, seed=1))
    assert_equal_states(restored, state)
    assert metadata == {"step": 5, "data_position": {"consumed": {"web": 2**40}}}


MESHES = [(1, 1), (2, 2), (8, 1), (6, 3)]
"""Devices in all, and those of them that split the other dimension."""


@pytest.mark.parametrize("written_on", MESHES)
@pytest.mark.parametrize("read_on", MESHES)
def test_a_checkpoint_restores_on_any_mesh(tmp_path, written_on, read_on):
    path = saved(tmp_path, state_on(written_on[0], model=written_on[1]))
    like = state_on(read_on[0], model=read_on[1], seed=1)
    restored, _ = checkpoint.load(path, like)
    assert_equal_states(restored, state_on(1))
    assert restored.params["embed"].sharding == like.params["embed"].sharding


def test_a_checkpoint_restores_into_shapes_without_arrays(tmp_path):
    path = saved(tmp_path, state_on(2))
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state_on(4))
    restored, _ = checkpoint.load(path, like)
    assert_equal_states(restored, state_on(1))


def test_the_manifest_has_the_lease_epoch_of_its_attempt(tmp_path):
    for lease_epoch in (3, None):
        path = str(tmp_path / str(lease_epoch) / "checkpoint")
        checkpoint.save(path, {"norm": state_on(1).params["norm"]}, {}, lease_epoch=lease_epoch).wait()
        assert checkpoint.Reader(path).manifest.lease_epoch == lease_epoch


def test_one_of_several_copies_is_written_and_each_file_once(tmp_path, monkeypatch):
    state, written = state_on(4, model=2), []
    write = checkpoint.ChunkedArray.write_chunk

    def noted(array, start, data):
        written.append(array.chunk_key(start))
        return write(array, start, data)

    monkeypatch.setattr(checkpoint.ChunkedArray, "write_chunk", noted)
    saving = checkpoint.save(str(tmp_path / "checkpoint"), {"params": state.params, "count": state.count}, {})
    saving.wait()
    assert sorted(written) == sorted(set(written)) and len(written) == 4 + 1 + 1  # a quarter each, and two held by all
    assert saving.size_in_bytes == 4 * (16 * 6 + 6 + 1)


def test_equal_states_give_equal_bytes(tmp_path):
    saved(tmp_path / "a", state_on(2))
    saved(tmp_path / "b", state_on(2))
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


def test_the_state_may_be_donated_as_soon_as_save_returns(tmp_path):
    state = state_on(1)
    expected = {name: np.array(value) for name, value in state.params.items()}
    update = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    saving = checkpoint.save(str(tmp_path / "checkpoint"), {"params": state.params}, {})
    jax.block_until_ready(update(state.params))
    saving.wait()
    restored, _ = checkpoint.load(str(tmp_path / "checkpoint"), {"params": state_on(1).params})
    for name, value in restored["params"].items():
        assert np.asarray(value).tobytes() == expected[name].tobytes()


def test_a_checkpoint_of_an_unaveraged_state_has_no_average(tmp_path):
    path = saved(tmp_path, state_on(1, averages=()))
    assert_equal_states(checkpoint.load(path, state_on(1, averages=()))[0], state_on(1, averages=()))
    with expect_error(CheckpointError):
        checkpoint.load(path, state_on(1))
    with expect_error(CheckpointError):
        checkpoint.load_params(path, state_on(1).params, "averaged")


def test_each_average_is_restored_by_its_name(tmp_path):
    state = state_on(1, averages=("averaged", "slow"))
    path = saved(tmp_path, state)
    for name, weights in state.averages.items():
        assert_equal_states(checkpoint.load_params(path, state.params, name), weights)
    with expect_error(CheckpointError):
        checkpoint.load_params(path, state.params, "fast")


def test_weights_and_ema_weights_are_restored_alone(tmp_path):
    path = saved(tmp_path, state_on(2))
    assert_equal_states(checkpoint.load_params(path, state_on(1).params, "hot"), state_on(1).params)
    assert_equal_states(checkpoint.load_params(path, state_on(1).params, "averaged"), state_on(1).averages["averaged"])


def test_a_surplus_leaf_is_an_error_unless_partial(tmp_path):
    path = saved(tmp_path, state_on(1))
    with expect_error(CheckpointError):
        checkpoint.load(path, state_on(1, averages=()))
    restored, _ = checkpoint.load(path, state_on(1, averages=()), partial=True)
    assert_equal_states(restored, state_on(1, averages=()))


def test_another_shape_or_dtype_is_refused_by_leaf(tmp_path):
    path = saved(tmp_path, state_on(1))
    state = state_on(1)
    wider = eqx.tree_at(lambda s: s.params["embed"], state, jnp.zeros((16, 8)))
    with expect_error(CheckpointError):
        checkpoint.load(path, wider)
    longer = eqx.tree_at(lambda s: s.count, state, jnp.uint32(0))
    with expect_error(CheckpointError):
        checkpoint.load(path, longer)


def test_a_folder_without_manifest_is_no_checkpoint(tmp_path):
    path = saved(tmp_path, state_on(1))
    assert checkpoint.is_complete(path)
    (Path(path) / "manifest.json").unlink()
    assert not checkpoint.is_complete(path)
    with expect_error(CheckpointError):
        checkpoint.load(path, state_on(1))


def test_another_format_is_no_damage(tmp_path):
    path = saved(tmp_path, state_on(1))
    manifest = Path(path) / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 1}, indent=1))
    with expect_error(CheckpointError):
        checkpoint.load(path, state_on(1))


@pytest.mark.parametrize("damage", ["delete", "truncate", "lengthen", "empty", "flip", "swap"])
def test_any_damaged_file_is_refused_and_named(tmp_path, damage):
    state = state_on(2)
    path = saved(tmp_path, state)
    pristine = files_of(Path(path))
    for key, content in pristine.items():
        file = Path(path) / key
        match damage:
            case "delete":
                file.unlink()
            case "truncate":
                file.write_bytes(content[:-1])
            case "lengthen":
                file.write_bytes(content + b"0")
            case "empty":
                file.write_bytes(b"")
            case "flip":
                middle = len(content) // 2
                file.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
            case "swap":
                other = next(value for value in pristine.values() if value != content)
                file.write_bytes(other)
        with pytest.raises(CheckpointError) as caught:
            checkpoint.load(path, state)
        leaf = key.removeprefix("arrays/").rpartition("/")[0] if key.startswith("arrays/") else key
        assert leaf in str(caught.value) or key == "manifest.json"
        file.write_bytes(content)
    assert_equal_states(checkpoint.load(path, state)[0], state)


def test_a_torn_checkpoint_names_the_damage_and_is_not_deleted(tmp_path):
    path = saved(tmp_path, state_on(1))
    (Path(path) / "arrays/mu.embed/c.0.0").unlink()  # zeros: without a manifest zarr would make them up
    with expect_error(TornCheckpointError):
        checkpoint.load(path, state_on(1))


def test_a_failed_write_leaves_nothing_visible(tmp_path, monkeypatch):
    def no_space(self: object, key: str, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.CheckpointFiles, "start_write", no_space)
    with expect_error(CheckpointError):
        checkpoint.save(str(tmp_path / "checkpoint"), state_on(1), {}).wait()
    assert not checkpoint.is_complete(str(tmp_path / "checkpoint"))


def test_wait_raises_the_error_of_the_writing_thread(tmp_path, monkeypatch):
    def denied() -> None:
        raise PermissionError(errno.EPERM, "no thread may step back here")

    monkeypatch.setattr(checkpoint, "lower_priority", denied)
    save = checkpoint.save(f"{tmp_path}/checkpoint", state_on(1), {"step": 7})
    with expect_error(PermissionError):
        save.wait()
    assert not checkpoint.is_complete(f"{tmp_path}/checkpoint")


def test_metadata_that_is_not_finite_json_is_refused_before_anything_is_written(tmp_path):
    with expect_error(TypeError):
        checkpoint.save(str(tmp_path / "checkpoint"), state_on(1), {"loss": float("nan")})
    assert not (tmp_path / "checkpoint").exists()


def test_a_file_beside_the_checkpoint_is_covered_by_its_manifest(tmp_path):
    path = str(tmp_path / "checkpoint")
    checkpoint.save(path, state_on(1), {}, beside={"metrics.parquet": lambda: b"rows"}).wait()
    assert (tmp_path / "metrics.parquet").read_bytes() == b"rows"
    assert checkpoint.read_beside(path, "metrics.parquet") == [b"rows"]
    (tmp_path / "metrics.parquet").write_bytes(b"rowz")
    with expect_error(CheckpointError):
        checkpoint.read_beside(path, "metrics.parquet")


class HeldLeaf:
    """A leaf in pieces, of an array that is there whole."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.chunk_shape = array, array.shape, None

    def pieces(self, chunk_shape: tuple[int, ...]) -> Iterator[np.ndarray]:
        starts = (range(0, size, step) for size, step in zip(self.shape, chunk_shape, strict=True))
        for start in itertools.product(*starts):
            yield self.array[tuple(slice(at, at + size) for at, size in zip(start, chunk_shape, strict=True))].copy()


@pytest.mark.parametrize("limit", [100, 2**20])
def test_a_checkpoint_in_pieces_has_the_bytes_of_a_whole_one(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(checkpoint_reader, "MAX_CHUNK_IN_BYTES", limit)
    arrays = {"a": np.arange(120, dtype=np.float32).reshape(3, 4, 10), "b": np.ones(7, np.float32)}
    whole = {"params": {name: jnp.asarray(array) for name, array in arrays.items()}}
    checkpoint.save(f"{tmp_path}/whole/c", whole, {"step": 0}, beside={"table": lambda: b"rows"}).wait()
    leaves = {f"params.{name}": HeldLeaf(array) for name, array in arrays.items()}
    reported: list[tuple[int, int]] = []
    checkpoint.save_pieces(
        f"{tmp_path}/pieces/c", leaves, {"step": 0}, beside={"table": b"rows"}, on_leaf=lambda *of: reported.append(of)
    )
    assert reported == [(1, 2), (2, 2)]
    files = [
        {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (tmp_path / "whole", tmp_path / "pieces")
    ]
    assert len(files[0]) > (10 if limit == 100 else 5)
    assert files[0] == files[1]


def test_a_leaf_that_ends_early_leaves_nothing_visible(tmp_path):
    short = HeldLeaf(np.ones(7, np.float32))
    short.pieces = lambda chunk_shape: iter(())  # type: ignore[method-assign]
    with expect_error(ValueError):
        checkpoint.save_pieces(f"{tmp_path}/c", {"params.a": short}, {"step": 0}, beside={})
    assert not checkpoint.is_complete(f"{tmp_path}/c")


def test_a_replaced_checkpoint_keeps_nothing_of_the_old_one(tmp_path):
    saved(tmp_path, state_on(4))
    path = saved(tmp_path, state_on(1, averages=()))
    saved(tmp_path / "fresh", state_on(1, averages=()))
    assert files_of(Path(path)) == files_of(tmp_path / "fresh" / "checkpoint")


def test_each_process_writes_only_what_it_holds_and_the_first_one_seals(tmp_path, monkeypatch):
    """Two processes in turn: what each of them would see is simulated by hiding the other's shards."""
    state = {"embed": state_on(2).params["embed"]}
    path = str(tmp_path / "checkpoint")
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(checkpoint, "meet_hosts", lambda name, seconds: None)

    def save_as(process: int) -> None:
        monkeypatch.setattr(jax, "process_index", lambda: process)
        with monkeypatch.context() as patch:
            whole = type(state["embed"]).addressable_shards.fget
            patch.setattr(type(state["embed"]), "addressable_shards", property(lambda array: [whole(array)[process]]))
            saving = checkpoint.save(path, state, {"step": 1})
        saving.wait()

    save_as(1)
    assert sorted(files_of(tmp_path)) == ["checkpoint/arrays/embed/c.1.0", "checkpoint/parts/00001.json"]
    save_as(0)
    assert checkpoint.is_complete(path)
    assert_equal_states(checkpoint.load(path, {"embed": state_on(4).params["embed"]})[0], state)


def test_the_first_process_seals_nothing_before_the_last_has_written_its_part(tmp_path, monkeypatch):
    state, path = {"norm": state_on(1).params["norm"]}, str(tmp_path / "checkpoint")
    meeting = threading.Barrier(2)
    monkeypatch.setattr(checkpoint, "meet_hosts", lambda name, seconds: meeting.wait(60))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: 0)
    first = checkpoint.save(path, state, {"step": 1})
    while not meeting.n_waiting:
        time.sleep(0.01)
    assert not first.done() and not checkpoint.is_complete(path)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    checkpoint.save(path, {}, {"step": 1}).wait()
    first.wait()
    assert checkpoint.is_complete(path)


@settings(max_examples=15)
@given(
    shape=st.lists(st.integers(0, 9), min_size=0, max_size=3).map(tuple),
    dtype=st.sampled_from(["float32", "bfloat16", "int32", "uint32", "bool"]),
    limit=st.sampled_from([8, 64, 2**20]),
)
def test_any_array_survives_whatever_its_chunks(tmp_path_factory, shape, dtype, limit):
    folder = tmp_path_factory.mktemp("any")
    values = np.random.default_rng(0).integers(0, 2, size=shape)
    state = {"leaf": jnp.asarray(values, dtype=dtype)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_reader, "MAX_CHUNK_IN_BYTES", limit)
        path = saved(folder, state)
    for recorded in json.loads((Path(path) / "manifest.json").read_text())["leaves"].values():
        chunk_in_bytes = np.prod(recorded["chunk_shape"]) * state["leaf"].dtype.itemsize
        assert chunk_in_bytes <= limit or max(recorded["chunk_shape"], default=1) == 1
    assert_equal_states(checkpoint.load(path, {"leaf": jnp.zeros(shape, dtype)})[0], state)


def test_an_array_can_be_read_by_any_zarr_reader(tmp_path):
    import tensorstore

    path = saved(tmp_path, state_on(2))
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/arrays/params.embed/"}}
    array = tensorstore.open(spec, open=True).result().read().result()
    assert array.tobytes() == np.asarray(state_on(1).params["embed"]).tobytes()


def test_arrays_that_are_not_described_are_restored_and_checked_all_the_same(tmp_path):
    path = str(tmp_path / "checkpoint")
    checkpoint.save(path, state_on(2), {"step": 5}, described=False).wait()
    assert not [name for name in files_of(tmp_path) if name.endswith("zarr.json")]
    assert_equal_states(checkpoint.load(path, state_on(4))[0], state_on(1))
    chunk = Path(path) / "arrays/mu.embed/c.0.0"
    chunk.write_bytes(bytes(byte ^ 1 for byte in chunk.read_bytes()))
    with expect_error(CheckpointError):
        checkpoint.load(path, state_on(4))


class BlocksOfBytes:
    num_blocks = 2

    def block_to_parquet(self, index: int) -> bytes:
        return f"block {index}".encode()


def test_blocks_are_copied_to_a_disk_that_cannot_link_them(tmp_path, monkeypatch):
    def refuse(path, target):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    files = checkpoint.CheckpointFiles(str(tmp_path / "outputs"))
    Segments(str(tmp_path / "segments")).link({"metrics.parquet": BlocksOfBytes()}, files)
    assert [files.read(f"metrics.parquet/00000{index}.parquet") for index in range(2)] == [b"block 0", b"block 1"]


def test_a_block_that_could_not_be_written_is_written_by_the_next_save(tmp_path, monkeypatch):
    def full_disk(files, key, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    segments, files = Segments(str(tmp_path / "segments")), checkpoint.CheckpointFiles(str(tmp_path / "outputs"))
    tables = {"metrics.parquet": BlocksOfBytes()}
    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(checkpoint.CheckpointFiles, "write", full_disk)
        segments.link(tables, files)
    assert len(segments.link(tables, files)) == 2


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_bucket_holds_the_same_files_as_a_folder(tmp_path, scheme, request):
    bucket = request.getfixturevalue({"gs": "gcs_bucket", "s3": "s3_bucket"}[scheme])
    run = f"{scheme}://{bucket}/run"
    files = checkpoint.CheckpointFiles(run)
    path = f"{run}/step-0000000005-epoch-000001/checkpoint"
    local = str(tmp_path / "step-0000000005-epoch-000001" / "checkpoint")
    for root, to in ((run, path), (str(tmp_path), local)):
        link = Segments(f"{root}/segments").link
        beside = {"metrics.parquet/000002.parquet": lambda: b"rows"}
        tables = {"metrics.parquet": BlocksOfBytes()}
        checkpoint.save(to, state_on(2), {"step": 5}, beside=beside, link=functools.partial(link, tables)).wait()
    blocks = [b"block 0", b"block 1"]
    assert checkpoint.Reader(path).read_parts("metrics.parquet") == [*blocks, b"rows"]
    assert {key: files.read(key) for key in files_of(tmp_path)} == files_of(tmp_path)
    assert_equal_states(checkpoint.load(path, state_on(4))[0], state_on(1))
    files.delete("step-0000000005-epoch-000001/checkpoint/arrays/mu.embed/c.0.0")
    with expect_error(CheckpointError):
        checkpoint.load(path, state_on(4))
    temporary = TemporaryCheckpoints(run, lease_epoch=2)
    temporary.drop_segments()
    assert [(found.step, found.is_complete) for found in temporary.all()] == [(5, True)]
    temporary.prune(5, keep=0)
    assert not any(files.has(key) for key in files_of(tmp_path))


@pytest.fixture
def bucket(gcs_bucket, gcs_server, monkeypatch) -> Iterator[str]:
    """Return a folder on Cloud Storage whose client tries each request at most twice."""
    soon = {"gcs_request_retries": {"max_retries": 2, "initial_delay": "1ms"}}
    monkeypatch.setattr(checkpoint_files, "key_value_store", lambda folder: key_value_store(folder) | soon)
    yield f"gs://{gcs_bucket}/{uuid.uuid4().hex}"
    gcs_server.clear_faults()


UNREAD = {
    "503 storm": (Fault("status", where="mu.embed/c.*media", status=503), "the store did not answer", True),
    "connection": (Fault("reset", where="mu.embed/c.*media"), "the store did not answer", True),
    "manifest": (Fault("status", where="manifest.json", status=503), "the store did not answer", True),
    "403": (Fault("status", where="mu.embed/c.*media", status=403), "store refused, renew the credent", False),
}


@pytest.mark.parametrize("trouble", UNREAD)
def test_a_checkpoint_that_the_store_cannot_read_is_not_reported_as_torn(bucket, gcs_server, trouble):
    """A wrong report of a torn checkpoint makes a user delete it, or force weeks of training."""
    fault, _told, passes = UNREAD[trouble]
    path = f"{bucket}/checkpoint"
    checkpoint.save(path, state_on(2), {"step": 5}).wait()
    gcs_server.add_fault(fault)
    with expect_error(OSError) as caught:
        checkpoint.load(path, state_on(2))
    assert path in str(caught.value)
    assert is_transient(caught.value) == passes
    gcs_server.clear_faults()
    assert_equal_states(checkpoint.load(path, state_on(2))[0], state_on(1))


def test_an_unknown_error_is_not_reported_as_torn_and_missing_bytes_are(bucket, gcs_server, monkeypatch):
    path = f"{bucket}/checkpoint"
    checkpoint.save(path, state_on(2), {"step": 5}).wait()
    gcs_server.add_fault(Fault("short", where="mu.embed/c.*media", count=1))
    with pytest.raises(TornCheckpointError):  # which chunk is cut short depends on which is read first
        checkpoint.load(path, state_on(2))
    failed: concurrent.futures.Future = concurrent.futures.Future()
    failed.set_exception(ValueError("INTERNAL: a thread was lost"))
    monkeypatch.setattr(checkpoint.ChunkedArray, "read_chunk", lambda array, start: failed)
    with expect_error(OSError):
        checkpoint.load(path, state_on(2))


@pytest.mark.parametrize(
    ("status", "what", "passes"),
    [
        (503, "mu.embed", True),
        (503, "metadata.json", True),
        (403, "mu.embed", False),
    ],
)
def test_a_save_that_a_bucket_did_not_take_is_tried_again_if_that_may_pass(bucket, gcs_server, status, what, passes):
    gcs_server.add_fault(Fault("status", where=f"^POST .*{what}", status=status))
    with expect_error(CheckpointError) as caught:
        checkpoint.save(f"{bucket}/checkpoint", state_on(2), {"step": 5}).wait()
    assert is_transient(caught.value) == passes
    assert not checkpoint.is_complete(f"{bucket}/checkpoint")


class Late(concurrent.futures.Future):
    """Return the path of a chunk that is written last of all, or not at all."""

    def __init__(self, wait: Callable[[], None]) -> None:
        super().__init__()
        self._wait = wait

    def result(self, timeout: float | None = None) -> None:
        self._wait()


@pytest.mark.parametrize("kind", ["chunk", "table"])
def test_a_checkpoint_is_invisible_as_long_as_a_file_of_it_may_not_be_durable(tmp_path, monkeypatch, kind):
    path, seen = str(tmp_path / "checkpoint"), []
    owner, name = {
        "chunk": (checkpoint.ChunkedArray, "write_chunk"),
        "table": (checkpoint.CheckpointFiles, "start_write"),
    }[kind]
    start, fails = getattr(owner, name), False

    def look() -> None:
        seen.append(checkpoint.is_complete(path))
        if fails:
            raise OSError(errno.EIO, "the disk is gone")

    def held(owner: object, what: object, *data: object) -> concurrent.futures.Future:
        started = start(owner, what, *data)
        return started if str(what).endswith("manifest.json") else Late(look)

    monkeypatch.setattr(owner, name, held)
    checkpoint.save(path, state_on(2), {"step": 5}).wait()
    assert seen and not any(seen)
    assert checkpoint.is_complete(path)

    fails = True
    with expect_error(CheckpointError):
        checkpoint.save(path, state_on(2), {"step": 5}).wait()
    assert not checkpoint.is_complete(path)


def test_the_folders_of_the_leaves_are_flushed_to_the_disk_before_the_checkpoint_is_complete(tmp_path, monkeypatch):
    """A power cut forgets a folder whose own folder was not flushed, with all that is in it."""
    fsync, flushed = os.fsync, []

    def noting(file: int) -> None:
        fsync(file)
        of = Path(os.readlink(f"/proc/self/fd/{file}"))  # noqa: PTH115 -- of a descriptor
        flushed.append((of, {path.name for path in of.iterdir()} if of.is_dir() else set(), is_complete()))

    def is_complete() -> bool:
        return (tmp_path / "step-7/manifest.json").exists()

    monkeypatch.setattr(os, "fsync", noting)
    checkpoint.save(str(tmp_path / "step-7"), state_on(1), {"step": 7}).wait()
    leaves = {path.name for path in (tmp_path / "step-7/arrays").iterdir()}
    assert (tmp_path / "step-7/arrays", leaves, False) in flushed and is_complete()
