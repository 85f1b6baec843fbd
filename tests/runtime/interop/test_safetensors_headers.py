"""Headers of safetensors files that no library writes cost neither memory nor a traceback."""

import json
import tracemalloc

import pytest

from runtime.interop.huggingface_config import read_json
from runtime.interop.huggingface_weights import MOST_HEADER_BYTES, _tensors_of, _weight_files
from runtime.model.huggingface import InteropError
from runtime.text.extraction.limits import MODEL_FILE_BYTES
from tests.catalogue import expect_error


def write(path, header_bytes, header, size):
    with path.open("wb") as file:
        file.write(header_bytes.to_bytes(8, "little") + header)
        file.truncate(size)
    return str(path)


@pytest.mark.parametrize("header_bytes", [MOST_HEADER_BYTES + 1, 2 << 30])
def test_a_header_of_gigabytes_is_never_read(tmp_path, header_bytes):
    path = write(tmp_path / "model.safetensors", header_bytes, b"{", 3 << 30)
    tracemalloc.start()
    with expect_error(InteropError):
        _tensors_of(path)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_a_header_nested_too_deeply_is_an_error_of_the_file(tmp_path):
    header = b"[" * 100_000
    with expect_error(InteropError):
        _tensors_of(write(tmp_path / "model.safetensors", len(header), header, 8 + len(header)))


@pytest.mark.parametrize(
    ("second", "size"),
    [((0, 8), 8), ((4, 12), 12), ((16, 24), 24), ((-8, 0), 8), ((8, 16), 20)],
    ids=["the same bytes", "overlapping", "a hole before", "before the beginning", "a rest"],
)
def test_tensors_have_all_bytes_of_the_file_and_each_byte_once(tmp_path, second, size):
    entries = {"a": (0, 8), "b": second}
    header = json.dumps(
        {name: {"dtype": "F32", "shape": [2], "data_offsets": offsets} for name, offsets in entries.items()}
    ).encode()
    with expect_error(InteropError):
        _tensors_of(write(tmp_path / "model.safetensors", len(header), header, 8 + len(header) + size))


@pytest.mark.parametrize("weight_map", [None, [], {"a": 1}, {"a": None}])
def test_an_index_without_a_map_to_files_is_an_error_of_the_index(tmp_path, weight_map):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({} if weight_map is None else {"weight_map": weight_map}))
    with expect_error(InteropError):
        _weight_files({index.name: str(index)})


def test_a_configuration_of_gigabytes_or_nested_too_deeply_is_an_error_of_the_file(tmp_path):
    (tmp_path / "deep.json").write_bytes(b"[" * 100_000)
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(MODEL_FILE_BYTES + 1)
    for name in ("deep.json", "large.json"):
        with expect_error(InteropError):
            read_json(str(tmp_path / name))
