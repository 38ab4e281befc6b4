"""Embedding widths as flags have them: one number, one for each feature, or a JSON file of either."""

import json

EXPECTED = "a whole number, a list of them separated by commas, or a JSON file of either"


def widths(text: str) -> int | tuple[int, ...]:
    """D, or D_f of each categorical feature in the model's order.

    Args:
        text: `128`, `16,16,128`, or the path of a JSON file that holds `128` or `[16, 16, 128]`.

    Raises:
        ValueError: it is neither; where a file is to blame the message says how.
    """
    if text.strip().endswith(".json"):
        return _of_file(text.strip())
    words = [word for word in text.replace("[", "").replace("]", "").split(",") if word.strip()]
    numbers = tuple(map(int, words))
    if not numbers:
        raise ValueError(text)
    return numbers[0] if len(numbers) == 1 else numbers


def _of_file(path: str) -> int | tuple[int, ...]:
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())[:80]}; expected JSON") from None
    numbers = content if isinstance(content, list) else [content]
    if not numbers or not all(type(number) is int for number in numbers):
        raise ValueError(f"{path}: expected a whole number or a list of them")
    return tuple(numbers) if isinstance(content, list) and len(numbers) > 1 else numbers[0]
