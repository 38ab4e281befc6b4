"""Score the test split by a model on a running Triton server, with the flags and lines of NVIDIA's command of this name.

    python -m deployment.evaluate_accuracy --dataset_path DATASET --model_name dlrm --sparse_input_format tf-savedmodel --batch_size 4096

Every row counts, also those after the last whole batch, and the AUC is exact unless --auc_thresholds is given. `python -m serving.client` has further
options: several requests at a time, HTTP, raw values, predictions in a file.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from serving.client import ClientConfig, Requests
from serving.connection import Connection
from serving.raw_file import is_raw
from utils.commands import run_command
from utils.config.flags import Parser
from utils.config.option import build
from utils.errors import UserError
from utils.flag_names import spoken
from utils.logging import RunLog
from utils.metrics.binary import Metrics, evaluate

NAME = "deployment.evaluate_accuracy"
WARMUP_STEPS = 10  # first requests, whose times do not count
_FORMAT = "tf-savedmodel"
_NO_EFFECT = {"verbose": "there is one level of output", "fused_embedding": "there is one embedding implementation"}
_NAMES = {"url": "server_url", "max_requests": "max_steps"}  # the client's flags -> the flags here, for messages


@dataclass
class Scored:
    """The scores of all requests `[n]`, in the order of the rows, and the seconds and samples of each request."""

    scores: np.ndarray
    seconds: np.ndarray
    samples: np.ndarray

    def figures(self) -> dict[str, float]:
        """Return throughput and latency, without those of the first requests where there are more."""
        first = WARMUP_STEPS if len(self.seconds) > WARMUP_STEPS else 0
        seconds, samples = self.seconds[first:], self.samples[first:]
        return {"mean_inference_throughput": float(samples.sum() / seconds.sum()), "mean_inference_latency": float(seconds.mean())}


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse and check the command line. Raises UserError."""
    parser = Parser(prog=NAME, description=__doc__)
    add = parser.add_argument
    add("--dataset_path", required=True, metavar="FOLDER", help="folder of the dataset")
    add("--dataset_type", default="tf_raw", choices=("tf_raw",), help="type of the dataset (default: %(default)s)")
    add("--feature_spec", default="feature_spec.yaml", metavar="FILE", help="name of the specification in --dataset_path (default: %(default)s)")
    add("--model_name", required=True, metavar="NAME", help="name of the model on the server")
    add("--server_url", default="grpc://127.0.0.1:8001", metavar="URL", help="address of the server, grpc://… or http://… (default: %(default)s)")
    add("--batch_size", type=int, default=32768, metavar="N", help="samples of a request (default: %(default)s)")
    add("--auc_thresholds", type=int, metavar="N", help="thresholds of an approximate AUC (default: the exact AUC)")
    add("--max_steps", type=int, metavar="N", help="requests to send (default: all rows)")
    add("--print_freq", type=int, default=10, metavar="N", help="requests between two lines (default: %(default)s)")
    add("--log_path", default="dlrm_tf_log.json", metavar="FILE", help="log to write (default: %(default)s)")
    add("--test_on_train", action="store_true", help="score the training split")
    add("--sparse_input_format", required=True, metavar=_FORMAT, help="the inputs are those of this project's exports")
    for name, reason in _NO_EFFECT.items():
        add(f"--{name}", action="store_true", help=f"no effect: {reason}")
    args = parser.parse_strictly(argv)
    if args.sparse_input_format != _FORMAT:
        why = "there is no HPS here" if args.sparse_input_format == "hps" else "unknown format"
        raise UserError(f"--sparse_input_format {args.sparse_input_format}: {why}; expected {_FORMAT}")
    for name, least in (("print_freq", 1), ("auc_thresholds", 2), ("max_steps", 1)):
        if (value := getattr(args, name)) is not None and value < least:
            raise UserError(f"--{name} {value}: expected at least {least}")
    return args


