"""A fake of the Triton server for tests of the code around it: it is ready at once and serves nothing."""

import os
import sys
from pathlib import Path

from serving.triton_install import PACKAGE, VERSION

_PROGRAM = """#!{python} -I
import http.server, os, signal, sys, threading, time
from pathlib import Path

here = Path({folder!r})
flags = dict(word.lstrip("-").split("=", 1) for word in sys.argv[1:])
with (here / "starts").open("a") as starts:
    starts.write(f"{{os.getpid()}} {{flags['http-port']}} {{flags['grpc-port']}} {{flags['metrics-port']}}\\n")
def lost(service):
    sys.exit(f"E1123 07:22:26.690200 1 main.cc:293] \\"failed to start {{service}} service: Unavailable - Socket '127.0.0.1:1' already in use \\"")

taken = here / "taken"
if taken.exists() and taken.read_text():
    taken.write_text(taken.read_text()[1:])
    lost("HTTP")
fails = here / "fails"
if fails.exists() and fails.read_text() and len((here / "starts").read_text().splitlines()) > 1:
    fails.write_text(fails.read_text()[1:])
    lost("HTTP")
if (here / "slow").exists():
    def end(number, frame):
        (here / "ending").touch()
        time.sleep(1)
        sys.exit(0)
    signal.signal(signal.SIGTERM, end)
    time.sleep(600)

crash = here / "crash"
def crashes():
    crash.write_text(crash.read_text()[1:])
    print("E1123 07:22:26.690200 1 server.cc:241] \\"CudaDriverHelper has not been initialized.\\"")
    print("terminate called after throwing an instance of 'boost::interprocess::lock_exception'\\n  what():  boost::interprocess::lock_exception")
    print("Signal (6) received.\\n 0# 0x0 in tritonserver\\n", flush=True)
    os.abort()

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
        if self.path == "/metrics" and crash.exists() and crash.read_text():  # after this answer it counts as ready
            threading.Timer(0.5, crashes).start()

http_server = http.server.HTTPServer(("127.0.0.1", int(flags["http-port"])), Handler)
threading.Thread(target=http_server.serve_forever, daemon=True).start()
late = here / "late"
if late.exists():
    late.unlink()
    time.sleep(0.5)
    lost("Metrics")
http.server.HTTPServer(("127.0.0.1", int(flags["metrics-port"])), Handler).serve_forever()
"""


class FakeServer:
    """The fake program in a cache folder, at the real server's place, and a repository for it.

    Args:
        folder: for the program, its repository and files that control it. `taken`: as many starts as the file has letters find a port in use.
            `late`: one start finds the port of the metrics in use when it already answers on the others. `slow`: the server is never ready and
            takes a second to end. `crash`: as many starts as the file has letters abort soon after they are ready. `fails`: as many starts after the
            first fail.
    """

    def __init__(self, folder: Path):
        self.folder, self.repository = folder, folder / "r"
        (self.repository / "m/1").mkdir(parents=True)
        (self.repository / "m/config.pbtxt").write_text('backend: "python"\n')
        (self.repository / "m/1/model.py").write_text("")
        version = "{}.{}".format(*sys.version_info)
        program = folder / f"cache/triton-{PACKAGE}-{VERSION}-python{version}/pytriton/tritonserver/bin/tritonserver"
        program.parent.mkdir(parents=True)
        program.write_text(_PROGRAM.format(python=sys.executable, folder=str(folder)))
        program.chmod(0o755)
        self.environment = os.environ | {"DLRM_CACHE_DIR": str(folder / "cache")}

    @property
    def starts(self) -> list[list[int]]:
        """The process id and the ports of HTTP, gRPC and metrics of each start."""
        path = self.folder / "starts"
        return [[int(word) for word in line.split()] for line in path.read_text().splitlines()] if path.exists() else []
