"""`torch.export` and `torch.compile`: one program for any length, one graph where the model allows it."""

import io
from functools import partial

import pytest
import torch
from torch._inductor import config as inductor_config
from torch.export import AdditionalInputs, export
from torch.utils._pytree import tree_flatten, tree_unflatten, treespec_dumps, treespec_loads

from tessera.memories.linear_attention import VARIANTS
from tests.models.contract import CASES, Case, tokens, v1, without_dropout
from tests.refusals import refused
from tests.tolerances import REORDERED_FLOAT32, close

AUTO = torch.export.Dim.AUTO
GAUSSIAN = ["v1 published", "v2 gaussian"]
OTHER_KERNELS = ["v1 compact", "v1 normalized relu", "v2 compact", "v2 neighbours"]
LINEAR = "linear attention"
ONE_GRAPH = [*GAUSSIAN, *OTHER_KERNELS, *(f"{LINEAR} {variant}" for variant in VARIANTS), "transformer"]
SEVERAL_GRAPHS = ["armt around gpt2", "armt around memory_mosaic", "rmt around gpt2", "prmt around gpt2", "lstm"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # the exporter's own
@pytest.mark.parametrize("name", [*GAUSSIAN, *OTHER_KERNELS])
def test_an_exported_program_takes_any_batch_and_length(name):
    model = CASES[name].build()
    sizes = {"input_ids": {0: AUTO, 1: AUTO}, "use_cache": None}
    arguments = {"input_ids": tokens(), "use_cache": False}
    program = export(model, (), arguments, dynamic_shapes=sizes).module()
    for batch, steps in ((2, 3), (1, 5), (3, 31), (2, 32), (1, 33), (2, 64), (2, 65), (1, 200)):
        ids = tokens(batch, steps)
        close(program(input_ids=ids, use_cache=False).logits, model(ids).logits)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the exporter's own
@pytest.mark.parametrize("name", [*GAUSSIAN, "v1 compact"])
@torch.no_grad()
def test_exported_programs_decode_as_the_model(name):
    """One program reads a prompt and returns its state, another takes a token and a state; both saved and loaded."""
    model = CASES[name].build()

    def prompt(batch, steps):
        return {"input_ids": tokens(batch, steps), "use_cache": True}

    def step(batch, steps):
        state = model(**prompt(batch, steps)).past_key_values.map(torch.clone)
        return {"input_ids": tokens(batch, 1), "past_key_values": state, "use_cache": True}

    read = _saved_and_loaded(_exported(model, prompt(2, 30), prompt(3, 8)))
    decode = _saved_and_loaded(_exported(model, step(2, 20), step(3, 4)))
    for batch, steps in ((2, 3), (1, 9), (3, 40)):
        exported, own = read(**prompt(batch, steps)), model(**prompt(batch, steps))
        for _ in range(8):
            close(exported.logits, own.logits)
            token = own.logits[:, -1:].argmax(-1)
            exported = decode(input_ids=token, past_key_values=exported.past_key_values, use_cache=True)
            own = model(token, past_key_values=own.past_key_values, use_cache=True)
        assert exported.past_key_values.get_seq_length() == own.past_key_values.get_seq_length() == steps + 8


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the exporter's own
@pytest.mark.parametrize("name", GAUSSIAN)
@torch.no_grad()
def test_an_exported_program_takes_padding_anywhere(name):
    """Between a row's tokens and behind them, where others follow."""
    model, sizes = CASES[name].build(), {0: AUTO, 1: AUTO}
    arguments = {"input_ids": tokens(2, 20), "attention_mask": torch.ones(2, 20).long(), "use_cache": True}
    shapes = {"input_ids": sizes, "attention_mask": dict(sizes), "use_cache": None}
    program = export(model, (), arguments, dynamic_shapes=shapes).module()
    ids, mask = tokens(3, 33), torch.ones(3, 33).long()
    mask[0, 7:9], mask[1, 15:], mask[2, :6] = 0, 0, 0
    exported, own = (read(input_ids=ids, attention_mask=mask, use_cache=True) for read in (program, model))
    close(exported.logits[mask.bool()], own.logits[mask.bool()])
    close(*(model(tokens(3, 4), past_key_values=read.past_key_values).logits for read in (exported, own)))


def _exported(model, arguments, others):
    """The program for `arguments`, of any of the sizes in which `others` differ."""
    sizes = AdditionalInputs()
    sizes.add((), others)
    return export(model, (), arguments, dynamic_shapes=sizes)


def _saved_and_loaded(program):
    file = io.BytesIO()
    program.example_inputs = None  # a state among them would be pickled, and loading runs no pickled classes
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file).module()


