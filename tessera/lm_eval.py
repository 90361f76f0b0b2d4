"""The command line of lm-evaluation-harness with our models: `python -m tessera.lm_eval --model tessera ...`.

All arguments are the harness's. It has no entry points for models, so that something must name ours before it looks.
"""

import importlib.util
import os
import sys

from tessera.base.bar_lines import bar_stream
from tessera.base.errors import TesseraError


def expect_harness(where: str) -> None:
    """Raise `TesseraError` unless the optional extra is installed."""
    if importlib.util.find_spec("lm_eval") is None:
        raise TesseraError(f"{where}: needs lm-evaluation-harness. Run: pip install 'tessera[eval]'.")


def name_columns() -> None:
    """Let pytablewriter's releases before 0.47 take the headings that the harness gives them, not A, B, C."""
    from pytablewriter import LatexTableWriter, MarkdownTableWriter

    for writer in (LatexTableWriter, MarkdownTableWriter):
        if not hasattr(writer, "headers"):
            writer.headers = property(None, lambda table, names: setattr(table, "header_list", names))


def main() -> int:
    """Run the harness. Exit status: as `tessera`."""
    try:
        expect_harness("tessera.lm_eval")
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        from lm_eval.__main__ import cli_evaluate

        import tessera.evaluation.harness  # noqa: F401  registers the model

        sys.stderr = bar_stream()
        name_columns()
        cli_evaluate()
    except TesseraError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
