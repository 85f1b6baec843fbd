"""Prefix: where all outputs are, and the store that it names."""

import importlib.util
import os
import re
from pathlib import Path

from marin_dag.store.local import LocalStore
from marin_dag.store.store import Store, StoreError

TORN_URL = re.compile(r"(?P<scheme>gs|s3|file):/?(?P<rest>[^/].*)")
"""Else a folder of that name would be made, and hold what was meant for the cloud."""


def open_store(prefix: str) -> Store:
    """The store at `prefix`: a folder, `gs://bucket/folder` or `s3://bucket/folder`. Touches nothing: a dry run must
    not write a byte."""
    scheme, separator, rest = prefix.partition("://")
    if not prefix:
        raise StoreError("--prefix is empty; name a folder, gs://bucket/folder or s3://bucket/folder.")
    if torn := TORN_URL.fullmatch(prefix):
        meant = f"{torn['scheme']}://{'/' if torn['scheme'] == 'file' else ''}{torn['rest']}"
        raise StoreError(f"--prefix: two slashes belong behind the colon: {meant}.")
    if scheme == "file" and rest:
        prefix, separator = rest, ""
    if separator and "@" in rest.partition("/")[0]:
        raise StoreError(
            f"--prefix {scheme}://***@{rest.partition('@')[2]}: credentials in a prefix end in every log; give them "
            "the way the cloud's own tools take them."
        )
    if not separator:
        # Not only absolute: array libraries refuse a path with `..` in it.
        return LocalStore(os.path.normpath(Path(prefix).expanduser().absolute()))
    if scheme == "gs" and rest.strip("/"):
        from marin_dag.store.gcs import GcsStore  # gcsfs takes a second to import; a local plan never needs it

        return GcsStore(prefix)
    if scheme == "s3" and rest.strip("/"):
        if importlib.util.find_spec("s3fs") is None:
            raise StoreError(f"{prefix}: s3:// needs the package s3fs; install it: pip install s3fs")
        from marin_dag.store.s3 import S3Store

        return S3Store(prefix)
    raise StoreError(
        f"--prefix {prefix}: no such kind of store; use a folder, gs://bucket/folder or s3://bucket/folder."
    )