@pytest.mark.parametrize("name", [*GAUSSIAN, "linear attention gla", "armt around gpt2"])
def test_a_state_is_a_pytree(name):
    """Taken apart and put together again, by a structure that was written down, it goes on as before."""
    model, ids = CASES[name].build(), tokens(2, 20)
    argument = CASES[name].state
    with torch.no_grad():
        state = getattr(model(ids[:, :9], use_cache=True), argument)
        leaves, structure = tree_flatten(state)
        assert any(isinstance(leaf, torch.Tensor) for leaf in leaves)
        assert not any(isinstance(leaf, type(state)) for leaf in leaves)
        again = tree_unflatten(leaves, treespec_loads(treespec_dumps(structure)))
        assert type(again) is type(state)
        expected = model(ids[:, 9:], **{argument: state}).logits
        assert torch.equal(model(ids[:, 9:], **{argument: again}).logits, expected)


@pytest.mark.parametrize("name", GAUSSIAN)
def test_what_is_exported_computes_the_same(name, monkeypatch):
    """The ways that only an export takes, in float64: with padding, with documents, after a state, token by token."""
    model, ids = CASES[name].build(), tokens(2, 75)
    mask = torch.ones_like(ids)
    mask[1, 70:] = 0
    documents = (torch.arange(75) >= 40).long().expand(2, -1)
    state = model(tokens(2, 9, seed=1), use_cache=True).past_key_values
    gaps = torch.ones_like(ids)
    gaps[0, 30:33] = 0
    calls = [{}, {"attention_mask": mask}, {"document_ids": documents}, {"past_key_values": state}]
    calls += [{"attention_mask": gaps}]
    expected = [model(ids, **call).logits for call in calls]
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    for call, logits in zip(calls, expected, strict=True):
        close(model(ids, **call).logits, logits)
    past = state
    for position in range(12):
        output = model(ids[:, position : position + 1], past_key_values=past, use_cache=True)
        past = output.past_key_values
        close(output.logits[:, 0], expected[3][:, position])


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        pytest.param("v1 of one layer", "eager", marks=pytest.mark.grid),
        *(pytest.param(name, "aot_eager", marks=pytest.mark.slow) for name in (*ONE_GRAPH, *SEVERAL_GRAPHS)),
        *(
            pytest.param(name, "inductor", marks=pytest.mark.slow)
            for name in (*GAUSSIAN, f"{LINEAR} linear_transformer")
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled_the_loss_is_the_same_and_so_are_the_gradients_in_training(name, backend):
    case, training = CASES.get(name, Case(partial(v1, num_layers=1))), backend != "eager"
    # Dropout draws other numbers in another order of graphs.
    model, ids = without_dropout(case.build()).float().train(training), tokens()
    torch._dynamo.reset()
    options = {} if case.state == "memory_state" else {"use_cache": False}
    results = []
    for forward in (model, torch.compile(model, backend=backend, fullgraph=name not in SEVERAL_GRAPHS)):
        model.zero_grad()
        torch.manual_seed(0)
        with inductor_config.patch(fallback_random=True):  # v2 draws delays, and Inductor has random numbers of its own
            loss = forward(ids, labels=ids, **options).loss
        if training:
            loss.backward()
        gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
        assert bool(gradients) == training
        results.append({"loss": loss.detach(), **gradients})
    torch.testing.assert_close(*results, rtol=REORDERED_FLOAT32, atol=REORDERED_FLOAT32)


@pytest.mark.grid
@pytest.mark.parametrize("name", ONE_GRAPH[:-1])
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_one_graph_goes_on_behind_a_state_of_any_length(name):
    """Also behind one that was made in inference mode, and written to by nobody else."""
    model, ids = CASES[name].build(), tokens(2, 14)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.inference_mode():
        past = model(ids[:, :8], use_cache=True).past_key_values
    with torch.no_grad():
        expected = model(ids).logits
        for position in range(8, 14):
            output = compiled(ids[:, position : position + 1], past_key_values=past, use_cache=True)
            past = output.past_key_values
            close(output.logits[:, 0], expected[:, position])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # the exporter's own
def test_a_memory_in_segments_is_exported_for_one_length_alone():
    model = CASES["armt around memory_mosaic"].build()
    ids = tokens(2, 11)
    program = export(model, (), {"input_ids": ids}).module()
    read, expected = program(input_ids=ids), model(ids)
    close(read.logits, expected.logits)
    close(read.memory_state.A, expected.memory_state.A)
    needed = (
        "torch.export must be of the same number of tokens and rows each time, without a mask, labels, positions or a"
    )
    others = {"attention_mask": torch.ones_like(ids), "labels": ids, "position_ids": torch.arange(11)[None]}
    for name, value in {**others, "use_cache": True}.items():
        refused(f"{needed} cache; got {name}", export, model, (), {"input_ids": ids, name: value})
    for dimension, free in enumerate(("a free number of rows", "a free length")):
        for name, read in (("input_ids", ids), ("inputs_embeds", model.get_input_embeddings()(ids).detach())):
            sizes = {name: {dimension: torch.export.Dim.AUTO}}
            refused(f"got {free}", export, model, (), {name: read}, dynamic_shapes=sizes)
