"""What a model has read, kept: one memory for several documents, as a file, asked and cited, merged and forgotten."""

from tessera.base.arguments import explain_all
from tessera.memory_files.memory import Memory
from tessera.memory_files.pipeline import register

register()

__all__ = ["Memory"]

explain_all(globals(), __all__)
