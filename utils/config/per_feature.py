"""Options with one value for all categorical features, or one for each: embedding widths and the hotness of synthetic data."""

from utils.config.option import check

MAX_HOTNESS = 65_536  # ids a sample of one feature; more would be a matrix rather than a list
EXPECTED = "a whole number, a list of them separated by commas, or a JSON file of either"


def check_hotness(hotness: tuple[int, ...], cardinalities: tuple[int, ...], from_spec: bool) -> None:
    """Raise ValueError where synthetic data cannot have so many ids a sample; cardinalities are ignored where a feature specification has them."""
    text = ",".join(map(str, hotness))
    most = MAX_HOTNESS
    check(len(hotness) > 0 and min(hotness) >= 1 and max(hotness) <= most, "synthetic_dataset_hotness", text, f"one or more numbers from 1 to {most}")
    if from_spec:
        return
    features = len(cardinalities)
    check(len(hotness) in (1, features), "synthetic_dataset_hotness", text, f"one number for all, or one for each of the {features} features")
    for feature, rows in enumerate(cardinalities):
        ids = hotness[feature % len(hotness)]
        fits = f"at most as many ids as rows, for they are drawn without repetition; feature {feature} has {rows} rows and hotness {ids}"
        check(ids <= rows, "synthetic_dataset_hotness", text, fits)


def widths(text: str) -> int | tuple[int, ...]:
    """Parse embedding widths: D, or D_f of each categorical feature in the model's order.

    Args:
        text: `128`, `16,16,128`, or the path of a JSON file that holds `128` or `[16, 16, 128]`.

    Raises:
        ValueError: the text is none of these; for a JSON file the message names the problem.
    """
    if text.strip().endswith(".json"):
        return _of_file(text.strip())
    words = [word for word in text.replace("[", "").replace("]", "").split(",") if word.strip()]
    numbers = tuple(map(int, words))
    if not numbers:
        raise ValueError(text)
    return numbers[0] if len(numbers) == 1 else numbers


def _of_file(path: str) -> int | tuple[int, ...]:
    from utils.json_file import read_json  # imported only where a file is given

    content = read_json(path)
    numbers = content if isinstance(content, list) else [content]
    if not numbers or not all(type(number) is int for number in numbers):
        raise ValueError(f"{path}: expected a whole number or a list of them")
    return tuple(numbers) if isinstance(content, list) and len(numbers) > 1 else numbers[0]
