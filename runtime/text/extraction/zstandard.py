"""Zstandard streams, whose window is the memory that a file asks of its reader."""

import io
import sys
from typing import Any

from runtime.text.extraction.extracted import DamagedFileError
from runtime.text.extraction.limits import Limits

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ZstdError = zstd.ZstdError
_LARGE_WINDOW = "too much memory"
"""Zstandard's words for a frame with a window above the limit."""


class ZstdStream(io.RawIOBase):
    """The unpacked bytes of a file, of one frame or several.

    Raises:
        DamagedFileError: the file asks for a window above `limits.max_window_bytes`; `name` is the file in the message.
    """

    def __init__(self, file: Any, name: str, limits: Limits) -> None:
        self._name, self._limit = name, limits.max_window_bytes
        longest = {zstd.DecompressionParameter.window_log_max: limits.max_window_bytes.bit_length() - 1}
        self._file = zstd.ZstdFile(file, options=longest)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._file.read1(len(buffer))
        except ZstdError as error:
            if _LARGE_WINDOW not in str(error):
                raise
            raise DamagedFileError(
                f"{self._name}: was packed with a window above {self._limit:,} bytes, `limits.max_window_bytes`. Raise "
                "the limit, or pack the file again: zstd -d --long=31 -c FILE | zstd -o NEW_FILE"
            ) from error
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()
