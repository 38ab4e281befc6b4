"""A peer of the training step on a GPU: DLRM in PyTorch with `torch.compile`, on the same stored dataset, in a Python with torch, without TensorFlow.

    python -m benchmarks.gpu.torch_peer dataset=FOLDER [batch=65536] [steps=200] [precision=float16] [compiled=1]

prints a JSON object: samples/s and the first losses. All tables lie in one tensor, whose rows the step updates in place by SGD (`index_add_`), since
`torch.nn.Embedding` with sparse gradients sorts and copies them first. The batches are on the device before the clock starts, so the peer reads
nothing, unlike `dlrm.py`. The model is `dlrm.py`'s default: 13 numerical features, vectors of 128, MLPs 512-256-128 and 1024-1024-512-256-1.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

WIDTH, BOTTOM, TOP, RATE = 128, (512, 256, 128), (1024, 1024, 512, 256, 1), 1.0
WARMUP, SCALE = 50, 65536.0  # SCALE: of the loss in float16, constant, so that the host need not wait for it


def load(folder: Path, batch: int) -> tuple[list[int], np.ndarray, np.ndarray, np.ndarray]:
    """Read the training split of a `tf_raw` dataset: the tables' sizes, numericals `[n, B, 13]`, ids `[n, B, F]`, labels `[n, B]`."""
    import yaml

    spec = yaml.safe_load((folder / "feature_spec.yaml").read_text())
    columns: dict[str, np.ndarray] = {}
    for chunk in spec["source_spec"]["train"]:
        dtype = np.dtype(spec["feature_spec"][chunk["features"][0]]["dtype"])
        values = np.fromfile(folder / chunk["files"][0], dtype).reshape(-1, len(chunk["features"]))
        columns |= {name: values[:, place] for place, name in enumerate(chunk["features"])}
    channels = spec["channel_spec"]
    count = len(next(iter(columns.values()))) // batch

    def stacked(channel: str, dtype) -> np.ndarray:
        values = np.stack([columns[name][: count * batch] for name in channels[channel]], axis=1).astype(dtype)
        return values.reshape(count, batch, -1)

    rows = [spec["feature_spec"][name]["cardinality"] for name in channels["categorical"]]
    return rows, stacked("numerical", np.float32), stacked("categorical", np.int64), stacked("label", np.float32)[:, :, 0]


def main() -> None:
    """Time the step."""
    import torch
    from torch import nn

    given = {"batch": "65536", "steps": "200", "precision": "float16", "compiled": "1"} | dict(pair.split("=", 1) for pair in sys.argv[1:])
    batch, steps, precision = int(given["batch"]), int(given["steps"]), given["precision"]
    dtype = getattr(torch, "float32" if precision == "tf32" else precision)
    if precision == "tf32":
        torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    rows, numericals, ids, labels = load(Path(given["dataset"]), batch)
    offsets = np.concatenate([[0], np.cumsum(rows)[:-1]])
    table = torch.empty(sum(rows), WIDTH, device="cuda")
    for first, count in zip(offsets.tolist(), rows, strict=True):
        table[first : first + count].uniform_(-(count**-0.5), count**-0.5)
    batches = [
        (torch.from_numpy(x).cuda(), torch.from_numpy(i + offsets).cuda(), torch.from_numpy(y).cuda())
        for x, i, y in zip(numericals, ids, labels, strict=True)
    ]

    def mlp(first: int, widths: tuple[int, ...], last_is_linear: bool) -> nn.Sequential:
        layers: list[nn.Module] = []
        for number, width in enumerate(widths):
            layers.append(nn.Linear(first, width))
            if not (last_is_linear and number == len(widths) - 1):
                layers.append(nn.ReLU())
            first = width
        return nn.Sequential(*layers).cuda()

    vectors = len(rows) + 1
    bottom, top = mlp(numericals.shape[2], BOTTOM, False), mlp(WIDTH + vectors * (vectors - 1) // 2, TOP, True)
    below, right = torch.tril_indices(vectors, vectors, -1, device="cuda")
    weights = [*bottom.parameters(), *top.parameters()]
    optimizer, scaler = (
        torch.optim.SGD(weights, lr=RATE, fused=True),
        torch.amp.GradScaler(init_scale=SCALE, growth_interval=10**9, enabled=dtype == torch.float16),
    )

    def loss_of(x, looked_up, y):
        with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
            dense = bottom(x)
            z = torch.cat([dense[:, None, :], looked_up.to(dense.dtype)], dim=1)
            products = torch.bmm(z, z.transpose(1, 2))[:, below, right]
            logits = top(torch.cat([dense, products], dim=1))[:, 0]
        return nn.functional.binary_cross_entropy_with_logits(logits.float(), y)

    compute = torch.compile(loss_of) if given["compiled"] == "1" else loss_of

    def step(number: int) -> torch.Tensor:
        x, i, y = batches[number % len(batches)]
        flat = i.reshape(-1)
        looked_up = table[flat].view(batch, len(rows), WIDTH).requires_grad_()
        loss = compute(x, looked_up, y)
        scaler.scale(loss).backward()
        gradients = looked_up.grad.view(-1, WIDTH)
        table.index_add_(0, flat, gradients.mul_(-RATE / (SCALE if dtype == torch.float16 else 1)))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    losses = [float(step(number)) for number in range(3)]
    for number in range(WARMUP):
        step(number)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for number in range(steps):
        step(number)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    print(
        json.dumps({"samples_per_s": steps * batch / seconds, "ms": 1e3 * seconds / steps, "losses": losses, "torch": torch.__version__}), flush=True
    )


if __name__ == "__main__":
    main()
