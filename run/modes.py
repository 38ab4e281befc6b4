"""The modes that need TensorFlow, each a function of the prepared run."""

from collections.abc import Callable, Mapping

from run.evaluate import evaluate
from run.explain import explain
from run.infer import infer
from run.predict import predict
from run.prepare import Prepared
from run.train import train
from utils.config.options import EVAL, EXPLAIN, INFERENCE, PREDICT, TRAIN

MODES: Mapping[str, Callable[[Prepared], object]] = {TRAIN: train, EVAL: evaluate, INFERENCE: infer, PREDICT: predict, EXPLAIN: explain}
