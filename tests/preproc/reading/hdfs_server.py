"""A store over HTTP for tests: the part of WebHDFS that fsspec's client uses, on the loopback interface, with files in memory."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, unquote, urlsplit


class _Handler(BaseHTTPRequestHandler):
    _PREFIX = "/webhdfs/v1"

    def log_message(self, *words: object) -> None:
        """Log nothing."""

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        path, asked = unquote(parts.path).removeprefix(self._PREFIX), {key: value[0] for key, value in parse_qs(parts.query).items()}
        content, files = self.rfile.read(int(self.headers.get("Content-Length") or 0)), self.server.files
        inside = f"{path.rstrip('/')}/"
        folder = any(name.startswith(inside) for name in files)
        match asked["op"]:
            case "CREATE" | "APPEND" if "data" not in asked:
                self._answer(307, {}, f"http://{self.headers['Host']}{self.path}&data=true")
            case "CREATE" | "APPEND":
                files[path] = (files[path] if asked["op"] == "APPEND" else b"") + content
                self._answer(201 if asked["op"] == "CREATE" else 200, {})
            case "MKDIRS":
                self._answer(200, {"boolean": True})
            case "GETFILESTATUS" if path in files or folder:
                self._answer(200, {"FileStatus": self._status("", path)})
            case "LISTSTATUS" if path in files or folder:
                names = sorted({name.removeprefix(inside).split("/")[0] for name in files if name.startswith(inside)})
                self._answer(200, {"FileStatuses": {"FileStatus": [self._status(name, inside + name) for name in names]}})
            case "OPEN" if path in files:
                first = int(asked.get("offset", 0))
                self._answer(200, files[path][first : first + int(asked["length"])] if "length" in asked else files[path][first:])
            case "DELETE":
                self._answer(200, {"boolean": files.pop(path, None) is not None})
            case _:
                self._answer(404, {"RemoteException": {"exception": "FileNotFoundException", "message": path}})

    do_GET = do_PUT = do_POST = do_DELETE = _serve

    def _status(self, suffix: str, path: str) -> dict:
        files = self.server.files
        return {"pathSuffix": suffix, "type": "FILE" if path in files else "DIRECTORY", "length": len(files.get(path, b"")), "modificationTime": 0}

    def _answer(self, code: int, content: dict | bytes, location: str | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        if location is not None:
            self.send_header("Location", location)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def hdfs() -> Iterator[tuple[str, dict[str, bytes]]]:
    """Run a server for the time of a `with` block; yield the URL of its root, and its files by their paths."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.files = {}
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"webhdfs://127.0.0.1:{server.server_address[1]}", server.files
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