def client_config(args: argparse.Namespace) -> ClientConfig:
    """Return the client's options. Raises UserError."""
    values: dict[str, Any] = {name: getattr(args, name) for name in ("dataset_path", "feature_spec", "model_name", "batch_size")}
    split, limit = "train" if args.test_on_train else "test", -1 if args.max_steps is None else args.max_steps
    return build(ClientConfig, values | {"url": args.server_url, "split": split, "max_requests": limit})


def opened(config: ClientConfig, connection: Connection) -> tuple[Requests, np.ndarray]:
    """Return the requests and the labels of their rows. Raises UserError where the dataset does not fit the model, or has no labels."""
    if is_raw(connection.inputs):
        raise UserError(f"model {connection.model} takes raw values, and this command sends ids; python -m serving.client --data FILE sends raw rows")
    requests = Requests(config, connection)
    if config.batch_size > connection.max_batch_size:
        raise UserError(f"--batch_size {config.batch_size}: the server takes at most {connection.max_batch_size} samples a request")
    widths = {name: values.shape[1] for name, values in requests.inputs(0).items()}
    for one in connection.inputs:
        if (found := widths[one.name]) != one.width:
            raise UserError(
                f"{config.dataset_path}: has {found} {one.name} values a sample, model {connection.model} takes {one.width}; give the dataset that "
                "the model was trained on"
            )
    labels = requests.labels()
    if labels is None:
        raise UserError(f"{config.dataset_path}: split {config.split} has no labels; python -m serving.client --predictions_path writes its scores")
    return requests, labels


def scored(requests: Requests, connection: Connection, print_freq: int) -> Scored:
    """Send the requests one after another, and print a line for every `print_freq` of them. Raises RequestError where one fails."""
    scores, seconds, samples = [], [], []
    for step in range(1, requests.count + 1):
        inputs, (start, stop) = requests.inputs(step - 1), requests.rows(step - 1)
        begin = time.perf_counter()
        scores.append(connection.infer(inputs))
        seconds.append(time.perf_counter() - begin)
        samples.append(stop - start)
        if step % print_freq == 0:
            rate, mean_ms = sum(samples[-print_freq:]) / sum(seconds[-print_freq:]), 1e3 * float(np.mean(seconds[-print_freq:]))
            print(f"validation_step={step}, validation_throughput={rate / 1e6:.3f}M, step_time={mean_ms:.3f} ms", flush=True)
    return Scored(np.concatenate(scores), np.array(seconds), np.array(samples))


def metrics_of(probabilities: np.ndarray, labels: np.ndarray, auc_thresholds: int | None) -> Metrics:
    """Return the metrics of probabilities `[n]` float32; 0 and 1 are taken for the next values that float64 can tell from them."""
    exact = probabilities.astype(np.float64).clip(2.0**-150, 1 - 2.0**-25)
    return evaluate(np.log(exact) - np.log1p(-exact), labels, auc_thresholds)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the flags, score the split, print and log the figures. Raises UserError."""
    args = parse_arguments(sys.argv[1:] if argv is None else argv)
    for name, reason in _NO_EFFECT.items():
        if getattr(args, name):
            print(f"{NAME}: warning: --{name} has no effect: {reason}", file=sys.stderr)
    try:
        config = client_config(args)
        connection = Connection(config.url, config.model_name)
        try:
            requests, labels = opened(config, connection)
            print(f"Command line flags:\n{json.dumps(vars(args), indent=4)}", flush=True)
            log = RunLog(args.log_path, vars(args), warn=lambda text: print(f"{NAME}: warning: {text}", file=sys.stderr))
            try:
                result = scored(requests, connection, args.print_freq)
                found = metrics_of(result.scores, labels, args.auc_thresholds)
                log.log((), result.figures() | {"auc": found.auc, "test_loss": found.log_loss, "samples": len(labels)})
            finally:
                log.close()
        finally:
            connection.close()
    except UserError as error:
        error.args = (spoken(str(error), _NAMES),)
        raise
    auc = "undefined, as all labels are equal" if found.auc is None else f"{found.auc:.10f}"
    print(f"{config.split}: {len(labels):,} samples, AUC {auc}, test_loss {found.log_loss:.10f}\nDONE")


if __name__ == "__main__":
    sys.exit(run_command(main, NAME))
