"""Reader of TensorBoard's files by TensorBoard itself, run in the environment of `scripts/install --trackers`.

Prints JSON for a folder: `accumulated`, what TensorBoard's Python reader finds, and `served`, what its server answers, which reads the files by
another program; in each the scalars of each run by tag. Beside them what the server has of curves, histograms, texts and hyper-parameters.
"""

import json
import logging
import sys
import time
import urllib.parse
import urllib.request

from tensorboard import default, program
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.util.tensor_util import make_ndarray

_LIMIT_S = 60.0
_STATUSES = ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"]


def accumulated(folder):
    """Return the scalars that the Python reader finds, by run and tag: lists of step and value."""
    found = EventMultiplexer(tensor_size_guidance={"scalars": 0})
    found.AddRunsFromDirectory(folder)
    found.Reload()
    return {
        run: {
            tag: [[event.step, make_ndarray(event.tensor_proto).item()] for event in found.Tensors(run, tag)]
            for tag in tags["tensors"]
            if found.SummaryMetadata(run, tag).plugin_data.plugin_name == "scalars"
        }
        for run, tags in found.Runs().items()
    }


class Served:
    """The answers of a server."""

    def __init__(self, url):
        self._url = f"{url}data/plugin/"

    def get(self, path, **words):
        """Return an answer to GET."""
        with urllib.request.urlopen(f"{self._url}{path}?{urllib.parse.urlencode(words)}") as answer:
            return json.load(answer)

    def post(self, path, **content):
        """Return an answer to POST."""
        request = urllib.request.Request(f"{self._url}{path}", json.dumps(content).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def points(self, plugin, path):
        """Return the points of a plugin by run and tag, without their times."""
        tags = {run: list(tags) for run, tags in self.get(f"{plugin}/tags").items() if tags}
        return {run: {tag: [point[1:] for point in self.get(path, run=run, tag=tag)] for tag in names} for run, names in tags.items()}

    def rows(self):
        """Return the table of hyper-parameters: the columns, those that are shown first, and for each run its parameters, metrics and status."""
        experiment = self.post("hparams/experiment", experimentName="", hparamsLimit=1000)
        slice = {"allowedStatuses": _STATUSES, "colParams": _columns(experiment), "startIndex": 0, "sliceSize": 9}
        groups = self.post("hparams/session_groups", experimentName="", **slice)
        return {
            "columns": [info["name"] for info in experiment.get("hparamInfos", ())],
            "rows": {
                group["name"]: {
                    "parameters": group["hparams"],
                    "status": group["sessions"][0]["status"],
                    "metrics": {one["name"]["tag"]: one["value"] for one in group["metricValues"]},
                }
                for group in groups["sessionGroups"]
            },
        }


def _columns(experiment):
    return [{"metric": {"group": info["name"]["group"], "tag": info["name"]["tag"]}} for info in experiment.get("metricInfos", ())]


def main(folder):
    logging.disable()
    wanted = accumulated(folder)
    board = program.TensorBoard(plugins=default.get_plugins())
    board.configure(argv=["tensorboard", "--logdir", folder, "--port", "0"])
    served, deadline = Served(board.launch()), time.monotonic() + _LIMIT_S
    while (scalars := served.points("scalars", "scalars/scalars")) != wanted and time.monotonic() < deadline:  # it reads them in the background
        time.sleep(0.2)
    curves = {
        run: {tag: served.get("pr_curves/pr_curves", run=run, tag=tag)[run] for tag in tags} for run, tags in served.get("pr_curves/tags").items()
    }
    histograms = served.points("histograms", "histograms/histograms")
    texts = {run: {tag: served.get("text/text", run=run, tag=tag) for tag in tags} for run, tags in served.get("text/tags").items()}
    found = {"accumulated": wanted, "served": scalars, "curves": curves, "histograms": histograms, "texts": texts, "table": served.rows()}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
