"""Estimate the time of a training step on a GPU: for each operation, its bytes over the bandwidth or its FLOPs over their rate, whichever is longer.

    python -m benchmarks.gpu.estimate

Compare it with the first profile. Assumptions: SGD, `--amp --xla`, one worker; a compiled elementwise chain reads its inputs and writes its
outputs once; products reach 60% of the data sheet's rate, streams 80% and rows of 512 bytes in random order 65% of its bandwidth; launches, and waits
of the device for the host, take 0.3 ms. Repeated rows are counted like others: caches make them cheaper, atomic additions more expensive.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.options import Options, run
from benchmarks.report import Report
from dataloading.generate_feature_spec import NUM_NUMERICAL
from model.shapes import layer_shapes, pair_count
from utils.config.option import option
from utils.config.options import ModelConfig

PRODUCTS, STREAM, RANDOM = 0.6, 0.8, 0.65  # shares of the data sheet's figures that a step reaches
LAUNCHES_MS = 0.3
HALF, FLOAT, INT64 = 2, 4, 8  # sizes in bytes


class Device(NamedTuple):
    """A device by NVIDIA's data sheet: dense 16-bit FLOP/s, bytes/s."""

    name: str
    flops: float
    bandwidth: float


DEVICES = (Device("H200 SXM", 989e12, 4.8e12), Device("H100 SXM", 989e12, 3.35e12), Device("A100 SXM 80 GB", 312e12, 2.04e12))


class Work(NamedTuple):
    """The work of an operation, or of several of one kind."""

    name: str
    bytes: float
    flops: float = 0.0
    random: bool = False  # rows in random order

    def ms(self, device: Device) -> float:
        """Return the milliseconds that it takes on a device."""
        return 1e3 * max(self.bytes / device.bandwidth / (RANDOM if self.random else STREAM), self.flops / device.flops / PRODUCTS)


@dataclass(frozen=True)
class EstimateOptions(Options):
    """Estimate."""

    batch_size: int = option(65536, "batch size", unit="samples")
    num_tables: int = option(26, "categorical features", unit="features")


def step(batch: int, features: int, model: ModelConfig) -> Iterator[Work]:
    """Yield the operations of a step."""
    dim, rows = model.embedding_dim, batch * features
    vectors, pairs = features + 1, pair_count(features + 1)
    layers = layer_shapes(NUM_NUMERICAL, model.bottom_mlp_dims, model.top_mlp_dims, [dim] * features)
    z = HALF * batch * vectors * dim
    yield Work("ids as rows, for lookup and update", 2 * 2 * 2 * INT64 * rows)  # one addition and one transposition, each read and written
    yield Work("lookup", 2 * FLOAT * rows * dim, random=True)
    yield Work("vectors cast and put beside the bottom MLP's", FLOAT * rows * dim + HALF * batch * dim + z)
    yield Work("interaction: products", 2 * z + HALF * batch * vectors**2, 2 * batch * vectors**2 * dim)
    yield Work("interaction: pairs chosen", HALF * batch * (vectors**2 + 2 * dim + pairs))
    for which, bytes_, flops in _layers(batch, layers):
        yield Work(which, bytes_, flops)
    yield Work("loss and its gradient", FLOAT * batch * 6)
    yield Work("interaction back: pairs put in place", HALF * batch * (pairs + vectors**2))
    yield Work("interaction back: products", 2 * z + HALF * batch * vectors**2, 2 * batch * vectors**2 * dim)
    yield Work("gradients of vectors times the rate, as float32", HALF * rows * dim + FLOAT * rows * dim)
    yield Work("update of rows (read the gradient, add to the row)", 3 * FLOAT * rows * dim, random=True)
    yield Work("dense weights", 10 * FLOAT * sum(inputs * outputs for inputs, outputs in layers))


def _layers(batch: int, layers: list[tuple[int, int]]) -> Iterator[tuple[str, float, float]]:
    forward, by_inputs, by_weights, masks = [0.0, 0.0], [0.0, 0.0], [0.0, 0.0], 0.0
    for number, (inputs, outputs) in enumerate(layers):
        read, written, flops = HALF * batch * inputs, HALF * batch * outputs, 2 * batch * inputs * outputs
        forward = [forward[0] + read + written, forward[1] + flops]
        if number:  # the gradient of the numerical features is not needed
            by_inputs = [by_inputs[0] + read + written, by_inputs[1] + flops]
        by_weights = [by_weights[0] + read + written, by_weights[1] + flops]
        masks += 3 * written  # the gradient and the activation read, the masked gradient written; the bias's sum on the way
    yield "MLPs: forward (bias and ReLU within)", *forward
    yield "MLPs: gradients by the inputs", *by_inputs
    yield "MLPs: gradients by the weights", *by_weights
    yield "MLPs: ReLU and bias back", masks, 0.0


def main(options: EstimateOptions, report: Report) -> None:
    """Print the table."""
    works = list(step(options.batch_size, options.num_tables, ModelConfig()))
    rows = [[work.name, work.bytes / 1e6, work.flops / 1e9, *(work.ms(device) for device in DEVICES)] for work in works]
    rows.append(["launches and waits", "", "", *(LAUNCHES_MS for _ in DEVICES)])
    sums = [sum(row[place] for row in rows) for place in range(3, 3 + len(DEVICES))]
    rows.append(["together", sum(work.bytes for work in works) / 1e6, sum(work.flops for work in works) / 1e9, *sums])
    rows.append(["million samples/s", "", "", *(options.batch_size / ms / 1e3 for ms in sums)])
    shown = [[cell if isinstance(cell, str) else f"{cell:,.0f}" if i in (1, 2) else f"{cell:.2f}" for i, cell in enumerate(row)] for row in rows]
    title = f"batch {options.batch_size:,}, {options.num_tables} features"
    report.figures["ms"] = {device.name: ms for device, ms in zip(DEVICES, sums, strict=True)}
    report.table(title, ["operation", "MB", "GFLOP", *(f"{device.name}: ms" for device in DEVICES)], shown)


if __name__ == "__main__":
    sys.exit(run(EstimateOptions, main, __doc__))
