"""Options for the categorical features, with one value for all or one for each: widths, pooling, and the hotness of synthetic data."""

from collections.abc import Mapping
from dataclasses import dataclass

from utils.config.option import WITH_WEIGHTS, check, check_options, option

ONE_HOT, MULTI_HOT = "onehot_categorical", "multihot_categorical"  # channels of a specification of NVIDIA's Wide & Deep, in its current release
MAX_HOTNESS = 65_536  # ids a sample of one feature; more would be a matrix rather than a list
EXPECTED = "a whole number, a list of them separated by commas, or a JSON file of either"


@dataclass(frozen=True)
class FeatureConfig:
    """Features."""

    embedding_sizes_file: str | None = option(
        None,
        "JSON file of an object that maps the name of each categorical feature to the width of its table, in place of --embedding_dim and of the "
        "feature specification; names of other features are allowed",
    )
    combiner: str | None = option(
        None,
        "pooling of the vectors of a list of ids, for all features with several ids per sample; the default is the feature specification's",
        choices=("sum", "mean"),
        resume=WITH_WEIGHTS,
    )

    def __post_init__(self):
        check_options(self)

    def widths(self) -> Mapping[str, int] | None:
        """Return the widths in `--embedding_sizes_file`, by feature; None without the flag. Raises ValueError where it is not such a file."""
        from utils.json_file import read_json  # imported only where a file is given

        path = self.embedding_sizes_file
        if path is None:
            return None
        try:
            content = read_json(path)
        except ValueError as error:
            raise ValueError(f"--embedding_sizes_file {error}") from None
        check(isinstance(content, dict) and bool(content), "embedding_sizes_file", path, 'an object of widths by feature: {"ad_id": 128, …}')
        for name, width in content.items():
            if type(width) is not int or width < 1:
                raise ValueError(f"--embedding_sizes_file {path}: feature {name}: width {str(width)[:60]!r}, expected a whole number of at least 1")
        return content


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
