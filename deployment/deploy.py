"""Write a Triton model repository from a checkpoint, with the flags of NVIDIA's command of this name.

    python -m deployment.deploy --checkpoint-dir CHECKPOINT --model-repository-path REPOSITORY --model-name dlrm --dense-format tf-savedmodel \\
        --sparse-format tf-savedmodel --model-precision fp32 --cpu

It is `dlrm.py --mode export`. The repository holds the model NAME, of Triton's Python backend, and the same model in the format of --dense-format, as
NAME_savedmodel or NAME_onnx. Each is one model that looks up and computes: there is no ensemble of a sparse and a dense model. Inputs and outputs:
`numerical` and `categorical`, `probability`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from run.command import do
from utils.commands import run_command
from utils.config.flags import Parser
from utils.config.serving import CPU, FLOAT16, FLOAT32, GPU, ONNX, SAVEDMODEL, TRITON
from utils.errors import UserError
from utils.flag_names import Translated

NAME = "deployment.deploy"
TF_SAVEDMODEL = "tf-savedmodel"
_DENSE = {TF_SAVEDMODEL: SAVEDMODEL, ONNX: ONNX}
_REFUSED_DENSE = {
    "trt": "TensorRT plans are not written",
    "torchscript": "TorchScript is not written",
    "ts-script": "TorchScript is not written",
    "ts-trace": "TorchScript is not written",
}
_PRECISIONS = {"fp32": FLOAT32, "fp16": FLOAT16}
_NO_EFFECT = {
    "sparse-model-name": "one model looks up and computes",
    "dense-model-name": "one model looks up and computes",
    "trt-optimal-batch-size": "there is no TensorRT here",
    "memory-threshold-gb": "tables are mapped from files in host memory",
    "num_gpus": "the server runs --engine-count-per-device instances on each of its GPUs",
    "fused_embedding": "there is one embedding implementation",
    "hps_gpucacheper": "tables are mapped from files in host memory",
    "server-url": "a server that runs loads the model by python -m serving.publish --url",
    "load-model": "a server that runs loads the model by python -m serving.publish --url",
    "load-model-timeout-s": "a server that runs loads the model by python -m serving.publish --url",
    "verbose": "there is one level of output",
}
_SWITCHES = ("fused_embedding", "load-model", "verbose")
_NAMES = {  # the export's flags -> NVIDIA's, for messages
    "restore_checkpoint_path": "checkpoint-dir",
    "export_path": "model-repository-path",
    "model_name": "model-name",
    "model_version": "model-version",
    "max_batch_size": "max-batch-size",
    "instances": "engine-count-per-device",
    "precision": "model-precision",
    f"formats {SAVEDMODEL}": f"dense-format {TF_SAVEDMODEL}",
    f"formats {ONNX}": f"dense-format {ONNX}",
    "device cpu": "cpu",
    "device gpu": "cpu is missing",
}


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. Raises UserError."""
    parser = Parser(prog=NAME, description=__doc__)
    add = parser.add_argument
    add("--checkpoint-dir", type=Path, metavar="FOLDER", help="checkpoint of this project: a folder of steps, or one step (required)")
    add("--model-repository-path", type=Path, metavar="FOLDER", help="model repository, created if missing (required)")
    add("--model-name", required=True, metavar="NAME", help="name of the model")
    add("--model-version", default="1", metavar="N", help="version; an existing one is never replaced (default: %(default)s)")
    add("--dense-format", required=True, metavar="|".join(_DENSE), help="format that is written beside the model of the Python backend")
    add("--sparse-format", required=True, metavar=TF_SAVEDMODEL, help="the tables are a part of each model")
    add("--model-precision", required=True, choices=_PRECISIONS, help="precision of tables and matrix products; on a CPU fp16 is of the tables only")
    add("--max-batch-size", default="32768", metavar="N", help="maximum samples of a request (default: %(default)s)")
    add("--engine-count-per-device", default="1", metavar="N", help="instances of the model; they share the tables (default: %(default)s)")
    add("--cpu", action="store_true", help="the server computes on its CPU (default: on its GPU)")
    add("--monolithic", action="store_true", help="not accepted: each model here is one model")
    for name, reason in _NO_EFFECT.items():
        add(f"--{name}", help=f"no effect: {reason}", **({"action": "store_true"} if name in _SWITCHES else {"metavar": "VALUE"}))
    return parser.parse_strictly(argv)


def export_words(args: argparse.Namespace) -> list[str]:
    """Return the words of the export's command line. Raises UserError for formats that are not written here, and for missing folders."""
    for flag in ("checkpoint-dir", "model-repository-path"):
        if getattr(args, flag.replace("-", "_")) is None:
            raise UserError(f"--{flag} is missing")
    if args.monolithic:
        raise UserError("--monolithic: each model here is one model, under --model-name, so drop --monolithic")
    if args.dense_format not in _DENSE:
        why = _REFUSED_DENSE.get(args.dense_format, "unknown format")
        raise UserError(f"--dense-format {args.dense_format}: {why}; expected {' or '.join(_DENSE)}")
    if args.sparse_format != TF_SAVEDMODEL:
        why = "there is no HPS here, tables are mapped from files in host memory" if args.sparse_format == "hps" else "unknown format"
        raise UserError(f"--sparse-format {args.sparse_format}: {why}; expected {TF_SAVEDMODEL}")
    folder = args.checkpoint_dir
    if (folder / "sparse").is_dir() and not (folder / "manifest.json").exists():
        convert = f"python -m preproc.nvidia_checkpoint --nvidia_checkpoint {folder} --dataset_path DATASET --save_checkpoint_path CHECKPOINT"
        raise UserError(f"--checkpoint-dir {folder}: holds a checkpoint of NVIDIA's application; convert it first: {convert}")
    values = {
        "mode": "export",
        "restore_checkpoint_path": folder,
        "export_path": args.model_repository_path,
        "model_name": args.model_name,
        "model_version": args.model_version,
        "formats": f"{TRITON},{_DENSE[args.dense_format]}",
        "precision": _PRECISIONS[args.model_precision],
        "max_batch_size": args.max_batch_size,
        "max_queue_delay_us": 0,  # NVIDIA's ensemble answers each request at once
        "instances": args.engine_count_per_device,
        "device": CPU if args.cpu else GPU,
        "cpu": args.cpu,
        "log_path": "",
    }
    return [f"--{name}={value}" for name, value in values.items()]


def ineffective(args: argparse.Namespace) -> list[str]:
    """Return a line for each given flag without effect."""
    return [f"--{name} has no effect: {reason}" for name, reason in _NO_EFFECT.items() if getattr(args, name.replace("-", "_"))]


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the flags and export. Raises UserError as the export does, in the flags of this command."""
    args = parse_arguments(sys.argv[1:] if argv is None else argv)
    words, lines = export_words(args), ineffective(args)
    do(words, NAME, __doc__, translate=lambda arguments: Translated(list(arguments), lines, _NAMES))


if __name__ == "__main__":
    sys.exit(run_command(main, NAME))
