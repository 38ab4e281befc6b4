"""The peers' environment, their runs in it, and a logistic regression."""

import hashlib
import json
import os
import platform
import subprocess
import sys
import time
import urllib.request
import venv
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.published.processes import ended
from benchmarks.published.settings import PEER_NAME, PENALTIES, TREES
from dataloading.feature_spec import FeatureSpec
from dataloading.tf_raw import TfRawSplit
from serving.cache import ensure_folder
from utils.cache import cache_folder
from utils.cluster import processes
from utils.errors import UserError

REQUIREMENTS = Path(__file__).parents[1] / "requirements-published.txt"
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
_MODULES = {PEER_NAME: "benchmarks.published.fuxictr_child", TREES: "benchmarks.published.lightgbm_child"}


def peer_python(given: str | None, say: Callable[[str], None]) -> str:
    """Return a Python that has the peers' packages: the given one, or that of an environment in the cache, which is made where it does not exist.

    Raises:
        UserError: the environment cannot be made, or the given Python lacks the packages.
    """
    if given:
        try:
            ended(given, "-c", "import fuxictr, lightgbm, polars, torch")
        except UserError as error:
            raise UserError(f"--peer_python {given}: {error}; expected a Python with the packages of {REQUIREMENTS.name}") from None
        return given
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]
    folder = cache_folder() / f"published-{digest}-python{sys.version_info.major}.{sys.version_info.minor}-{platform.machine()}"
    if not folder.is_dir():
        say(f"making the peers' environment in {folder} (PyTorch, FuxiCTR, LightGBM; minutes, 2 GB)")
    return str(ensure_folder(folder, _make) / "bin/python")


def run(who: str, model: str, seed: int, data: Path, python: str, epochs: int) -> dict[str, Any]:
    """Train and test a peer's model in its environment, and return its figures."""
    task = {"data": str(data.absolute()), "model": model, "seed": seed, "epochs": epochs, "threads": len(os.sched_getaffinity(0))}
    found = ended(python, "-m", _MODULES[who], json.dumps(task))
    try:
        return json.loads(found.out.splitlines()[-1]) | found.figures
    except (IndexError, ValueError):
        raise UserError(f"{python} -m {_MODULES[who]} printed no figures; expected a line of JSON") from None


def logistic_regression(dataset: Path) -> dict[str, Any]:
    """Return the figures of a logistic regression with a weight for each id, its penalty chosen on the valid split."""
    import numpy as np
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss, roc_auc_score
    from sklearn.preprocessing import OneHotEncoder

    spec = FeatureSpec.from_yaml(dataset / "feature_spec.yaml", "--folder")

    def rows_of(name: str) -> tuple[np.ndarray, np.ndarray]:
        with closing(TfRawSplit(spec, name)) as split:
            ids = [split.read_ids(feature, 0, split.num_samples) for feature in range(len(spec.categorical))]
            return np.stack(ids, axis=1), split.read_labels(0, split.num_samples)

    rows, labels = rows_of("train")
    encoder = OneHotEncoder(handle_unknown="ignore").fit(rows)
    best: dict[str, Any] = {"valid_auc": -1.0}
    for penalty in PENALTIES["penalties"]:
        begun = time.perf_counter()
        fitted = LogisticRegression(C=penalty, solver="liblinear").fit(encoder.transform(rows), labels)
        valid, answers = rows_of("valid")
        auc = float(roc_auc_score(answers, fitted.decision_function(encoder.transform(valid))))
        if auc > best["valid_auc"]:
            best = {"valid_auc": auc, "seconds": time.perf_counter() - begun, "fitted": fitted, "penalty": penalty}
    test, answers = rows_of("test")
    scores = best["fitted"].predict_proba(encoder.transform(test))[:, 1]
    return {
        "auc": float(roc_auc_score(answers, scores)),
        "log_loss": float(log_loss(answers, scores)),
        "epochs": [{"auc": best["valid_auc"], "seconds": best["seconds"]}],
        "parameters": int(best["fitted"].coef_.size + 1),
        "setting": {"C": best["penalty"]},
    }


def _cpu_wheels() -> list[str]:
    """Return pip's flags for PyTorch's wheels without CUDA; none where their index does not answer, for which pip would wait for minutes."""
    try:
        with urllib.request.urlopen(f"{CPU_WHEELS}/torch/", timeout=10):
            return ["--extra-index-url", CPU_WHEELS]
    except OSError:
        return []


def _make(staging: Path) -> None:
    venv.EnvBuilder(symlinks=True, with_pip=True).create(staging)
    words = [staging / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *_cpu_wheels()]
    result = processes.run([*map(str, words), "-r", str(REQUIREMENTS)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if result.returncode:
        said = [line for line in result.stderr.splitlines() if line.startswith("ERROR: ")] or [f"exit code {result.returncode}"]
        raise UserError(f"the peers' environment cannot be made ({said[-1][:300]}); --peer_python takes one that exists, --only leaves the peers out")
