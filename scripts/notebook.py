"""Execute docs/notebook.ipynb in a temporary folder and store it with its output.

python scripts/notebook.py                         # docs/notebook.ipynb itself
python scripts/notebook.py --output COPY.ipynb     # leave it as it is, and store the executed one elsewhere
"""

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbclient
import nbformat

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "docs/notebook.ipynb"
CELL_SECONDS = 300
_OF_THE_MACHINE = re.compile(r"<.* at 0x[0-9a-f]+>")  # the text of an object without one of its own


def executed(notebook: Any, folder: Path) -> Any:
    """Execute a notebook's cells in a folder by this Python and return it with their output.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised an error.
    """
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    os.environ |= {"PYTHONPATH": paths, "JUPYTER_DATA_DIR": str(folder / ".jupyter"), "IPYTHONDIR": str(folder / ".ipython")}
    os.environ |= {"JUPYTER_RUNTIME_DIR": str(folder / ".runtime"), "MPLCONFIGDIR": str(folder / ".matplotlib")}
    quiet = ["--IPKernelApp.log_level=ERROR"]  # no warning that the kernel listens on the loopback without encryption
    options = {"timeout": CELL_SECONDS, "record_timing": False, "coalesce_streams": True, "extra_arguments": quiet}
    client = nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(folder)}}, **options)
    client.execute()
    return tidied(notebook)


def tidied(notebook: Any) -> Any:
    """Remove what depends on the machine that executed a notebook: versions, and the text of objects that have none of their own."""
    notebook.metadata.language_info = {"name": "python"}
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if _OF_THE_MACHINE.search(output.get("data", {}).get("text/plain", "")):
                output.data["text/plain"] = "(a picture)"
    return notebook


def main() -> int:
    """Execute and store."""
    parser = argparse.ArgumentParser(prog="notebook", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--output", type=Path, default=NOTEBOOK, help="file for the executed notebook (default: docs/notebook.ipynb)")
    output = parser.parse_args().output.absolute()
    if not output.parent.is_dir():
        sys.exit(f"notebook: error: --output {output}: its folder does not exist")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = executed(notebook, Path(folder))
        except nbclient.exceptions.CellExecutionError as error:
            sys.exit(f"notebook: error: a cell of {NOTEBOOK.name} failed; nothing is stored\n{error}")
    part = output.with_name(f".{output.name}.part")
    part.write_text(nbformat.writes(result) + "\n")
    os.replace(part, output)
    print(f"{output}: {len(result.cells)} cells, {output.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
