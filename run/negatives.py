"""Training on a log whose negatives were sampled: how losses and scores make up for those that are missing."""

import math
from collections.abc import Callable
from dataclasses import replace

from dataloading.feature_spec import FeatureSpec
from utils.config.config import Config
from utils.config.options import AS_IS, RECALIBRATE, REWEIGH, TRAIN


def with_negatives(config: Config, spec: FeatureSpec, goes_on: bool, say: Callable[[str], None], warn: Callable[[str], None]) -> Config:
    """Return the configuration with the shift of the logits that the dataset's rate asks for.

    With negatives kept at rate r, a model learns the odds of the kept rows, which are 1 / r times those of all rows: log(r), added to the logit,
    gives the latter (King and Zeng, "Logistic regression in rare events data", 2001, equation 7).

    Args:
        config: configuration of the run, with the checkpoint's options.
        spec: specification of the dataset.
        goes_on: whether the run resumes another, whose shift it has.
        say: called with a line about what is done.
        warn: called with a line where scores are off, or a flag has no effect.
    """
    if config.run.mode != TRAIN:
        return config
    rate, how, before = spec.negative_rate, config.data.negatives, config.model.logit_shift
    stays = goes_on or "logit_shift" in config.given or rate == 1  # the shift is given, or comes with the checkpoint's weights
    shift = before if stays else math.log(rate) if how == RECALIBRATE else 0.0
    if rate == 1 and "negatives" in config.given:
        warn(f"--negatives {how} has no effect: the dataset states no negative_rate, so its rows are taken as all rows")
    elif rate < 1 and how == AS_IS and not shift:
        warn(f"--negatives {AS_IS}: negatives were kept at the rate {rate:g}, so the odds of scores will be {1 / rate:g} times those of all rows")
    elif rate < 1 and how == REWEIGH:
        say(f"negatives were kept at the rate {rate:g}: each counts {1 / rate:g} times in the loss (--negatives {how})")
    elif rate < 1:
        say(f"negatives were kept at the rate {rate:g} (--negatives {how})")
    if shift:
        came = "" if not stays else ", from the checkpoint" if "logit_shift" not in config.given else " (--logit_shift)"
        say(f"logits are shifted by {shift:.6g} wherever the model scores{came}")
    if shift != before and before:
        warn(f"the checkpoint's logits are shifted by {before:.6g}; this run's by {shift:.6g}, by the dataset's rate; --logit_shift sets it")
    return config if stays else replace(config, model=replace(config.model, logit_shift=shift))


def weight_of_negatives(config: Config, spec: FeatureSpec, split: str, sampled: bool) -> float:
    """Return the weight of a split's negatives beside that of its positives: 1 / rate where each stands for those that were not kept.

    Args:
        config: configuration of the run.
        spec: specification of the dataset.
        split: the split's name.
        sampled: whether the split's rows are some of the sampled training rows.
    """
    how = config.data.negatives
    weighed = how == REWEIGH if split == "train" else sampled and how != AS_IS
    return 1 / spec.negative_rate if weighed else 1.0
