"""`MODEL.md`: a model card for the operators of a served model."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dataloading.training_only import shown_served
from serving.proof import Proof
from serving.triton_config import Tensor
from utils.checkpoint.reading import Checkpoint
from utils.config.config import Config
from utils.config.serving import RAW


def model_card(checkpoint: Checkpoint, config: Config, inputs: Sequence[Tensor], form: str, proof: Proof, precision: str) -> str:
    """Return the model card of a version as Markdown.

    Args:
        checkpoint: the exported checkpoint.
        config: configuration of the export.
        inputs: inputs of the model.
        form: one of `FORMATS`.
        proof: proof that the version scores as the checkpoint does.
        precision: precision of the tables.
    """
    manifest, options = checkpoint.manifest, config.export
    saved, position = manifest.get("config", {}), manifest.get("position", {})
    arrays = {name: array["shape"] for name, array in manifest["arrays"].items() if not name.startswith("optimizer/")}
    dense = sum(int(np.prod(shape)) for name, shape in arrays.items() if name.startswith("dense/"))
    tables = {name.split("/")[1]: shape for name, shape in arrays.items() if name.startswith("tables/") and name.endswith("/weights")}
    features, parameters = manifest["features"], dense + sum(rows * dim for rows, dim in tables.values())
    lines = [
        f"# {options.name_of(form)}, version {options.model_version}",
        "",
        f"A {_name(manifest)} with {parameters:,} parameters, {dense:,} of them dense, exported as {form}.",
        "",
        "| | |",
        "|---|---|",
        *_rows(
            {
                "checkpoint": f"{checkpoint.identity}, step {checkpoint.step:,}, written {manifest.get('time', 'at an unknown time')}",
                "trained on": saved.get("dataset_path") or saved.get("dataset_type", "unknown"),
                "training rows": f"{manifest['run']['train_samples']:,}" if isinstance(manifest.get("run"), dict) else None,
                "epochs": position.get("epoch"),
                "last AUC in training": position.get("last_auc"),
                "best AUC in training": position.get("best_auc"),
                "proof": str(proof),
                "precision": precision,
                "ids out of range": config.data.out_of_range,
                "code": _commit(),
            }
        ),
        "",
        "## Inputs",
        "",
        *_inputs(options.inputs, inputs, features),
        "",
        *_served(features),
        "The output `probability` is FP32, `[B, 1]`.",
        "",
        "## Tables",
        "",
        "| table | rows | columns |",
        "|---|---|---|",
        *(f"| {name} | {rows:,} | {dim} |" for name, (rows, dim) in tables.items()),
        "",
        "## Flags of the export",
        "",
        *(f"- `--{name} {_shown(getattr(options, name))}`" for name in _flags(options)),
        "",
    ]
    return "\n".join(lines)


def _name(manifest: dict[str, Any]) -> str:
    model = manifest.get("model") or {}
    return f"{model.get('name', 'dlrm')} ({model.get('interaction', 'dot')} interaction)"


def _rows(facts: dict[str, Any]) -> list[str]:
    return [f"| {name} | {value} |" for name, value in facts.items() if value is not None]


def _inputs(kind: str, inputs: Sequence[Tensor], features: dict[str, Any]) -> list[str]:
    lines = ["| input | type | shape |", "|---|---|---|"]
    for one in inputs:
        kind_of_values, missing = "BYTES" if one.kind == "STRING" else one.kind, ", may be missing" if one.optional else ""
        lines.append(f"| {one.name} | {kind_of_values} | [B, {one.width}]{missing} |")
    if kind == RAW:
        return [*lines, "", "Values as in the log; an empty text or NaN for a missing value. Values that training did not see get id 0."]
    particulars = features.get("particulars", {})
    weighted = [name for name in features["categorical"] if particulars.get(name, {}).get("weights", False)]
    lists = {name: facts.get("hotness", 1) for name, facts in particulars.items() if facts.get("hotness", 1) > 1 or name in weighted}
    named = {name: f"{name} ({lists[name]})" if name in lists else name for name in features["categorical"]}
    of_weights = f"`id_weights`, weights of the ids in the same order (of an id -1 any number): {', '.join(named[name] for name in weighted)}."
    return [
        *lines,
        "",
        f"`numerical`: {', '.join(features['numerical']) or 'none'}.",
        "",
        f"`categorical`, ids of each feature side by side (in brackets their number; -1 stands for no id): {', '.join(named.values())}.",
        *(["", of_weights] if weighted else []),
    ]


def _served(features: dict[str, Any]) -> list[str]:
    """Return the lines about features for training only."""
    if not features.get("served"):
        return []
    return [f"For training only, scored as {shown_served(features['served'])}: what a request holds there has no effect, and need not be valid.", ""]


def _flags(options: Any) -> list[str]:
    return [name for name in vars(options) if name != "export_path" and getattr(options, name) not in (None, ())]


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _commit() -> str | None:
    """Return this project's commit; None where the project is not under version control."""
    command = ["git", "-C", str(Path(__file__).resolve().parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
