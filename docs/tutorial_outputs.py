"""Runs the tutorials and writes what each cell prints behind it, for those who read them in the repository.

python docs/tutorial_outputs.py [PAGE ...]      (`make tutorials` runs it for all)
The site leaves these outputs out: its build runs the cells itself.
"""

import base64
import hashlib
import os
import re
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent
PAGES = sorted((DOCS / "tutorials").glob("*.md"))
CELL = re.compile(r"^```\{code-cell\}\n((?::tags:[^\n]*\n)?)(.*?)^```\n", re.MULTILINE | re.DOTALL)
OUTPUT = re.compile(r"\n<!-- output of (\w+) -->\n(.*?)<!-- end of output -->\n", re.DOTALL)
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def cells(page: str) -> list[str]:
    """The programs of a page."""
    return [program for _, program in CELL.findall(page)]


def mark(program: str) -> str:
    """What an output says about the cell that it came from."""
    return hashlib.sha256(program.encode()).hexdigest()[:8]


def without_outputs(page: str) -> str:
    """The page as it is written by hand."""
    return OUTPUT.sub("", page)


def written(page: str, name: str) -> str:
    """`page` with the outputs of its cells, which are run one after the other in an empty folder."""
    import nbclient
    import nbformat.v4

    page = without_outputs(page)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(program) for program in cells(page)])
    with tempfile.TemporaryDirectory() as folder:
        nbclient.NotebookClient(
            notebook, kernel_name="python3", iopub_timeout=600, resources={"metadata": {"path": folder}}
        ).execute()
    shown = iter(notebook.cells)

    def with_output(match: re.Match[str]) -> str:
        program, blocks = match[2], _blocks(next(shown).outputs, f"{name}-{mark(match[2])}")
        return match[0] + (f"\n<!-- output of {mark(program)} -->\n{blocks}<!-- end of output -->\n" if blocks else "")

    return CELL.sub(with_output, page)


def _blocks(outputs: list, name: str) -> str:
    text, images = "", ""
    for output in outputs:
        if output.get("name") == "stderr":  # progress bars
            continue
        data = output.get("data", {})
        if "image/png" in data:
            path = DOCS / "tutorials" / "output" / f"{name}.png"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(base64.b64decode(data["image/png"]))
            images += f"![what the cell draws](output/{path.name})\n"
        else:
            text += output.get("text", data.get("text/plain", ""))
    text = COLOURS.sub("", text).rstrip().lstrip("\n")  # a progress bar that ends may leave an empty line, or none
    return (f"```text\n{text}\n```\n" if text else "") + images


def main() -> None:
    """Write the outputs of the named pages, or of all."""
    root = str(DOCS.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore"}
    for path in [Path(name) for name in sys.argv[1:]] or PAGES:
        page = written(path.read_text(encoding="utf-8"), path.stem)
        used = set(re.findall(r"\(output/([^)]+)\)", page))
        for image in (path.parent / "output").glob(f"{path.stem}-*.png"):
            if image.name not in used:
                image.unlink()
        path.write_text(page, encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
