"""Reading a file as a stream of bytes, plain or compressed with gzip or zstd."""

import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

import zstandard

from dataloading.features import DatasetError
from preproc.reading.stores import Source

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
# A compressed read can grow a thousandfold (gzip's limit); 64 KiB keeps what one read becomes near a block's size at worst.
_COMPRESSED_READ_BYTES = 64 << 10
_PLAIN_READ_BYTES = 1 << 20


def read_chunks(path: Source, chunk_bytes: int = _PLAIN_READ_BYTES, on_read: Callable[[int], object] = lambda count: None) -> Iterator[bytes]:
    """The file's content, decompressed, in blocks that are never empty.

    What is compressed is told by the first bytes, not by the name: days are often renamed after they were unpacked.

    Args:
        path: the file, local or of an object store.
        chunk_bytes: the most that is read from the disk at once, in bytes.
        on_read: called with the number of bytes read from the disk, for a progress bar.

    Raises:
        DatasetError: the compressed stream is damaged or ends early.
    """
    with path.open("rb") as file:
        magic = file.read(4)  # and not sought back: a store's stream may not be able to
        if magic.startswith(_GZIP):
            kind, errors = "gzip", zlib.error
            new_decoder = lambda: zlib.decompressobj(wbits=31)  # noqa: E731  31: gzip header, largest window
        elif magic == _ZSTD:
            kind, errors = "zstd", zstandard.ZstdError
            new_decoder = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj  # what `zstd --long=31` needs
        else:
            yield from _counted(file, magic, min(chunk_bytes, _PLAIN_READ_BYTES), on_read)
            return
        # Not gzip.open and not zstandard's stream reader: the latter takes a truncated file for a whole one, and both
        # formats allow several streams one after another, which `eof` and `unused_data` make visible.
        decoder = None
        for chunk in _counted(file, magic, min(chunk_bytes, _COMPRESSED_READ_BYTES), on_read):
            while chunk:
                if decoder is None:
                    chunk = chunk.lstrip(b"\0")  # padding between and after streams, as gzip itself allows
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
    """The first bytes and what follows, `size` bytes at a time."""
    chunk = first + file.read(max(size - len(first), 0))
    while chunk:
        on_read(len(chunk))
        yield chunk
        chunk = file.read(size)


def is_compressed(path: Source) -> bool:
    """Whether `read_chunks` decompresses the file."""
    with path.open("rb") as file:
        return file.read(4).startswith((_GZIP, _ZSTD))
