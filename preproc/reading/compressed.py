"""Reading of a file as a stream of bytes, plain or compressed with gzip or zstd."""

import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

import zstandard

from dataloading.features import DatasetError
from preproc.reading.stores import Source

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
# Compressed data can expand a thousandfold (gzip's limit); reads of 64 KiB expand to about a block's size at worst.
_COMPRESSED_READ_BYTES = 64 << 10
_PLAIN_READ_BYTES = 1 << 20


def read_chunks(path: Source, chunk_bytes: int = _PLAIN_READ_BYTES, on_read: Callable[[int], object] = lambda count: None) -> Iterator[bytes]:
    """Yield the file's decompressed content in non-empty chunks.

    The compression is detected by the first bytes, not by the name: days of a log are often renamed after they were unpacked.

    Args:
        path: the file, local or in an object store.
        chunk_bytes: the most bytes that are read from the disk at once.
        on_read: called with the number of bytes read from the disk, for a progress bar.

    Raises:
        DatasetError: the compressed stream is damaged or ends early.
    """
    with path.open("rb") as file:
        magic = file.read(4)  # not read again by seeking back, which a store's stream may not support
        if magic.startswith(_GZIP):
            kind, errors = "gzip", zlib.error
            new_decoder = lambda: zlib.decompressobj(wbits=31)  # noqa: E731  31: gzip header, largest window
        elif magic == _ZSTD:
            kind, errors = "zstd", zstandard.ZstdError
            new_decoder = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj  # the window of `zstd --long=31`
        else:
            yield from _counted(file, magic, min(chunk_bytes, _PLAIN_READ_BYTES), on_read)
            return
        # gzip.open and zstandard's stream reader are not used: the latter accepts a truncated file as complete. Both
        # formats allow several concatenated streams, which `eof` and `unused_data` reveal.
        decoder = None
        for chunk in _counted(file, magic, min(chunk_bytes, _COMPRESSED_READ_BYTES), on_read):
            while chunk:
                if decoder is None:
                    chunk = chunk.lstrip(b"\0")  # zero padding between and after streams, which gzip allows
                    if not chunk:
                        break
                    decoder = new_decoder()
                try:
                    content = decoder.decompress(chunk)
                except errors as error:
                    raise DatasetError(f"{path}: damaged {kind} file: {error}; fetch or compress it again") from None
                chunk, decoder = (decoder.unused_data, None) if decoder.eof else (b"", decoder)
                if content:
                    yield content
        if decoder is not None:
            raise DatasetError(f"{path}: truncated {kind} file: it ends before its compressed stream does; fetch or compress it again")


def _counted(file: BinaryIO, first: bytes, size: int, on_read: Callable[[int], object]) -> Iterator[bytes]:
    """Yield the first bytes, already read, and the rest of the file, `size` bytes at a time."""
    chunk = first + file.read(max(size - len(first), 0))
    while chunk:
        on_read(len(chunk))
        yield chunk
        chunk = file.read(size)


def is_compressed(path: Source) -> bool:
    """Return True if `read_chunks` decompresses the file."""
    with path.open("rb") as file:
        return file.read(4).startswith((_GZIP, _ZSTD))
