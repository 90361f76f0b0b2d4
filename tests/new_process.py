"""Programs in a process that has not imported the library: a new one, or a fork that forgets it.

What the library needs takes a new process ten seconds to import, and a fork has it.
"""

import os
import subprocess
import sys
import traceback

from transformers import dynamic_module_utils
from transformers.models.auto import auto_factory, configuration_auto, modeling_auto

HOW = ("fork", "new")  # `some("how", HOW, by_default=["fork"])`: continuous integration starts new ones


def run(how, folder, code, *arguments):
    """What the program prints, which must end well; `folder` takes what it says in a fork."""
    if how == "new":
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout
    printed = folder / "stdout.txt", folder / "stderr.txt"
    child = os.fork()
    if child == 0:
        status = 1
        try:
            sys.stdout, sys.stderr = (path.open("w", encoding="utf-8") for path in printed)
            forget_the_library()
            sys.argv = ["-c", *arguments]
            exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    out, err = (path.read_text(encoding="utf-8") for path in printed)
    assert status == 0, err
    return out


def forget_the_library():
    """Take its modules away, those that only tests need, and its names in transformers' tables."""
    for name in list(sys.modules):
        if name.split(".")[0] in ("tessera", "jaxtyping", "beartype"):
            del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__module__ != "tests.shape_checks"]
    types = list(configuration_auto.CONFIG_MAPPING._extra_content)
    for table in [configuration_auto.CONFIG_MAPPING, *vars(modeling_auto).values()]:
        if isinstance(table, auto_factory._LazyAutoMapping | configuration_auto._LazyConfigMapping):
            table._extra_content.clear()
        elif isinstance(table, dict):
            for name in types:
                table.pop(name, None)
    if "HF_MODULES_CACHE" in os.environ:  # which transformers reads once
        dynamic_module_utils.HF_MODULES_CACHE = os.environ["HF_MODULES_CACHE"]
