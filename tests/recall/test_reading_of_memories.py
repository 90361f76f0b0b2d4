"""Mosaics that read and decode through the index give what they give by scanning all pairs."""

from dataclasses import replace

import pytest
import torch

from tessera.memories.contextual import ContextualMemory
from tessera.memories.pair_memory import PairMemory
from tessera.memories.short_and_long_term import LongTermMemory
from tessera.ops.kernel_regression.interception import intercepted
from tessera.recall import index as index_module
from tessera.recall import long_memories
from tests.covering import each_value

pytestmark = pytest.mark.usefixtures("small_blocks")


def memory_of(kind: type[PairMemory], kernel: str) -> PairMemory:
    torch.manual_seed(0)
    memory = kind(16, 2, kernel).double().eval()
    for name, parameter in memory.named_parameters():
        if "log_inverse_bandwidth" in name or "log_slope" in name:
            parameter.data += 3.0  # narrow: few pairs have weight
        if "alpha_logit" in name:
            parameter.data += torch.linspace(-1.0, 1.0, len(parameter)).to(parameter)
    return memory


def read(memory, x, cuts, documents=None, **options):
    """Outputs of pieces that end at `cuts`, the state handed on."""
    outputs, state, first = [], None, 0
    with torch.inference_mode():
        for end in cuts:
            piece = None if documents is None else documents[:, first:end]
            output, state = memory(x[:, first:end], state, piece, keep_state=True, **options)
            outputs.append(output)
            first = end
    return torch.cat(outputs, 1)


CUTS = [100, 101, 102, 333, 334, 335, 336, 400]


@each_value(
    kernel=["biweight", "gaussian_knn", "normalized_relu", "entmax", "sparsemax", "relumax"],
    kind={"contextual": ContextualMemory, "long-term": LongTermMemory},
)
def test_reading_through_the_index_is_the_scan(kind, kernel, monkeypatch):
    memory = memory_of(kind, kernel)
    x = torch.randn(2, 400, 3, dtype=torch.double) @ torch.randn(3, 16, dtype=torch.double)
    documents = torch.zeros(2, 400, dtype=torch.long)
    documents[0, 250:], documents[1, :30] = 1, -1
    delays = {"delay": torch.tensor([3, 9])} if kind is LongTermMemory else {}
    cases = [{}, {"documents": documents}, delays]
    monkeypatch.setattr(long_memories, "SHORTEST", 1 << 60)
    scanned = [read(memory, x, CUTS, **case) for case in cases]
    monkeypatch.setattr(long_memories, "SHORTEST", 64)
    monkeypatch.setattr(long_memories, "SCANNED_HEAD", 1.0)  # it answers however many it reads
    calls = count_calls(monkeypatch)
    for case, expected in zip(cases, scanned):
        torch.testing.assert_close(read(memory, x, CUTS, **case), expected, rtol=0, atol=1e-10)
    assert len(calls) >= len(CUTS) - 1  # it was the index that answered


def count_calls(monkeypatch):
    calls, recall = [], index_module.PairIndex.recall

    def counted(self, queries, **kwargs):
        calls.append(queries)
        return recall(self, queries, **kwargs)

    monkeypatch.setattr(index_module.PairIndex, "recall", counted)
    return calls


def test_forks_of_a_state_file_their_own_pairs(monkeypatch):
    """Two continuations of one state share its buffers, and neither recalls the other's pairs."""
    memory = memory_of(ContextualMemory, "biweight")
    x, tails = torch.randn(1, 200, 16, dtype=torch.double), torch.randn(2, 1, 200, 16, dtype=torch.double)
    outputs = {}
    for shortest in (1 << 60, 64):
        monkeypatch.setattr(long_memories, "SHORTEST", shortest)
        with torch.inference_mode():
            _, state = memory(x[:, :100], keep_state=True)
            _, state = memory(x[:, 100:], state, keep_state=True)  # in buffers with room to spare
            outputs[shortest] = []
            for tail in (tails[0], tails[1], tails[0]):
                first, forked = memory(tail[:, :150], state, keep_state=True)
                outputs[shortest] += [first, memory(tail[:, 150:], forked, keep_state=True)[0]]
    for scanned, recalled in zip(*outputs.values()):
        torch.testing.assert_close(recalled, scanned, rtol=0, atol=1e-10)


def test_what_was_filed_of_pairs_that_are_taken_back_is_gone(monkeypatch):
    memory = memory_of(ContextualMemory, "biweight")
    x, wrong, right = torch.randn(3, 1, 150, 16, dtype=torch.double)
    outputs = []
    for shortest in (1 << 60, 64):
        monkeypatch.setattr(long_memories, "SHORTEST", shortest)
        with torch.inference_mode():
            _, state = memory(x[:, :100], keep_state=True)
            _, state = memory(x[:, 100:101], state, keep_state=True)  # in buffers with room to spare
            memory(wrong[:, :40], state, keep_state=True)
            state.take_back()
            outputs.append(memory(right[:, :40], state, keep_state=True)[0])
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-10)


