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
    rate, how = spec.negative_rate, config.data.negatives
    shift = math.log(rate) if how == RECALIBRATE else 0.0
    if rate == 1 and "negatives" in config.given:
        warn(f"--negatives {how} has no effect: the dataset states no negative_rate, so its rows are taken as all rows")
    elif rate < 1 and how == AS_IS:
        warn(f"--negatives {AS_IS}: negatives were kept at the rate {rate:g}, so the odds of scores will be {1 / rate:g} times those of all rows")
    elif rate < 1:
        done = f"logits are shifted by {shift:.6g} wherever the model scores" if how == RECALIBRATE else f"each counts {1 / rate:g} times in the loss"
        say(f"negatives were kept at the rate {rate:g}: {done} (--negatives {how})")
    return config if goes_on or "logit_shift" in config.given else replace(config, model=replace(config.model, logit_shift=shift))


def weight_of_negatives(config: Config, spec: FeatureSpec, split: str, sampled: bool) -> float:
    """Return the weight of a split's negatives beside that of its positives: 1 / rate where each stands for those that were not kept.

    Args:
        config: configuration of the run.
        spec: specification of the dataset.
        split: the split's name.
        sampled: whether the split's rows are some of the sampled training rows.
    """
    weighed = sampled if split != "train" else config.data.negatives == REWEIGH
    return 1 / spec.negative_rate if weighed else 1.0
