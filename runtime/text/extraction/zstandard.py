"""Zstandard streams, with a limit for the window: the memory that a file requires of its reader."""

import io
import sys
from typing import Any

from runtime.text.extraction.extracted import DamagedFileError
from runtime.text.extraction.limits import Limits

_LARGE_WINDOW = "too much memory"
"""Part of Zstandard's error for a frame with a window above the limit."""


def codec() -> Any:
    """Return the Zstandard module, Python's own from 3.14 on; Arrow's codec refuses windows above 128 MiB."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


class ZstdStream(io.RawIOBase):
    """The unpacked bytes of a file, of one frame or several; raises OSError where the file is damaged.

    Raises:
        DamagedFileError: the file asks for a window above `limits.max_window_bytes`; `name` is the file in the message.
    """

    def __init__(self, file: Any, name: str, limits: Limits) -> None:
        self._name, self._limit, self._codec = name, limits.max_window_bytes, codec()
        longest = {self._codec.DecompressionParameter.window_log_max: limits.max_window_bytes.bit_length() - 1}
        self._file = self._codec.ZstdFile(file, options=longest)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._file.read1(len(buffer))
        except self._codec.ZstdError as error:
            if _LARGE_WINDOW not in str(error):
                raise OSError(str(error)) from error
            raise DamagedFileError(
                f"{self._name}: is packed with a window above {self._limit:,} bytes, `limits.max_window_bytes`. Raise "
                "the limit, or pack the file again: zstd -d --long=31 -c FILE | zstd -o NEW_FILE"
            ) from error
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()
