"""Logs for tests, written line by line as runs write them."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BINS = 200


def line(step: Any, data: Mapping[str, Any], seconds: float) -> str:
    """Return a line of a log."""
    head = {"timestamp": f"{seconds:.6f}", "datetime": "2026-11-21 02:10:20+00:00", "elapsedtime": "1.0", "type": "LOG"}
    return f"DLLL {json.dumps({**head, 'step': step, 'data': data})}\n"


def about(identity: str = "00112233445566aa", resumed: int | None = None, **others: Any) -> dict[str, Any]:
    """Return the data of a line RUN: two workers, two tables."""
    return {
        "id": identity,
        "program": "dlrm.py",
        "mode": "train",
        "workers": 2,
        "device": "CPU",
        "dtype": "float32",
        "operations": "C++ operations",
        "processor": "EPYC, 2 cores",
        "resumed_step": resumed,
        "resumed_epoch": None if resumed is None else 0,
        "restored": None,
        "samples": {"train": 12800, "valid": 640, "test": 960},
        "model": "dlrm",
        "parameters": {"embedding": 1664, "dense": 321},
        "dataset": "/data/clicks",
        "fingerprints": {"train": "aa", "test": "bb"},
        "steps": 100,
        "steps_per_epoch": 50,
        "batch_size": 128,
        "chosen_by": "valid",
        "step_form": "epoch,step",
        "numerical": ["age"],
        "tables": [{"name": "user", "rows": 100, "dim": 16, "bytes": 6400}, {"name": "item", "rows": 4, "dim": 16, "bytes": 256}],
        "features": [
            {"name": "user", "table": "user", "source": "user", "hotness": 1, "pooling": "sum"},
            {"name": "item", "table": "item", "source": "item", "hotness": 3, "pooling": "sum"},
        ],
        "placement": [
            {"worker": 0, "bytes": 6400, "tables": [["user", 0, 16]], "ids_per_step": 128, "sent_bytes_per_step": 4096},
            {"worker": 1, "bytes": 256, "tables": [["item", 0, 16]], "ids_per_step": 384, "sent_bytes_per_step": 8192},
        ],
        "replicated": ["item"],
        "bits": "the same bits for 1 and 2 workers",
        **others,
    }


def training(step: int, **others: Any) -> dict[str, Any]:
    """Return the data of a training line."""
    return {
        "loss": 0.7 - 0.1 * math.log1p(step) / 3,
        "samples_per_s": 9000.0 + step,
        "step_time_ms": 14.0 + step / 64,
        "learning_rate": min(step, 20) / 2000,
        "embedding_learning_rate": min(step, 20) / 1000,
        "samples": step * 128,
        "input_ms": 1.5,
        "exchange_ms": 2.25 + step / 128,
        "saving_ms": 0.125,
        "memory_gib": 0.5 + step / 1024,
        "gradient_norm/dense": 1.25 + step / 32,
        "weight_norm/tables": 2.5 + step / 16,
        **others,
    }


def evaluation(split: str, step: int, final: bool = False, samples: int = 640) -> dict[str, Any]:
    """Return the data of a line EVALUATION, whose deciles and histogram agree with each other in their sums."""
    positives = samples // 4
    tenth = samples // 10
    of_decile = [positives * place // 45 for place in range(10)]
    of_decile[9] += positives - sum(of_decile)
    deciles = [[tenth, of_decile[place], tenth * (0.05 * place + 0.02), 0.05 * place, 0.05 * place + 0.04] for place in range(10)]
    negative = [0] * BINS
    positive = [0] * BINS
    for number in range(samples - positives):
        negative[(number * 7) % 150] += 1
    for number in range(positives):
        positive[50 + (number * 11) % 150] += 1
    return {
        "split": split,
        "epoch": step // 50,
        "step": step,
        "final": final,
        "samples": samples,
        "positives": positives,
        "auc": 0.7 + step / 1024,
        "auc_variance": 0.0001,
        "log_loss": 0.5 - step / 1024,
        "log_loss_variance": 0.0004,
        "normalized_entropy": 0.9 - step / 2048,
        "calibration": 1.0 + step / 4096,
        "deciles": deciles,
        "histogram": {"low": -4.0, "high": 6.0, "negative": negative, "positive": positive},
    }


IMPORTANCE = {
    "split": "test",
    "samples": 960,
    "repeats": 5,
    "auc": 0.8,
    "log_loss": 0.4,
    "features": [
        {"name": "user", "columns": ["user"], "auc_lost": [0.0625, 0.05, 0.075], "log_loss_lost": [0.03125, 0.02, 0.04]},
        {"name": "age", "columns": ["age", "age_bucket"], "auc_lost": [0.125, 0.1, 0.15], "log_loss_lost": [0.0625, 0.05, 0.07]},
        {"name": "item", "columns": ["item"], "auc_lost": [-0.001, -0.004, 0.002], "log_loss_lost": [0.0, -0.001, 0.001]},
    ],
    "copies": [["user", "item", 0.995]],
}


def run_lines(steps: Sequence[int] = range(10, 101, 10), began: float = 1000.0, **others: Any) -> list[str]:
    """Return the lines of a whole run: training every ten steps, two evaluations, a checkpoint, the test at the end."""
    found = [line("PARAMETER", {"mode": "train", "batch_size": 128, "save_checkpoint_path": "/models/a", "dataset_path": "/data/clicks"}, began)]
    found.append(line("RUN", about(**others), began))
    for step in steps:
        found.append(line([step // 50, step], training(step), began + step))
        if step % 50 == 0:
            summary = evaluation("valid", step)
            found.append(line([step // 50, step], {"valid_auc": summary["auc"], "valid_loss": summary["log_loss"], "samples": 640}, began + step))
            found.append(line("EVALUATION", summary, began + step))
            shares = {"epoch": step // 50, "step": step, "touched": {"user": step / 128, "item": 0.75}, "norms": {"user": 3.5, "item": 1.25}}
            found.append(line("TABLES", shares, began + step))
            saved = {"epoch": 0, "step": step, "folder": f"/models/a/step-{step:08d}", "seconds": 0.5, "waited_seconds": 0.25, "best": True}
            found.append(line("CHECKPOINT", saved, began + step + 0.5))
    test = evaluation("test", 100, final=True, samples=960)
    found.append(line("EVALUATION", test, began + 102))
    found.append(line("TABLES", {"epoch": 2, "step": 100, "touched": {"user": 0.78125, "item": 0.75}, "memory_gib": [0.5, 0.25]}, began + 102))
    found.append(line("IMPORTANCE", IMPORTANCE, began + 102))
    final = {"throughput": 9100.5, "auc": test["auc"], "validation_loss": test["log_loss"], "samples": 12800, "steps": 100, "map_at_12": 0.3125}
    found.append(line([], final, began + 103))
    return found


def write(path: Path, lines: Sequence[str]) -> Path:
    """Write a log."""
    path.write_text("".join(lines))
    return path
