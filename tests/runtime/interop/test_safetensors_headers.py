"""Headers of safetensors files that no library writes cost neither memory nor a traceback."""

import tracemalloc

import pytest

from runtime.interop.huggingface_config import read_json
from runtime.interop.huggingface_weights import MOST_HEADER_BYTES, _tensors_of
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


def test_a_configuration_of_gigabytes_or_nested_too_deeply_is_an_error_of_the_file(tmp_path):
    (tmp_path / "deep.json").write_bytes(b"[" * 100_000)
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(MODEL_FILE_BYTES + 1)
    for name in ("deep.json", "large.json"):
        with expect_error(InteropError):
            read_json(str(tmp_path / name))
