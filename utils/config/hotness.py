"""What `--synthetic_dataset_hotness` may be."""

from utils.config.option import check

MAX_HOTNESS = 65_536  # ids a sample of one feature: beyond this it is a matrix and no list


def check_hotness(hotness: tuple[int, ...], cardinalities: tuple[int, ...], from_spec: bool) -> None:
    """Raise ValueError where synthetic data cannot have so many ids a sample; the cardinalities are not used where a specification has them."""
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
