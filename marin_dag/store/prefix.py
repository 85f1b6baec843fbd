"""Prefix: the place of all outputs, and the store at it."""

import importlib.util
import os
import re
from pathlib import Path

from marin_dag.store.local import LocalStore
from marin_dag.store.store import Store, StoreError

TORN_URL = re.compile(r"(?P<scheme>gs|s3|file):/?(?P<rest>[^/].*)")
"""A URL with too few slashes would otherwise be taken for the name of a folder."""


def open_store(prefix: str) -> Store:
    """Return the store at `prefix`: a folder, `gs://bucket/folder` or `s3://bucket/folder`. Write nothing."""
    scheme, separator, rest = prefix.partition("://")
    if not prefix:
        raise StoreError("--prefix is empty. Name a folder, gs://bucket/folder or s3://bucket/folder.")
    if torn := TORN_URL.fullmatch(prefix):
        meant = f"{torn['scheme']}://{'/' if torn['scheme'] == 'file' else ''}{torn['rest']}"
        raise StoreError(f"--prefix {prefix}: two slashes are missing. Write {meant}.")
    if scheme == "file" and rest:
        prefix, separator = rest, ""
    if separator and "@" in rest.partition("/")[0]:
        raise StoreError(
            f"--prefix {scheme}://***@{rest.partition('@')[2]}: credentials in a prefix appear in every log. Pass "
            "them in the way of the cloud's own tools."
        )
    if not separator:
        # Normalized, too: array libraries refuse a path with `..` in it.
        return LocalStore(os.path.normpath(Path(prefix).expanduser().absolute()))
    if scheme == "gs" and rest.strip("/"):
        from marin_dag.store.gcs import GcsStore  # slow to import, and not needed for a local prefix

        return GcsStore(prefix)
    if scheme == "s3" and rest.strip("/"):
        if importlib.util.find_spec("s3fs") is None:
            raise StoreError(f"{prefix}: s3:// needs the package s3fs. Install it: pip install s3fs")
        from marin_dag.store.s3 import S3Store

        return S3Store(prefix)
    raise StoreError(f"--prefix {prefix}: not a kind of store. Use a folder, gs://bucket/folder or s3://bucket/folder.")
