"""The options that overrule what a feature specification says of its features."""

from collections.abc import Mapping
from dataclasses import dataclass

from utils.config.option import WITH_WEIGHTS, check, check_options, option

ONE_HOT, MULTI_HOT = "onehot_categorical", "multihot_categorical"  # channels of a specification of NVIDIA's Wide & Deep, in its current release


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
