"""What every causal language model must satisfy."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, PreTrainedModel

from tessera.models.forking import fork, state_tensors
from tessera.models.sizes import pairs_per_query, recall_widths, state_bytes_per_token
from tessera.testing import model_case
from tessera.testing.laws import LONG, REORDERED_FLOAT32, REORDERED_FLOAT64, laws_in, try_laws
from tessera.testing.model_case import SEGMENT, STEPS, ModelCase, behind_a_segment, check_close, gradients_of, tokens


def check_model(make: Callable[[], PreTrainedModel], **case: Any) -> None:
    """Run every law of `LAWS` on the model that `make()` returns; raises AssertionError at the first that it breaks.

    `case`: further fields of `ModelCase`, which say what the model cannot do.
    """
    try_laws(LAWS, ModelCase(make, **case))


def _in_parts(
    model: PreTrainedModel, ids: Tensor, sizes: list[int], mask: Tensor | None = None, **of_steps: Tensor
) -> tuple[Tensor, Any]:
    """The logits of `ids` read in parts, and the last state; `of_steps`: arguments with a number for each step."""
    past, logits, read = None, [], 0
    for part, *others in zip(ids.split(sizes, 1), *(values.split(sizes, 1) for values in of_steps.values())):
        read += part.shape[1]
        options = {**dict(zip(of_steps, others)), "attention_mask": None if mask is None else mask[:, :read]}
        output = model(part, past_key_values=past, use_cache=True, **options)
        past = output.past_key_values
        logits.append(output.logits)
    return torch.cat(logits, 1), past


@torch.no_grad()
def parts_are_the_whole(case: ModelCase) -> None:
    """Reading in any parts, down to single tokens, gives the logits of the whole."""
    if not case.continues:
        return
    model = case.build()
    ids = tokens(model)
    expected = model(ids).logits
    for sizes in ([1] * STEPS, [7, 1, 8, 1, 4], [20, 1]):
        logits, past = _in_parts(model, ids, sizes)
        check_close(logits, expected)
        assert past is not None
        assert past.get_seq_length() == STEPS
    if case.state == "memory_state":
        first = model(ids[:, : 2 * SEGMENT])
        second = model(ids[:, 2 * SEGMENT :], memory_state=first.memory_state)
        check_close(torch.cat([first.logits, second.logits], 1), expected)


@torch.no_grad()
def parts_of_a_long_text_are_the_whole(case: ModelCase) -> None:
    """Three hundred tokens, or as many as the model takes, in parts of several lengths."""
    if not case.continues:
        return
    model = case.build()
    longest = 12 * SEGMENT if case.state == "memory_state" else getattr(model.config, "max_position_embeddings", None)
    ids = tokens(model, 1, min(sum(LONG), longest or sum(LONG)))
    sizes = LONG if ids.shape[1] == sum(LONG) else [1, ids.shape[1] - 1]
    check_close(_in_parts(model, ids, sizes)[0], model(ids).logits)


@torch.no_grad()
def parts_are_the_whole_in_float32(case: ModelCase) -> None:
    """Where other backends compute."""
    if not case.continues:
        return
    model = case.build().float()
    ids = tokens(model)
    logits, expected = _in_parts(model, ids, [9, STEPS - 9])[0], model(ids).logits
    assert (logits - expected).abs().max() < 10 * REORDERED_FLOAT32 * expected.abs().max()  # sums of some ten layers


@torch.no_grad()
def the_future_has_no_influence(case: ModelCase) -> None:
    """A changed token changes its own logits and later ones, and none before it; in training neither."""
    model = case.build()
    ids = tokens(model)
    changed = ids.clone()
    changed[:, 13] = ids[:, 13] % (model.config.vocab_size - 1) + 1
    for training in (False, True):
        model.train(training)
        torch.manual_seed(2)  # for what is drawn in training
        before = model(ids).logits
        torch.manual_seed(2)
        after = model(changed).logits
        check_close(after[:, :13], before[:, :13])
        assert not torch.allclose(after[:, 13], before[:, 13])
        assert not torch.allclose(after[:, 14:], before[:, 14:]), "what was read has no influence"


@torch.no_grad()
def documents_do_not_see_each_other(case: ModelCase) -> None:
    """Documents packed into rows, cut anywhere, are read as if each were alone, and nothing predicts their first token.

    Each row has borders of its own; numbers need not rise. In training none sees another.
    """
    if not case.packs:
        return
    model = case.build()
    ids = tokens(model)
    documents = torch.tensor([[7] * 9 + [2] * (STEPS - 9), [0] * 4 + [3] * 8 + [1] * (STEPS - 12)])
    alone = [
        [model(row[n == k][None], labels=row[n == k][None]) for k in n.unique_consecutive()]
        for row, n in zip(ids, documents)
    ]
    apart = torch.cat([torch.cat([output.logits for output in row], 1) for row in alone])
    output = model(ids, document_ids=documents, labels=ids)
    check_close(output.logits, apart)
    counts = [output.logits.shape[1] - 1 for row in alone for output in row]
    losses = [output.loss for row in alone for output in row]
    torch.testing.assert_close(output.loss, sum(n * loss for n, loss in zip(counts, losses)) / sum(counts))
    for sizes in ([5, 3, 1, 12], [1] * STEPS):
        check_close(_in_parts(model, ids, sizes, document_ids=documents)[0], apart)
    is_first = documents == documents[:, :1]
    model.train()
    logits = []
    for text in (ids, torch.where(is_first, ids % (model.config.vocab_size - 1) + 1, ids)):
        torch.manual_seed(2)  # for what is drawn in training
        logits.append(model(text, document_ids=documents).logits[~is_first])
    check_close(*logits)


def _padded(model: PreTrainedModel, side: str) -> tuple[Tensor, Tensor, slice]:
    """Two rows, the second with 6 steps of padding; which of its steps are real."""
    ids, mask = tokens(model), torch.ones(2, STEPS, dtype=torch.long)
    real = slice(6, STEPS) if side == "left" else slice(0, STEPS - 6)
    mask[1] = 0
    mask[1, real] = 1
    return ids.masked_fill(mask == 0, 0), mask, real


@torch.no_grad()
def _padding_has_no_influence(case: ModelCase, side: str) -> None:
    model = case.build()
    ids, mask, real = _padded(model, side)
    alone = [ids[:1], ids[1:, real]]
    labels = ids.masked_fill(mask == 0, -100)
    labels[1, real.start] = -100  # transformers' own models predict it from padding
    output = model(ids, attention_mask=mask, labels=labels)
    outputs = [model(row, labels=row) for row in alone]
    # transformers makes rotary angles in float32.
    rtol, atol = (1e-6, 1e-7) if case.plain else (REORDERED_FLOAT64, REORDERED_FLOAT64)
    torch.testing.assert_close(output.logits[:1], outputs[0].logits, rtol=rtol, atol=atol)
    torch.testing.assert_close(output.logits[1:, real], outputs[1].logits, rtol=rtol, atol=atol)
    counts = [row.shape[1] - 1 for row in alone]
    expected = sum(row.loss * count for row, count in zip(outputs, counts)) / sum(counts)
    torch.testing.assert_close(output.loss, expected)


def padding_on_the_right_has_no_influence(case: ModelCase) -> None:
    """Padding after the tokens changes neither their logits nor the loss."""
    _padding_has_no_influence(case, "right")


def padding_on_the_left_has_no_influence(case: ModelCase) -> None:
    """Padding before the tokens changes neither their logits nor the loss."""
    if case.pads_left:
        _padding_has_no_influence(case, "left")


@torch.no_grad()
def padding_between_tokens_has_no_influence(case: ModelCase) -> None:
    """Each row gives what it gives alone, read at once or in parts, wherever its padding lies."""
    if not case.pads_anywhere:
        return
    model = case.build()
    ids, mask = tokens(model, 4), torch.ones(4, STEPS, dtype=torch.long)
    mask[1, 5:8] = mask[2, 2:4] = mask[2, 11:] = mask[3, :9] = mask[3, 12:15] = 0
    labels = ids.masked_fill(mask == 0, -100)
    alone = [model(row[is_token.bool()][None], labels=row[is_token.bool()][None]) for row, is_token in zip(ids, mask)]
    expected = torch.cat([output.logits[0] for output in alone])
    output = model(ids, attention_mask=mask, labels=labels)
    check_close(output.logits[mask.bool()], expected)
    positions = _positions(mask)
    check_close(model(ids, attention_mask=mask, position_ids=positions).logits[mask.bool()], expected)
    counts = mask.sum(1) - 1
    torch.testing.assert_close(output.loss, sum(n * row.loss for n, row in zip(counts, alone)) / counts.sum())
    if not case.continues:
        return
    for sizes in ([11, 4, 1, 5], [1] * STEPS):
        logits, _ = _in_parts(model, ids, sizes, mask, position_ids=positions)
        check_close(logits[mask.bool()], expected)
    late = torch.ones_like(mask)
    late[1, 11:15] = 0  # of a row that had none so far, a whole part
    alone = model(ids[1:2, late[1].bool()]).logits[0]
    logits, _ = _in_parts(model, ids, [11, 4, 6], late, position_ids=_positions(late))
    check_close(logits[1, late[1].bool()], alone)
    if case.packs:
        past, documents = model(ids[1:2, :11], use_cache=True).past_key_values, late[1:2, 11:] - 1
        output = model(ids[1:2, 11:], document_ids=documents, past_key_values=past, use_cache=False)
        check_close(output.logits[0, 4:], alone[11:])


def _positions(mask: Tensor) -> Tensor:
    """As `generate` makes them."""
    return (mask.cumsum(1) - 1).masked_fill(mask == 0, 1)


def generation_chooses_what_the_whole_says(case: ModelCase) -> None:
    """Greedily, from prompts of different lengths, across segments; and beams as without a cache."""
    if not case.generates:
        return
    model = case.build()
    ids, mask, real = _padded(model, "left")
    options: dict[str, Any] = {"max_new_tokens": 7, "do_sample": False}
    together = model.generate(ids, attention_mask=mask, **options)
    for row, prompt in zip(together, (ids[:1], ids[1:, real])):
        with torch.no_grad():
            logits = model(torch.cat([prompt, row[None, STEPS:]], 1)).logits
        assert torch.equal(row[STEPS:], logits[0, prompt.shape[1] - 1 : -1].argmax(-1))
    prompt = ids[:1, :6].repeat(2, 1)
    prompt[1, 2] += 1
    options |= {"attention_mask": torch.ones_like(prompt), "num_beams": 3, "output_scores": True}
    options["return_dict_in_generate"] = True
    cached, uncached = (model.generate(prompt, use_cache=use_cache, **options) for use_cache in (True, False))
    assert torch.equal(cached.sequences, uncached.sequences)
    torch.testing.assert_close(cached.sequences_scores, uncached.sequences_scores)


@torch.no_grad()
def generation_goes_on_from_a_state(case: ModelCase) -> None:
    """`past_key_values` of a part of the prompt changes nothing, and stays what it was."""
    if not (case.generates and case.continues):
        return
    model = case.build()
    ids = tokens(model, 1)
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 7, "do_sample": False}
    expected = model.generate(ids, **options)
    state = model(ids[:, :11], use_cache=True).past_key_values
    for _ in range(2):
        assert torch.equal(model.generate(ids, past_key_values=fork(state, 1), **options), expected)


@torch.no_grad()
def saved_is_loaded(case: ModelCase) -> None:
    """A saved and loaded model is of the same class and says the same; the folder has no code and no pickles."""
    model = case.build()
    ids = tokens(model, 1)
    model.train()(ids), model.eval()  # training may change buffers
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        assert {path.suffix for path in Path(folder).iterdir()} - {".md"} == {".json", ".safetensors"}
        loader = AutoModelForCausalLM if case.registered else type(model)
        loaded = loader.from_pretrained(folder, dtype=torch.float64).eval()
    assert type(loaded) is type(model)
    # transformers makes rotary frequencies in float32 and casts them in one of the two.
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=1e-6, atol=1e-6)


@torch.no_grad()
def a_state_is_a_value(case: ModelCase) -> None:
    """A state may be continued twice, copied, moved and reordered, and stays what it was."""
    if case.state is None:
        return
    model = case.build()
    ids, state, cached = behind_a_segment(case, model)
    copy = state.map(torch.clone)
    first = model(ids[:, SEGMENT:], **{case.state: state}).logits
    assert not torch.allclose(first, model(ids[:, SEGMENT:]).logits), "the state has no influence"
    model(ids[:, 2 * SEGMENT :], **{case.state: state}, **cached)
    assert torch.equal(model(ids[:, SEGMENT:], **{case.state: state}).logits, first)
    assert torch.equal(model(ids[:, SEGMENT:], **{case.state: copy}).logits, first)
    swapped = state.select_batch(torch.tensor([1, 0]))
    check_close(model(ids[:, SEGMENT:].flip(0), **{case.state: swapped}).logits.flip(0), first)
    assert state.num_bytes() > 0
    dtypes = {tensor.dtype for tensor in state_tensors(state.to(torch.float32))}
    assert torch.float32 in dtypes
    assert torch.float64 not in dtypes


@torch.no_grad()
def a_state_grows_as_it_says(case: ModelCase) -> None:
    """A longer text has a state that is larger by what the model's `state_bytes_per_token` says, within a tenth.

    So does the next token cost more, by what the configuration's `pairs_per_query` says.
    """
    if not case.continues or case.state != "past_key_values":
        return
    model = case.build().requires_grad_(False)  # what counts FLOPs hooks gradients
    half = (min(601, getattr(model.config, "max_position_embeddings", None) or 601) - 1) // 2
    sizes, flops, pairs = [], [], []
    for length in (half, 2 * half):
        state = model(tokens(model, 1, length), use_cache=True).past_key_values
        with FlopCounterMode(display=False) as counter:
            assert model(tokens(model, 1, 1), past_key_values=state).logits is not None  # made when looked at
        sizes.append(state.num_bytes())
        flops.append(counter.get_total_flops())
        pairs.append(sum(pairs_per_query(model.config, length)))
    grown, said = (sizes[1] - sizes[0]) / half, state_bytes_per_token(model, torch.float64)
    assert abs(grown - said) <= 0.1 * said, f"each token adds {grown:.0f} bytes; state_bytes_per_token says {said:.0f}"
    dearer, expected = flops[1] - flops[0], 2 * sum(recall_widths(model.config)) * (pairs[1] - pairs[0])
    if grown and not dearer:  # it compares by no product of matrices: PyTorch counts no others
        return
    texts = f"behind {2 * half} tokens and not {half} a token costs"
    assert abs(dearer - expected) <= 0.1 * expected, (
        f"{texts} {dearer} FLOPs more; pairs_per_query says {expected}: {pairs}"
    )


def bfloat16_is_near(case: ModelCase) -> None:
    """Logits in bfloat16 are near those in float64, and its gradients finite."""
    model = case.build()
    ids = tokens(model)
    with torch.no_grad():
        expected = model(ids).logits
        logits = model.to(torch.bfloat16)(ids).logits
    assert logits.dtype == torch.bfloat16
    # Eight bits in each of some ten sums; a kernel that takes another neighbour changes single logits by more.
    assert (logits.double() - expected).abs().mean() < 0.1 * expected.std()
    gradients = gradients_of(model.train(), ids)
    assert all(gradient.isfinite().all() for gradient in gradients.values())


@torch.no_grad()
def one_token_is_the_first_of_many(case: ModelCase) -> None:
    """A single token has the logits of the first of many."""
    model = case.build()
    ids = tokens(model)
    check_close(model(ids[:, :1]).logits, model(ids).logits[:, :1])


def the_loss_is_that_of_the_logits(case: ModelCase) -> None:
    """The loss is the cross entropy of the shifted logits, also without logits and of a given number of items.

    So it is in training.
    """
    model = case.build()
    ids = tokens(model)
    labels = ids.clone()
    labels[0, :5] = -100
    for training in (True, False):
        output = model.train(training)(ids, labels=labels)
        expected = cross_entropy(output.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        torch.testing.assert_close(output.loss.double(), expected, rtol=1e-6, atol=0)  # transformers sums in float32
    if not case.plain:
        torch.testing.assert_close(output.loss, expected)
        lean = model(ids, labels=labels, skip_logits=True, num_items_in_batch=1)
        assert lean.logits is None
        torch.testing.assert_close(lean.loss / (labels[:, 1:] != -100).sum(), expected)


LAWS = laws_in({**globals(), **vars(model_case)}, ModelCase)
