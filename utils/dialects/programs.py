"""The training programs, each with its defaults that differ from dlrm.py's and the translation of its command line."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from utils.dialects import wide_and_deep as wide_and_deep_flags
from utils.dialects.command_line import Translation


class Program(NamedTuple):
    """A program's arguments of `utils.dialects.command_line.parse`."""

    defaults: Mapping[str, Any] = MappingProxyType({})
    translate: Translation | None = None


_DCNV2 = {"interaction": "cross", "optimizer": "adam", "learning_rate": 0.0001, "warmup_steps": 100}
_FM = {"interaction": "fm", "optimizer": "adam", "learning_rate": 0.001, "warmup_steps": 100, "top_mlp_dims": (1,)}
_FM |= {"embedding_initializer": "normal", "embedding_initializer_scale": 0.01}
_FINALMLP = {key: value for key, value in _FM.items() if key != "top_mlp_dims"} | {"interaction": "finalmlp", "num_heads": 10}
_DEEPFM = _FM | {"top_mlp_dims": (400, 400, 400, 1)}
_WIDE_AND_DEEP = Program(wide_and_deep_flags.DEFAULTS, wide_and_deep_flags.translated)
PROGRAMS: Mapping[str, Program] = MappingProxyType(
    {
        "dlrm.py": Program(),
        "dcnv2.py": Program(MappingProxyType(_DCNV2)),
        "fm.py": Program(MappingProxyType(_FM)),
        "deepfm.py": Program(MappingProxyType(_DEEPFM)),
        "finalmlp.py": Program(MappingProxyType(_FINALMLP)),
        "wide_and_deep.py": _WIDE_AND_DEEP,
        "main.py": _WIDE_AND_DEEP,
    }
)


def is_program(word: str) -> bool:
    """Return whether a word of a command is the path of a training script."""
    return Path(word).name in PROGRAMS
