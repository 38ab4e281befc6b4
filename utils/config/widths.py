"""Embedding widths as flags have them: one number, one for each feature, or a JSON file of either."""

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
    from utils.json_file import read_json  # only where a file is given

    content = read_json(path)
    numbers = content if isinstance(content, list) else [content]
    if not numbers or not all(type(number) is int for number in numbers):
        raise ValueError(f"{path}: expected a whole number or a list of them")
    return tuple(numbers) if isinstance(content, list) and len(numbers) > 1 else numbers[0]