def test_what_the_index_cannot_do_is_scanned(monkeypatch):
    """Gradients, be it of the bandwidth alone, Gaussian memories, and weights that somebody looks at."""
    monkeypatch.setattr(long_memories, "SHORTEST", 16)
    calls = count_calls(monkeypatch)
    x = torch.randn(1, 64, 16, dtype=torch.double)
    memory = memory_of(ContextualMemory, "biweight")
    output, _ = memory(x)
    output.sum().backward()
    for kernel, learns in (("biweight", "bandwidth"), ("entmax", "alpha")):
        frozen = memory_of(ContextualMemory, kernel)
        for name, parameter in frozen.named_parameters():
            parameter.requires_grad_(learns in name)
        frozen(x)[0].sum().backward()
        assert any(parameter.grad is not None for parameter in frozen.parameters())
    read(memory_of(ContextualMemory, "gaussian"), x, [40, 64])
    with intercepted(lambda call, run: run(call)):
        read(memory, x, [40, 64])
    assert not calls
    read(memory, x, [40, 64])
    assert calls


def test_where_most_pairs_are_read_the_next_queries_are_scanned(monkeypatch):
    """Keys in no order and a wide kernel: the index gives up for as many queries as it is told."""
    monkeypatch.setattr(long_memories, "SHORTEST", 16)
    monkeypatch.setattr(long_memories, "PATIENCE", 50)
    calls = count_calls(monkeypatch)
    memory = ContextualMemory(16, 2, "triweight").double().eval()
    x = torch.randn(1, 400, 16, generator=torch.Generator().manual_seed(3), dtype=torch.double)
    read(memory, x, [100, 101, 120, 150, 151, 152, 250, 251])
    assert len(calls) == 2, "of the first 100, and one after 50 that were scanned"
    assert calls[0].shape[1] == long_memories.TRIED, "a few queries tell"
    del calls[:]
    read(memory, x, [100, 101, 120, 150, 151, 152, 250, 251, 252])
    assert len(calls) == 3, "and one after twice as many"


def test_a_query_alone_reads_more_through_the_index_than_many_do(monkeypatch):
    """A scan reads all keys, for one query as for many: the index goes on with a third of them for one, not for 16."""
    monkeypatch.setattr(long_memories, "SHORTEST", 16)
    monkeypatch.setattr(long_memories, "PATIENCE", 50)
    calls, recall = count_calls(monkeypatch), index_module.PairIndex.recall

    def reading_a_third(self, queries, **options):
        answer = recall(self, queries, **options)
        read = torch.full_like(answer.certificate.pairs_read, len(self) // 3)
        return replace(answer, certificate=replace(answer.certificate, pairs_read=read))

    monkeypatch.setattr(index_module.PairIndex, "recall", reading_a_third)
    memory = ContextualMemory(16, 2, "sparsemax").double().eval()
    x = torch.randn(1, 400, 16, generator=torch.Generator().manual_seed(3), dtype=torch.double)
    read(memory, x, [100, 120])
    assert len(calls) == 1, "of the first 100; the next were scanned"
    del calls[:]
    read(memory, x, [15, 16, 17, 18, 19, 20])
    assert len(calls) == 4, "all tokens behind at least 16 pairs"


@pytest.mark.parametrize(("share", "goes_on"), [(0.05, True), (0.24, False)])
def test_a_head_that_needs_all_pairs_leaves_the_index_to_others_that_need_few(monkeypatch, share, goes_on):
    """The index scans a head by itself, for 1.2 of what a scan of it costs; a quarter of the pairs costs a scan."""
    monkeypatch.setattr(long_memories, "SHORTEST", 16)
    monkeypatch.setattr(long_memories, "PATIENCE", 50)
    calls, recall = count_calls(monkeypatch), index_module.PairIndex.recall

    def reading(self, queries, **options):
        answer = recall(self, queries, **options)
        num_read = torch.tensor([[len(self)], [int(share * len(self))]]).expand_as(answer.certificate.pairs_read)
        return replace(answer, certificate=replace(answer.certificate, pairs_read=num_read))

    monkeypatch.setattr(index_module.PairIndex, "recall", reading)
    memory = ContextualMemory(16, 2, "sparsemax").double().eval()
    x = torch.randn(1, 400, 16, generator=torch.Generator().manual_seed(3), dtype=torch.double)
    read(memory, x, [200, 220])
    assert len(calls) == (4 if goes_on else 1), "of each of two cuts the last queries and the others"
