"""Sphinx: pages are Markdown, tutorials run while the site is built, and the reference comes from the docstrings."""

import copy
import json
import os
import re
import resource
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# tqdm's advice to notebooks that miss a widget: it would show a path of this machine on the pages.
os.environ.setdefault("PYTHONWARNINGS", "ignore:IProgress not found")

import myst_nb.core.render  # noqa: E402
from tutorial_outputs import without_outputs  # noqa: E402

import tessera  # noqa: E402

project, author, copyright = "Tessera", "The Tessera authors", "The Tessera authors"
version = release = tessera.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme, html_title = "furo", "Tessera"
# Plain text formulas: no script from a network is needed to read the pages.
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_show_tb = True
# Per cell, on a clock: for one that hangs. What a page may take is counted in processor time (tests/docs/test_site.py).
nb_execution_timeout = 1800
nb_merge_streams = True

autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "undoc-members": False}
napoleon_use_rtype = False
napoleon_use_ivar = True
default_role = "code"
# Words that begin a field of a docstring, such as "key", are taken for the names of types.
suppress_warnings = ["ref.python"]
SECONDS: dict[str, float] = {}
MARKS = re.compile(r"(?P<emphasis>(?<!\w)\*\w[^*]*\w\*(?!\w))|[*|]|\w_(?=\W|$)")


def as_restructured_text(app, what, name, obj, options, lines):
    """Docstrings are plain text: outside of `code`, no mark of reStructuredText is meant as one."""
    for index, line in enumerate(lines):
        parts = re.split(r"(``.+?``|`[^`]+`)", line)
        parts[::2] = (MARKS.sub(_escaped, part) for part in parts[::2])
        lines[index] = "".join(parts)


def _escaped(match):
    return match[0] if match["emphasis"] else f"{match[0][:-1]}\\{match[0][-1]}"


def links_between_pages(app, docname, source):
    """READMEs beside the code are pages here; other files of the package are named, not linked; cells run anew."""
    text = re.sub(r"\(\.\./tessera/ops/(\w+)/README\.md", r"(derivations/\1.md", without_outputs(source[0]))
    text = text.replace("(../tessera/recipes/README.md", "(reference/shipped-recipes.md")
    text = text.replace("(../CONTRIBUTING.md", "(contributing.md")
    source[0] = re.sub(r"\[([^\]]+)\]\(\.\./tessera/[^)]*\)", r"\1", text)


def as_printed(outputs, coalesce_streams=myst_nb.core.render.coalesce_streams):
    """The pieces of each stream as one: a program's words come in pieces, and MyST-NB would begin a line at each."""
    joined, streams = [], {}
    for output in outputs:
        stream = streams.get(output.get("name"))
        if output["output_type"] != "stream":
            joined.append(output)
        elif stream is not None:
            stream["text"] += output["text"]
        else:
            stream = streams[output["name"]] = copy.copy(output)
            joined.append(stream)
    return coalesce_streams(joined)


def note_processor_time(app, docname, *_):
    """Called before and after a page is read: what its program took of the processor, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    SECONDS[docname] = round(usage.ru_utime + usage.ru_stime - SECONDS.get(docname, 0.0), 1)


def write_seconds(app, exception):
    """Beside the pages, for tests/docs/test_site.py, which compares them with what is promised."""
    (Path(app.outdir) / "seconds.json").write_text(
        json.dumps({page: used for page, used in SECONDS.items() if used}, indent=1)
    )


def setup(app):
    myst_nb.core.render.coalesce_streams = as_printed
    app.connect("source-read", note_processor_time)
    app.connect("doctree-read", lambda app, doctree: note_processor_time(app, app.env.docname))
    app.connect("build-finished", write_seconds)
    app.connect("source-read", links_between_pages)
    app.connect("autodoc-process-docstring", as_restructured_text, priority=100)
