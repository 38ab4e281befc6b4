"""TensorBoard's plots of single lines of the log: curves of an evaluation, the run as text, and its hyper-parameters."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from tensorboardX import summary
from tensorboardX.proto.api_pb2 import DataType, Experiment, MetricInfo, MetricName, Status
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo
from tensorboardX.proto.summary_pb2 import Summary, SummaryMetadata

from report.tensorboard.scalars import FINAL
from utils.config.config import OPTIONS
from utils.config.options import TRAIN

_OF_REPORTING = {"mode", "print_freq", "log_steps", "log_norms", "verbose", "profiler_start_step", "profiled_rank", "resume"}
_OF_RUN = ("program", "model", "workers", "device", "dtype")
_DIFFERS = b"\x38\x01"  # field 7 of HParamInfo, `differs`: TensorBoard shows such columns first; the description in tensorboardX lacks it
_SHOWN = 60  # entries of a list in the text of a run


def plots_of(data: Mapping[str, Any]) -> Iterator[Summary]:
    """Yield the curves of a line "EVALUATION": precision and recall, scores by class, calibration; none where the line lacks what they need."""
    name = FINAL if data.get("final") else data["split"]
    if histogram := data.get("histogram"):
        yield _precision_and_recall(name, histogram)
        edges = np.linspace(histogram["low"], histogram["high"], len(histogram["negative"]) + 1)
        for kind in ("negative", "positive"):
            yield _histogram(f"{name}/logits_of_{kind}s", edges, histogram[kind])
    if deciles := [decile for decile in data.get("deciles") or () if decile[0]]:
        edges = np.array([deciles[0][3], *(decile[4] for decile in deciles)])
        yield _histogram(f"{name}/deciles/clicks", edges, [decile[1] for decile in deciles])
        yield _histogram(f"{name}/deciles/predicted_clicks", edges, [decile[2] for decile in deciles])


def text_of(tag: str, data: Mapping[str, Any]) -> Summary:
    """Return data as a table in Markdown, for TensorBoard's text page."""
    rows = (f"| {_plain(name)} | {_plain(_short(value))} |" for name, value in data.items())
    return summary.text(tag, "\n".join(["| | |", "|---|---|", *rows]))


def hyper_parameters(flags: Mapping[str, Any], run: Mapping[str, Any], started: float) -> Summary:
    """Return the hyper-parameters of a run: the flags that its mode reads, without those of files and reports, and facts of its line "RUN"."""
    info = SessionStartInfo(start_time_secs=started)
    for name, value in _parameters(flags, run).items():
        if isinstance(value, bool):
            info.hparams[name].bool_value = value
        elif isinstance(value, int | float):
            info.hparams[name].number_value = value
        else:
            info.hparams[name].string_value = _short(value)
    return _hparams("session_start_info", HParamsPluginData(session_start_info=info))


def end_of_session(flags: Mapping[str, Any], run: Mapping[str, Any], metrics: Iterable[str], ended: float) -> Iterator[Summary]:
    """Yield the mark of a run that is complete, and the columns of TensorBoard's table of hyper-parameters.

    Without these columns, TensorBoard 2.21 shows no metrics of a run that lies in the folder of `--logdir` itself.
    """
    end = SessionEndInfo(status=Status.STATUS_SUCCESS, end_time_secs=ended)
    yield _hparams("session_end_info", HParamsPluginData(session_end_info=end))
    columns = Experiment(metric_infos=[MetricInfo(name=MetricName(tag=tag)) for tag in metrics])
    for name, value in _parameters(flags, run).items():
        column = columns.hparam_infos.add(name=name, type=_type(value))
        if name in OPTIONS and _plainly(value) != _plainly(OPTIONS[name].default):
            column.MergeFromString(_DIFFERS)
    yield _hparams("experiment", HParamsPluginData(experiment=columns))


def _parameters(flags: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    mode = run.get("mode") or TRAIN
    return {name: value for name, value in flags.items() if _is_parameter(name, mode)} | {name: run.get(name) for name in _OF_RUN}


def _type(value: Any) -> int:
    if isinstance(value, bool):
        return DataType.DATA_TYPE_BOOL
    return DataType.DATA_TYPE_FLOAT64 if isinstance(value, int | float) else DataType.DATA_TYPE_STRING


def _plainly(value: Any) -> Any:
    """Return a value as JSON has it."""
    return json.loads(json.dumps(value))


def _precision_and_recall(name: str, histogram: Mapping[str, Any]) -> Summary:
    """Return the curve over the edges of the bins. TensorBoard counts its thresholds from 0 to 1, so that they say where an edge lies among them."""
    positive, negative = ([*_from_above(histogram[kind]), 0] for kind in ("positive", "negative"))
    tp, fp = np.array(positive, float), np.array(negative, float)
    precision, recall = tp / np.maximum(tp + fp, 1), tp / max(tp[0], 1)
    made = summary.pr_curve_raw(f"{name}/precision_and_recall", tp, fp, fp[0] - fp, tp[0] - tp, precision, recall, len(tp))
    low, high = histogram["low"], histogram["high"]
    made.value[0].metadata.summary_description = f"Threshold t is the logit {low:.6g} + t x {high - low:.6g}: the edges of {len(tp) - 1} bins."
    return made


def _from_above(counts: list[int]) -> list[int]:
    """Return for each bin the count of samples in it and in those above it."""
    return np.cumsum(counts[::-1])[::-1].tolist()


def _histogram(tag: str, edges: np.ndarray, counts: list[float]) -> Summary:
    middles, weights = (edges[1:] + edges[:-1]) / 2, np.array(counts, float)
    of_squares = float(weights @ middles**2)
    return summary.histogram_raw(tag, edges[0], edges[-1], weights.sum(), float(weights @ middles), of_squares, edges[1:].tolist(), weights.tolist())


def _is_parameter(name: str, mode: str) -> bool:
    modes = OPTIONS[name].metadata["modes"] if name in OPTIONS else (None,)
    return (not modes or mode in modes) and name not in _OF_REPORTING and (not name.endswith("_path") or name == "dataset_path")


def _short(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list) and len(value) > _SHOWN:
        return f"{_short(value[:_SHOWN])}, … ({len(value)} in all)"
    if isinstance(value, list) and all(isinstance(entry, str | int | float) for entry in value):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _plain(text: str) -> str:
    """Return a text that Markdown shows as it stands in a table's cell."""
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>()#+-.!|~&" else " " if letter.isspace() else letter for letter in text)


def _hparams(name: str, data: HParamsPluginData) -> Summary:
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="hparams", content=data.SerializeToString()))
    return Summary(value=[Summary.Value(tag=f"_hparams_/{name}", metadata=metadata)])
