"""Exact recall below linear time: an index over stored pairs that reads only the pairs which can have weight.

Compact kernels give weight 0 to every pair whose score is at most a threshold, and the threshold of a part of the
pairs is at most that of all. So: solve on the most promising pairs, read every leaf of the index whose largest possible
score exceeds that threshold, solve again. The answer is that of all pairs, and comes with the bound that proves it.

>>> import torch, tessera.recall
>>> torch.manual_seed(0) and None
>>> keys = torch.nn.functional.normalize(torch.randn(2, 5000, 8), dim=-1)
>>> index = tessera.recall.build(keys, torch.arange(5000.0).expand(2, -1).unsqueeze(-1))
>>> found = index.recall(keys[:, 7:8], kernel="sparsemax", slope=200.0)
>>> found.output.round().tolist(), found.certificate.is_exact
([[[7.0]], [[7.0]]], True)
"""

from tessera.base.arguments import explain_all
from tessera.recall.answers import Certificate, Recall, Support
from tessera.recall.index import PairIndex, build
from tessera.recall.index_file import open, save

__all__ = ["Certificate", "PairIndex", "Recall", "Support", "build", "open", "save"]

explain_all(globals(), __all__)
