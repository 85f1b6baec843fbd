"""A folder has one spec for TensorStore on each kind of store, and other kinds are refused."""

import subprocess
import sys

import pytest

from runtime.data.flat_array import key_value_store
from tests.catalogue import expect_error


@pytest.mark.parametrize("folder", ["/a/b", "file:///a/b", "/a/b/"])
def test_a_folder_of_this_machine_is_a_file_driver(folder):
    assert key_value_store(folder) == {"driver": "file", "path": "/a/b/"}


@pytest.mark.parametrize(("scheme", "driver"), [("gs", "gcs"), ("s3", "s3")])
def test_a_folder_in_a_bucket_is_its_driver(scheme, driver, monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    assert key_value_store(f"{scheme}://bucket/a/b") == {"driver": driver, "bucket": "bucket", "path": "a/b/"}
    assert key_value_store(f"{scheme}://bucket") == {"driver": driver, "bucket": "bucket", "path": ""}


def test_the_environment_of_aws_names_endpoint_and_region_of_s3(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    found = key_value_store("s3://bucket/a")
    assert (found["endpoint"], found["aws_region"]) == ("http://localhost:1", "us-east-1")


def test_another_kind_of_url_is_refused():
    with expect_error(ValueError):
        key_value_store("http://a/b")


READ_FROM_STAND_IN = """
import sys, tensorstore
from runtime.data.flat_array import key_value_store
print(tensorstore.KvStore.open(key_value_store(sys.argv[1])).result().read("none").result().state)
"""


def test_tensorstore_asks_a_stand_in_for_cloud_storage_without_credentials(gcs_bucket):
    command = [sys.executable, "-c", READ_FROM_STAND_IN, f"gs://{gcs_bucket}/folder"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "missing\n" and "credentials" not in done.stderr
