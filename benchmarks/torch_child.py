"""torchrec's embedding on a CPU, fbgemm's `SplitTableBatchedEmbeddingBagsCodegen`, in a process of its own that takes turns with the benchmark.

Started by `benchmarks.torch_bags` with a Python that has torch and fbgemm and nothing of the project. Its argument is a JSON object: rows, dim,
hotness, optimizer, dtype, threads. Commands come as lines of JSON, and each is answered by one: {"load": FOLDER} (ids `[K, B]` in NumPy's files),
{"probes": true} and {"turn": SECONDS}, as in `benchmarks.bags`.
"""

import json
import sys
import time
from itertools import cycle
from pathlib import Path

import numpy as np

from benchmarks.bag_values import BOTH, LEARNING_RATE, LOOKUP, UPDATE, gradient_values, probe, table_values
from benchmarks.children import answer


class Bags:
    """All tables in one operator, which updates them in its backward pass; gradients of fbgemm's `EXACT_…` optimizers are summed by row first.

    Args:
        task: this module's argument.
    """

    def __init__(self, task: dict):
        import torch
        from fbgemm_gpu import split_table_batched_embeddings_ops_training as training
        from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode

        torch.set_num_threads(task["threads"])
        self._torch, self._hotness = torch, task["hotness"]
        self._columns = task["dim"] * len(task["rows"])
        self._bags = training.SplitTableBatchedEmbeddingBagsCodegen(
            [(rows, task["dim"], EmbeddingLocation.HOST, training.ComputeDevice.CPU) for rows in task["rows"]],
            optimizer={"sgd": EmbOptimType.EXACT_SGD, "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}[task["optimizer"]],
            learning_rate=LEARNING_RATE,
            eps=1e-7,
            pooling_mode=PoolingMode.SUM,
            output_dtype={"float32": SparseType.FP32, "float16": SparseType.FP16}[task["dtype"]],
            device=torch.device("cpu"),
        )
        for number, weights in enumerate(self._bags.split_embedding_weights()):
            weights.data.copy_(torch.from_numpy(table_values(number, *weights.shape)))
        self._dtype = getattr(torch, task["dtype"])
        self._gradients = None

    def load(self, folder: str) -> None:
        """Ids as fbgemm takes them: those of the first table sample by sample, then the next table's; and where each list begins."""
        self._inputs = [self._input(np.load(path)) for path in sorted(Path(folder).glob("*.npy"))]
        self._turns = cycle(self._inputs)

    def _input(self, ids: np.ndarray) -> tuple:
        lists = np.split(ids, np.cumsum(self._hotness)[:-1])
        indices = np.concatenate([some.T.reshape(-1) for some in lists]).astype(np.int64)
        lengths = np.repeat(self._hotness, ids.shape[1])
        if self._gradients is None:
            self._gradients = self._torch.from_numpy(gradient_values(ids.shape[1], self._columns)).to(self._dtype)
        return self._torch.from_numpy(indices), self._torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))

    def probes(self) -> list[float]:
        """See `bags.Functions.probes`."""
        vectors = self._bags(*self._inputs[0])
        before = probe(vectors.detach().float().numpy())
        vectors.backward(self._gradients)
        return [before, probe(self._bags(*self._inputs[0]).detach().float().numpy())]

    def turn(self, seconds: float) -> dict[str, float]:
        """See `bags.Functions.turn`; the forward pass makes what the backward pass wants, so that they take turns."""
        lookup, update, count = 0.0, 0.0, 0
        while not count or lookup + update < 3 * seconds:
            inputs = next(self._turns)
            times = [time.perf_counter()]
            vectors = self._bags(*inputs)
            times.append(time.perf_counter())
            vectors.backward(self._gradients)
            times.append(time.perf_counter())
            lookup, update, count = lookup + times[1] - times[0], update + times[2] - times[1], count + 1
        return {LOOKUP: lookup / count, UPDATE: update / count, BOTH: (lookup + update) / count}


def main() -> None:
    """Do as told until the input ends."""
    bags = Bags(json.loads(sys.argv[1]))
    answer("ready")
    for line in sys.stdin:
        ((command, value),) = json.loads(line).items()
        if command == "load":
            answer(bags.load(value))
        elif command == "probes":
            answer(bags.probes())
        else:
            answer(bags.turn(value))


if __name__ == "__main__":
    main()
