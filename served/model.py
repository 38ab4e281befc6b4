"""The model of a version in a Triton model repository, for Triton's Python backend. `dlrm.py --mode export` copies this file there.

Triton runs it in the environment that `config.pbtxt` names; what it does is in `served.backend` of the project that `config.pbtxt` names.
"""

import importlib
import json
import sys
from pathlib import Path


class TritonPythonModel:
    """What Triton looks for."""

    def initialize(self, args):
        """Load the model; raises where that cannot be, and Triton says why."""
        config = json.loads(args["model_config"])
        sys.path.insert(0, config["parameters"]["PROJECT_PATH"]["string_value"])
        version = Path(__file__).resolve().parent
        triton = importlib.import_module("triton_python_backend_utils")  # there is one in Triton's process only
        self._backend = importlib.import_module("served.backend").Backend(triton, version, config, args)

    def execute(self, requests):
        """An answer for each request."""
        return self._backend.execute(requests)

    def finalize(self):
        """End what runs beside the requests."""
        self._backend.close()
