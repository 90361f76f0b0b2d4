"""Published checkpoints as models of this library."""

from tessera.interop import armt, memory_mosaics, nano_mosaics  # noqa: F401 (they register themselves)
from tessera.interop.published import REFERENCES, from_reference, recognised_source

__all__ = ["REFERENCES", "from_reference", "recognised_source"]
