"""Execute the notebooks of docs/notebooks and write them with their outputs.

    python docs/tools/notebooks.py [NAME...]

Each notebook is a Python file in Jupytext's percent format, which people read and review, and the
`.ipynb` that this makes of it (extra `docs`, and `xla` for some). Jupytext reads the
cells and nbclient runs them: both belong to the Jupyter project's own tool chain, and neither needs
a server. Times, ids and versions are left out, so that the same outputs give the same bytes.
"""

import os
import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"


def execute(source: Path) -> None:
    """Write the executed notebook beside its source."""
    notebook = jupytext.read(source)
    setup = nbformat.v4.new_code_cell("%config InlineBackend.figure_formats = ['png']")
    notebook.cells.insert(0, setup)
    os.environ["IPYKERNEL_CELL_NAME"] = source.name  # of code lines, in place of a cell's hash
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    notebook.cells.pop(0)
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3",
                                        "language": "python"}}  # fmt: skip
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
            for output in cell.outputs:
                if "execution_count" in output:
                    output.execution_count = None
    nbformat.write(notebook, source.with_suffix(".ipynb"))


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.py")):
        if len(sys.argv) == 1 or path.stem in sys.argv[1:]:
            execute(path)
            print(path.with_suffix(".ipynb"))
