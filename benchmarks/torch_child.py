"""torchrec's embedding on a CPU, fbgemm's `SplitTableBatchedEmbeddingBagsCodegen`, in a process of its own that takes turns with the benchmark.

`benchmarks.torch_bags` starts it with a Python that has torch and fbgemm but not the project's packages. Its argument is a JSON object: rows, dim,
hotness, optimizer, dtype, threads. Commands are lines of JSON, and each is answered by one line: {"load": FOLDER} (ids `[K, B]` in NumPy files),
{"probes": true} and {"turn": SECONDS}, as in `benchmarks.bags`.

fbgemm's wheel is built without OpenMP, so an operator uses one thread, whatever number torch is set to. The tables are therefore distributed over as
many operators as there are threads, each run by its own thread.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path

import numpy as np

from benchmarks.bag_values import BOTH, LEARNING_RATE, LOOKUP, UPDATE, gradient_values, probe, table_values
from benchmarks.children import answer


class Operator:
    """An operator of some tables, which its backward pass updates. fbgemm's `EXACT_…` optimizers first sum the gradients of a row.

    Args:
        task: this module's argument.
        tables: the numbers of the tables.
    """

    def __init__(self, task: dict, tables: Sequence[int]):
        import torch
        from fbgemm_gpu import split_table_batched_embeddings_ops_training as training
        from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode

        dim = task["dim"]
        self._operator = training.SplitTableBatchedEmbeddingBagsCodegen(
            [(task["rows"][number], dim, EmbeddingLocation.HOST, training.ComputeDevice.CPU) for number in tables],
            optimizer={"sgd": EmbOptimType.EXACT_SGD, "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD}[task["optimizer"]],
            learning_rate=LEARNING_RATE,
            eps=1e-7,
            pooling_mode=PoolingMode.SUM,
            output_dtype={"float32": SparseType.FP32, "float16": SparseType.FP16}[task["dtype"]],
            device=torch.device("cpu"),
        )
        for number, weights in zip(tables, self._operator.split_embedding_weights(), strict=True):
            weights.data.copy_(torch.from_numpy(table_values(number, *weights.shape)))
        first = [0, *accumulate(task["hotness"])]
        self._id_rows = [range(first[number], first[number + 1]) for number in tables]
        self.columns = np.concatenate([np.arange(number * dim, (number + 1) * dim) for number in tables])
        self._torch, self._dtype = torch, getattr(torch, task["dtype"])

    def load(self, batches: Sequence[tuple[np.ndarray, np.ndarray | None]], gradients: np.ndarray) -> None:
        """Set the batches, ids and weights or None, and gradients, in fbgemm's form.

        fbgemm takes the ids of the first table sample by sample, then those of the next table, and the offset of each list.
        """
        self._gradients = self._torch.from_numpy(gradients[:, self.columns]).to(self._dtype)
        self._inputs = [self._input(*both) for both in batches]

    def _input(self, ids: np.ndarray, weights: np.ndarray | None) -> tuple:
        def by_sample(values: np.ndarray) -> np.ndarray:
            return np.concatenate([values[rows.start : rows.stop].T.reshape(-1) for rows in self._id_rows])

        offsets = np.concatenate([[0], np.cumsum(np.repeat(list(map(len, self._id_rows)), ids.shape[1]))])
        found = [values.astype(np.int64) for values in (by_sample(ids), offsets)] + ([] if weights is None else [by_sample(weights)])
        return tuple(self._torch.from_numpy(values) for values in found)

    def forward(self, batch: int) -> None:
        """Look up a batch."""
        self.vectors = self._operator(*self._inputs[batch % len(self._inputs)])

    def backward(self, batch: int) -> None:
        """Update the tables by the gradients of the last lookup."""
        del batch
        self.vectors.backward(self._gradients)


class Bags:
    """All tables, distributed over operators.

    Args:
        task: this module's argument.
    """

    def __init__(self, task: dict):
        import torch

        torch.set_num_threads(task["threads"])
        dealt: list[list[int]] = [[] for _ in range(min(task["threads"], len(task["rows"])))]
        # the most expensive tables first, each to the operator with the fewest ids so far
        for number in sorted(range(len(task["rows"])), key=lambda number: -task["hotness"][number]):
            min(dealt, key=lambda some: sum(task["hotness"][other] for other in some)).append(number)
        self._operators = [Operator(task, sorted(some)) for some in dealt]
        self._pool, self._done = ThreadPoolExecutor(len(dealt)), 0
        self._num_columns = task["dim"] * len(task["rows"])

    def load(self, folder: str) -> None:
        """Load the batches of ids, and their weights if there are any, from a folder."""
        batches = []
        for path in sorted(Path(folder).glob("[0-9][0-9][0-9].npy")):
            weights = path.with_name(f"{path.stem}_weights.npy")
            batches.append((np.load(path), np.load(weights) if weights.exists() else None))
        gradients = gradient_values(batches[0][0].shape[1], self._num_columns)
        for one in self._operators:
            one.load(batches, gradients)

    def probes(self) -> list[float]:
        """See `bags.Functions.probes`."""
        before = self._probe()
        self._in_parallel(Operator.backward, 0)
        return [before, self._probe()]

    def turn(self, seconds: float) -> dict[str, float]:
        """See `bags.Functions.turn`. Forward and backward passes alternate, because the backward pass needs the result of a forward pass."""
        lookup, update, count = 0.0, 0.0, 0
        while not count or lookup + update < 3 * seconds:
            lookup += self._in_parallel(Operator.forward, self._done)
            update += self._in_parallel(Operator.backward, self._done)
            count, self._done = count + 1, self._done + 1
        return {LOOKUP: lookup / count, UPDATE: update / count, BOTH: (lookup + update) / count}

    def _probe(self) -> float:
        self._in_parallel(Operator.forward, 0)
        vectors = np.concatenate([one.vectors.detach().float().numpy() for one in self._operators], axis=1)
        return probe(vectors[:, np.argsort(np.concatenate([one.columns for one in self._operators]))])

    def _in_parallel(self, action: Callable[[Operator, int], None], batch: int) -> float:
        """Run an action on all operators in parallel and return its seconds."""
        start = time.perf_counter()
        list(self._pool.map(action, self._operators, [batch] * len(self._operators)))
        return time.perf_counter() - start


def main() -> None:
    """Execute commands until the input ends."""
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
