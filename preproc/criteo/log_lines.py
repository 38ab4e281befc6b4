"""Parsing of blocks of well-formed click log lines to columns, by NumPy operations over whole blocks: twice as fast as a general CSV parser.

A field ends before the next separator, so the eight bytes before a separator are loaded as one 64-bit word. It holds up to eight digits, which is
all of nearly every integer and of every hexadecimal value. Within the word the digits are combined two, four and eight at a time.
"""

from typing import NamedTuple

import numpy as np

CHARACTERS = b"0123456789abcdefABCDEF-\t\n"  # the only ones in well-formed lines
_STEP_BYTES = 1 << 18
_WORD = 8  # bytes of a word, and the most digits that it holds
_NEWLINE, _MINUS, _ONE = 10, 45, 49
_MAX_LONG = 100  # integers of more than eight digits a step, which are read one by one; if there are more, another parser is faster
_LAST_BYTES = np.array(
    [0] + [(2 ** (8 * count) - 1) << (64 - 8 * count) for count in range(1, 9)], np.uint64
)  # masks of the last bytes of a word, by the number of bytes
_LETTERS, _DIGITS, _ONES = (np.uint64(int(byte * 8, 16)) for byte in ("40", "0F", "01"))
_PAIRS, _FOURS, _EIGHT = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF), np.uint64(0xFFFFFFFF)


class Columns(NamedTuple):
    """The columns of n lines with M integers and F hexadecimal values."""

    labels: np.ndarray | None  # [n] bool; None without labels
    integers: np.ndarray  # [M, n] int64, 0 for an empty field
    values: np.ndarray  # [F, n] uint32, 0 for an empty field
    empty: np.ndarray  # [1 + M + F, n] bool: the field is empty; one row less without labels


def parse_block(
    text: bytes, num_lines: int, num_integers: int, num_values: int, labelled: bool = True, step_bytes: int = _STEP_BYTES
) -> Columns | None:
    """Parse lines of a label, integers and hexadecimal values; return None where a line is malformed, or another parser is faster.

    Args:
        text: whole lines, each ended by a newline.
        num_lines: n, the number of newlines in the text.
        num_integers: M.
        num_values: F.
        labelled: whether a label is the first field.
        step_bytes: text parsed at once, in bytes, so that the data of a step stay in the cache.
    """
    found = Columns(
        np.empty(num_lines, np.bool_) if labelled else None,
        np.empty((num_integers, num_lines), np.int64),
        np.empty((num_values, num_lines), np.uint32),
        np.empty((labelled + num_integers + num_values, num_lines), np.bool_),
    )
    row, start = 0, 0
    while start < len(text):
        stop = min(start + step_bytes, len(text))
        stop = text.rfind(b"\n", start, stop) + 1 or text.index(b"\n", stop) + 1
        count = _step(text[start:stop], row, found)
        if count is None:
            return None
        row, start = row + count, stop
    return found


def _step(text: bytes, row: int, found: Columns) -> int | None:
    """Parse some lines into `found`, starting at a row; return their number, or None as `parse_block` does."""
    if text.translate(None, CHARACTERS):
        return None
    data = np.frombuffer(bytes(_WORD) + text, np.uint8)  # pad the front: the word of the first field may begin before the text
    separators = np.flatnonzero(data <= _NEWLINE)[_WORD:]
    fields, first = len(found.empty), int(found.labels is not None)
    integers = slice(first, first + len(found.integers))
    lines, rest = divmod(len(separators), fields)
    if rest or (data[separators] == _NEWLINE).nonzero()[0].tolist() != list(range(fields - 1, len(separators), fields)):
        return None
    end = np.ascontiguousarray(separators.reshape(lines, fields).T)
    lengths = np.empty_like(end)
    lengths[1:] = end[1:] - end[:-1] - 1
    lengths[0, 1:] = end[0, 1:] - end[-1, :-1] - 1
    lengths[0, 0] = end[0, 0] - _WORD
    rows = slice(row, row + lines)
    np.equal(lengths, 0, out=found.empty[:, rows])
    if found.labels is not None:
        label = data[end[0] - 1]
        np.equal(label, _ONE, out=found.labels[rows])
        if (lengths[0] != 1).any() or ((label | 1) != _ONE).any():
            return None
    if lengths[integers.stop :].max(initial=0) > _WORD:
        return None
    words = np.ndarray(len(data) - _WORD + 1, "<u8", data, strides=(1,))
    negative = data[end[integers] - lengths[integers]] == _MINUS
    whole = _integers(words, end[integers], lengths[integers] - negative)
    if whole is None or (lengths[integers] == 1)[negative].any() or np.count_nonzero(data == _MINUS) != np.count_nonzero(negative):
        return None
    np.negative(whole, out=whole, where=negative)
    if not _read_long(data, end[integers], lengths[integers], whole):
        return None
    found.integers[:, rows] = whole
    found.values[:, rows] = _hexadecimal(words, end[integers.stop :], lengths[integers.stop :])
    return lines


def _last_digits(words: np.ndarray, ends: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return up to eight characters before each end, the last one in the highest byte; bytes before the field are 0."""
    found = words[ends - _WORD]
    found &= _LAST_BYTES[lengths]
    return found


def _integers(words: np.ndarray, ends: np.ndarray, digits: np.ndarray) -> np.ndarray | None:
    """Return the values of the last eight digits of decimal numbers, without their signs; None where there is a letter."""
    found = _last_digits(words, ends, np.clip(digits, 0, _WORD))
    if (found & _LETTERS).any():
        return None
    found &= _DIGITS
    # Each pass joins neighbouring groups of digits. The first digits are in the low bytes, so it is the low group that is scaled.
    for times, bits, mask in ((10, 8, _PAIRS), (100, 16, _FOURS), (10_000, 32, _EIGHT)):
        lower = found >> np.uint64(bits)
        found *= np.uint64(times)
        found += lower
        found &= mask
    return found.view(np.int64)


def _hexadecimal(words: np.ndarray, ends: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the values of up to eight hexadecimal digits, in either case."""
    found = _last_digits(words, ends, lengths)
    # Bit 6 is set in the codes of letters only, whose low four bits are 1 to 6: adding 9 gives 10 to 15.
    letters = found >> np.uint64(6)
    letters &= _ONES
    letters *= np.uint64(9)
    found &= _DIGITS
    found += letters
    for bits, mask in ((4, _PAIRS), (8, _FOURS), (16, _EIGHT)):
        lower = found >> np.uint64(2 * bits)
        found <<= np.uint64(bits)
        found += lower
        found &= mask
    return found


def _read_long(data: np.ndarray, ends: np.ndarray, lengths: np.ndarray, whole: np.ndarray) -> bool:
    """Read the integers of more than eight digits one by one; return False if there are too many, or one may not fit 64 bits."""
    places = np.argwhere(lengths > _WORD)
    if len(places) > _MAX_LONG:
        return False
    for feature, row in places.tolist():
        end = int(ends[feature, row])
        digits = data[end - int(lengths[feature, row]) : end].tobytes()
        if len(digits) > 18 or not digits.removeprefix(b"-").isdigit():
            return False
        whole[feature, row] = int(digits)
    return True
