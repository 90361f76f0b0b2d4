"""What every kernel, memory, model and task must satisfy: the library's own tests, for those of a plugin.

>>> from tessera.kernels import Gaussian
>>> check_kernel(Gaussian())

Each check raises AssertionError at the first law that is broken. The modules have the laws one by one (`LAWS`, for
`pytest.mark.parametrize`), with what each says. `check_state` is for any causal language model of transformers, and
reports instead of raising.
"""

from tessera.base.arguments import explain_all
from tessera.testing.kernels import check_kernel
from tessera.testing.memories import MemoryCase, check_memory
from tessera.testing.model_case import ModelCase
from tessera.testing.models import check_model
from tessera.testing.state_laws import Finding, check_state
from tessera.testing.tasks import TaskCase, check_task

__all__ = [
    "Finding",
    "MemoryCase",
    "ModelCase",
    "TaskCase",
    "check_kernel",
    "check_memory",
    "check_model",
    "check_state",
    "check_task",
]

explain_all(globals(), __all__)
