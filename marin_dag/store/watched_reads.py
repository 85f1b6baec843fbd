"""Watched reads: fsspec's classes for a cloud, which call a function before they read an object.

The classes are registered with fsspec in place of its own, so this holds for every library that reads by fsspec.
"""

import functools
from collections.abc import Callable
from typing import Any

import fsspec

from marin_dag.store.retry import TRANSIENT_CODES

ALIASES = {"gs": ("gs", "gcs"), "s3": ("s3", "s3a")}


@functools.cache
def watch_reads(scheme: str, before_read: Callable[[str], None]) -> None:
    """Call `before_read` with the URL of each object of `scheme` that this process reads by fsspec from now on."""
    own: Any = fsspec.get_filesystem_class(scheme)

    def call(system: Any, path: str) -> None:
        before_read(f"{scheme}://{system._strip_protocol(path)}")

    class WatchedFileSystem(own):
        """The class of the cloud; its name stays that of its scheme."""

        def open(self, path: str, mode: str = "rb", *arguments: Any, **named: Any) -> Any:
            if "r" in mode:
                call(self, path)
            return super().open(path, mode, *arguments, **named)

        def cat_file(self, path: str, *arguments: Any, **named: Any) -> Any:
            call(self, path)
            return super().cat_file(path, *arguments, **named)

        def get_file(self, path: str, *arguments: Any, **named: Any) -> Any:
            call(self, path)
            return super().get_file(path, *arguments, **named)

    if scheme == "gs":
        _judge_by_status()
    for name in ALIASES.get(scheme, (scheme,)):
        fsspec.register_implementation(name, WatchedFileSystem, clobber=True)


def _judge_by_status() -> None:
    """Let gcsfs repeat each request with a transient status; by itself it takes one whose text is odd for permanent."""
    import gcsfs.core
    from gcsfs.retry import HttpError

    own = gcsfs.core.validate_response

    def validate(status: int, content: bytes, *arguments: Any) -> None:
        if status in TRANSIENT_CODES:
            raise HttpError({"code": status, "message": content.decode(errors="replace")})
        own(status, content, *arguments)

    gcsfs.core.validate_response = validate
