"""Run all checks of a first session on one GPU, in 45 minutes: the device, its traps, the step against the CPU's, speed, checkpoints, Horovod.

    ./scripts/gpu_first_run OUT             on a machine with a GPU
    ./scripts/gpu_first_run OUT --dry       rehearses it on a CPU, with small sizes

Every part is a process of its own with a time limit; when it has ended, its result is written to OUT as JSON, so that a later failure cannot lose it.
OUT is a new folder. After `--minutes` no further part is started. The exit code is 1 if a part failed or was not started.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.parts import DRY, ROOT, Command, Sizes, parts
from utils.cluster.processes import Guard, of_group, send
from utils.commands import run_command
from utils.config.flags import Parser
from utils.errors import UserError

TAIL = 4000  # number of characters of the output's end that a result keeps


def main() -> None:
    """Run all parts. Raises SystemExit with 1 if a part failed or was not started."""
    parser = Parser(prog="gpu_first_run", description=__doc__)
    parser.add_argument("out", metavar="OUT", help="new folder for the results")
    parser.add_argument("--dry", action="store_true", help="rehearse with small sizes, without a GPU")
    parser.add_argument("--minutes", type=float, default=45, help="minutes for all parts (default: 45)")
    parser.add_argument("--only", metavar="PART,PART,…", help="parts to run (default: all)")
    given = parser.parse_args()
    sizes, only = DRY if given.dry else Sizes(), given.only.split(",") if given.only else None
    out = Path(given.out).absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: already exists; name a new folder")
    chosen = [command for command in parts(out, sizes) if only is None or command.name in only]
    if only and (unknown := set(only) - {command.name for command in chosen}):
        raise UserError(f"--only {','.join(sorted(unknown))}: expected some of {', '.join(command.name for command in parts(out, sizes))}")
    out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    failed, begun = [], time.monotonic()
    for number, command in enumerate(chosen):
        if time.monotonic() - begun > 60 * given.minutes:
            failed += [command.name]
            print(f"{command.name}: not started, because the {given.minutes:g} minutes (--minutes) are over", flush=True)
            continue
        result = run(command, out, number, {"DLRM_BUILD_FOR": "GPU"} if given.dry and "cpu" not in command.name.lower() else {})
        write(out / f"{number:02}_{command.name}.json", result)
        failed += [command.name] if result["code"] else []
        print(f"{command.name}: {'failed' if result['code'] else 'done'} in {result['seconds']:.1f} s {brief(result['figures'])}", flush=True)
    if failed:
        print(f"failed or not started: {', '.join(failed)}; see the files in {out}")
        raise SystemExit(1)


def run(command: Command, out: Path, number: int, environment: Mapping[str, str]) -> dict[str, Any]:
    """Run a part to its end or time limit, then end its process tree; its outputs stay in OUT.

    If this program is killed, the process tree ends too.
    """
    streams = [out / f"{number:02}_{command.name}.{kind}" for kind in ("out", "err")]
    path, packages = (os.environ.get(name) for name in ("PATH", "PYTHONPATH"))  # where TensorFlow is not installed, PYTHONPATH may name it
    every = os.environ | {"PATH": os.pathsep.join(filter(None, [str(Path(sys.executable).parent), path]))}
    every |= {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), packages]))}
    begun, timed_out = time.monotonic(), False
    guard = Guard()
    every |= {**environment, **command.environment}
    with streams[0].open("w") as stdout, streams[1].open("w") as stderr:
        process = guard.start(command.words, every, cwd=out, stdout=stdout, stderr=stderr)
        try:
            code = process.wait(command.limit_s)
        except subprocess.TimeoutExpired:
            code, timed_out = 124, True
        finally:  # also runs where SIGTERM ends this program
            end(process)
            guard.kill()
            guard.end()
    said = [path.read_text(errors="replace") for path in streams]
    placed = {device: said[1].count(f"device:{device}:0") for device in ("GPU", "CPU")}
    return {
        "name": command.name,
        "command": list(command.words),
        "environment": dict(command.environment),
        "code": code,
        "timed_out": timed_out,
        "seconds": time.monotonic() - begun,
        "figures": figures(command, said[0]),
        "placed_operations": placed if any(placed.values()) else None,
        "out": said[0][-TAIL:],
        "err": said[1][-TAIL:],
    }


def end(process: subprocess.Popen) -> None:
    """End a process and its process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not (found := of_group(process.pid)):
            return
        send(number, found)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            continue


def figures(command: Command, said: str) -> dict[str, Any] | None:
    """Return the figures of a part: a probe's last line of JSON, or the last line of the log of `dlrm.py`."""
    if command.log is None:
        lines = [line for line in said.splitlines() if line.startswith("{")]
        return json.loads(lines[-1]) if lines else None
    if not command.log.is_file():
        return None
    lines = [line.partition("DLLL ")[2] for line in command.log.read_text().splitlines()]
    found = [json.loads(line) for line in lines if line]
    return found[-1].get("data") if found else None


def brief(found: Mapping[str, Any] | None) -> str:
    """Return the figures as a short line."""
    text = json.dumps(found) if found else ""
    return text if len(text) <= 300 else f"{text[:300]} …"


def write(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result atomically, so that its file is complete or absent."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result, indent=1) + "\n")
    partial.rename(path)


if __name__ == "__main__":
    sys.exit(run_command(main, "gpu_first_run"))
