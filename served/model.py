"""The model file of a version for Triton's Python backend. `dlrm.py --mode export` copies this file into the version's folder.

Triton runs it in the environment that `config.pbtxt` names. The work is done by `served.backend`, in the project folder that `config.pbtxt` names.
"""

import importlib
import json
import sys
from pathlib import Path


class TritonPythonModel:
    """The class that Triton looks for."""

    def initialize(self, args):
        """Load the model; an error raised here is reported by Triton."""
        config = json.loads(args["model_config"])
        sys.path.insert(0, config["parameters"]["PROJECT_PATH"]["string_value"])
        version = Path(__file__).resolve().parent
        triton = importlib.import_module("triton_python_backend_utils")  # exists only in Triton's process
        self._backend = importlib.import_module("served.backend").Backend(triton, version, config, args)

    def execute(self, requests):
        """Return a response for each request."""
        return self._backend.execute(requests)

    def finalize(self):
        """Stop the background thread."""
        self._backend.close()
