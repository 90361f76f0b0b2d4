"""Memories of every model with a state: kept as files, gone on from, merged, forgotten."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import MiniMaxConfig, MiniMaxForCausalLM

from tessera.base.errors import TesseraError
from tessera.data.tokenizers import byte_tokenizer
from tessera.generation.sampling import Sampling
from tessera.memories.linear_attention import LinearAttentionMemory
from tessera.memory_files import Memory
from tessera.memory_files.document import together, without
from tessera.models.carried_state import read_document, read_on
from tessera.models.forking import apart
from tessera.models.memory_mosaic import MemoryMosaicLayer
from tessera.models.memory_mosaic_v2 import MemoryMosaicV2Layer
from tessera.models.saving.state_file import StateFile, save_values
from tests.covering import some
from tests.memory_files.models import MAKERS, OF_PAIRS, make, v1
from tests.memory_files.texts import TEXTS, memory, same
from tests.refusals import refused

OF_EACH_STATE = ("v1", "v2", "linear attention", "lstm", "armt", "gpt2")


def goes_on(model, path, chance: random.Random) -> bool:
    """Whether reading on from a stored state is reading on from the state, at a random place of a random text."""
    ids = torch.randint(
        0, 258, (1, chance.randint(2, 60)), generator=torch.Generator().manual_seed(chance.getrandbits(30))
    )
    cut = chance.randint(1, ids.shape[1] - 1)
    with torch.no_grad():
        _, state = read_on(model, ids[:, :cut], None)
        save_values(path, "any", {"state": state})
        loaded = StateFile.open(path, "test").values()["state"]
        (logits, end), (expected, end_expected) = (read_on(model, ids[:, cut:], one) for one in (loaded, apart(state)))
    return torch.equal(logits, expected) and same(end, end_expected)


@some("kind", MAKERS, by_default=OF_EACH_STATE)
def test_going_on_after_loading_is_never_having_stopped(kind, tmp_path):
    model, chance = make(kind), random.Random(kind)
    assert all(goes_on(model, tmp_path / "state", chance) for _ in range(3))


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
def test_a_thousand_cuts_of_every_model(kind, tmp_path):
    model, chance = make(kind), random.Random(0)
    assert all(goes_on(model, tmp_path / "state", chance) for _ in range(1000))


@some("kind", MAKERS, by_default=OF_EACH_STATE)
def test_read_saved_merged_and_forgotten(kind, tmp_path):
    """Merged = read by one; forgotten = never read; loaded = stored: the states bit for bit, and the answers."""
    model, path = make(kind), tmp_path / "memory"
    all_three = memory(model, *TEXTS)
    all_three.save(path)
    loaded = Memory(model, byte_tokenizer()).load(path)
    assert loaded.names == list(TEXTS)
    assert [document.size for document in loaded.documents] == [len(text) for text in TEXTS.values()]
    short = Sampling(max_new_tokens=4, temperature=0.0)
    before, after = all_three.ask("Who?", short), loaded.ask("Who?", short)
    assert (after.text, after.probability) == (before.text, before.probability)
    assert same(loaded.state, all_three.state)
    assert same(memory(model, "kings").merge(memory(model, "queen", "home")).state, all_three.state)
    assert same(loaded.forget("queen").state, memory(model, "kings", "home").state)
    loaded.save(path)  # in place of the file that it is mapped from
    assert same(Memory(model, byte_tokenizer()).load(path).state, loaded.state)
    assert same(loaded.forget("home").state, memory(model, "kings").state)
    assert loaded.forget("kings").state is None


@pytest.mark.parametrize("kind", ["armt", "gpt2"])
def test_what_is_read_again_is_read_in_its_own_number_format(kind, tmp_path):
    """What came after a forgotten document was read again in float32, also where it had been read in bfloat16."""
    model, formats = make(kind), {"kings": "fp32", "queen": "bf16", "home": "fp32"}

    def read(*names: str) -> Memory:
        result = Memory(model, byte_tokenizer())
        for name in names:
            result.read(TEXTS[name], name, precision=formats[name])
        return result

    read(*TEXTS).save(tmp_path / "memory")
    kept = read("queen", "home").state
    assert not same(kept, memory(model, "queen", "home").state)
    assert same(Memory(model, byte_tokenizer()).load(tmp_path / "memory").forget("kings").state, kept)
    assert same(read("queen").merge(read("home")).state, kept)


@pytest.mark.parametrize("kind", OF_PAIRS)
def test_documents_of_several_number_formats_are_asked_in_any(kind):
    """Behind a last one in bfloat16, a question in bfloat16 found pairs in float32 that nobody had converted."""
    model = make(kind)
    mixed = Memory(model, byte_tokenizer()).read(TEXTS["kings"], "kings")
    mixed.read(TEXTS["queen"], "queen", precision="bf16")
    short = Sampling(max_new_tokens=1, temperature=0.0)
    expected = mixed.ask("Who?", short).probability
    with torch.autocast("cpu", torch.bfloat16):
        assert mixed.ask("Who?", short).probability == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("kind", ["armt", "gpt2"])
def test_forgetting_and_merging_that_are_stopped_lose_no_document(kind, tmp_path, monkeypatch):
    """What came after the document was gone: Ctrl-C in a chat, or a memory without its model, and the next /save."""
    model = make(kind)
    stopped, expected = memory(model, *TEXTS).save(tmp_path / "memory"), memory(model, *TEXTS).state
    other = Memory(model, byte_tokenizer()).read("More.", "more").read("Even more.", "most")
    for change in (lambda: stopped.forget("kings"), lambda: stopped.merge(other)):
        reads = iter([read_document, None])

        def read(*arguments):
            read_it = next(reads)  # noqa: B023
            if read_it is None:
                raise KeyboardInterrupt
            return read_it(*arguments)

        monkeypatch.setattr("tessera.memory_files.memory.read_document", read)
        with pytest.raises(KeyboardInterrupt):
            change()
        assert next(reads, "read twice") == "read twice"
        assert stopped.names == list(TEXTS)
        assert same(stopped.state, expected)
    without_model = Memory().load(tmp_path / "memory")
    refused("the model must be given", without_model.forget, "kings")
    assert without_model.names == list(TEXTS)


@pytest.mark.parametrize("kind", OF_PAIRS)
@pytest.mark.parametrize("order", [("kings", "queen", "home"), ("home", "queen")])
def test_documents_read_apart_are_documents_read_in_one_call(kind, order):
    """Beside the model's own `document_ids`; a question sees the pairs of all. In float64: sums in another order."""
    model = make(kind).double()
    read = memory(model, *order)
    ids = torch.cat([document.tokens for document in read.documents])[None].long()
    numbers = torch.tensor([number for number, one in enumerate(read.documents) for _ in one.tokens])[None]
    question = torch.randint(0, 258, (1, 7))
    with torch.no_grad():
        packed = model(ids, document_ids=numbers, use_cache=True).past_key_values
        # All documents count as one, but for the pairs that are stored as absent.
        as_one = packed.map(lambda tensor: tensor if tensor.is_floating_point() else tensor.clamp(-1, 0))
        steps = sum(len(document.tokens) - 1 for document in read.documents) + 1
        layers = tuple(_counting(layer, steps) for layer in as_one.layers)
        as_one = type(as_one)(layers, as_one.length, as_one.document * 0, as_one.model)
        expected = model(question, past_key_values=as_one).logits
        actual = model(question, past_key_values=read.state).logits
        alone = model(question, past_key_values=read.documents[-1].state).logits
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(alone, expected, rtol=1e-3, atol=1e-3), "the other documents are seen"


def _counting(layer, steps):
    """Memories whose bandwidth counts pairs count those of all documents."""
    return tuple(
        replace(one, position=torch.tensor([steps])) if getattr(one, "position", None) is not None else one
        for one in layer
    )


@pytest.mark.parametrize("first", ["linear_attention", "full_attention"])
def test_a_minimax_is_refused_where_it_loses_what_it_read(first, tmp_path):
    """With a lightning layer first, transformers' attention takes several tokens behind a cache for a new text."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 3}
    kinds = [first, "full_attention" if first == "linear_attention" else "linear_attention"]
    config = MiniMaxConfig(vocab_size=258, **sizes, intermediate_size=8, num_local_experts=2, layer_types=kinds)
    read = Memory(MiniMaxForCausalLM(config).eval(), byte_tokenizer())
    if first == "linear_attention":
        refused("the model must read on behind its state; got minimax", read.read, TEXTS["kings"])
        return
    with pytest.raises(TesseraError, match="must be one of this library or a DynamicCache; got MiniMaxCache"):
        read.read(TEXTS["kings"]).save(tmp_path / "memory")


def test_states_of_different_models_are_no_memory():
    """Only the last one's model was kept, and so questions were answered behind pairs of another."""
    states = [memory(v1(kernel=kernel).eval(), "kings").state for kernel in ("gaussian", "biweight")]
    refused("states must be of one model; got one of another configuration", together, states)


def test_left_out_pairs_are_pairs_that_are_not_there():
    """With one layer: the pairs are cut out of the buffers, or marked as absent."""
    model = v1(num_layers=1).eval()
    read = memory(model, "kings", "queen")
    state, question = read.state, torch.randint(0, 258, (1, 5))
    (pairs, persistent), first, end = state.layers[0], 10, 60
    store = pairs.pairs
    kept = torch.tensor([index for index in range(store.length) if not first <= index < end])
    cut = type(store).of(store.keys[:, :, kept], store.values[:, :, kept], store.documents[:, kept])
    expected = replace(state, layers=((replace(pairs, pairs=cut), persistent),))
    with torch.no_grad():
        left_out, cut_away = (model(question, past_key_values=s).logits for s in (without(state, first, end), expected))
        with_all_pairs = model(question, past_key_values=state).logits
    torch.testing.assert_close(left_out, cut_away)
    assert not torch.allclose(left_out, with_all_pairs)


def test_a_call_that_cuts_texts_makes_no_other_tokenizer(tmp_path):
    model, tokenizer = make("v1"), byte_tokenizer()
    memory(model, "kings").save(tmp_path / "memory")
    tokenizer("A king", truncation=True, max_length=3)
    loaded = Memory(model, tokenizer).load(tmp_path / "memory").read("The king ate a cake.")
    assert len(loaded.documents[1].tokens) == 20


def test_a_question_takes_the_settings_of_sampling():
    asked = memory(make("v1"), "kings")
    assert len(asked.ask("Who?", max_new_tokens=3).tokens) == 3
    refused("keywords must be cite, where, write or of max_new_tokens, .*; got top", asked.ask, "Who?", top=3)


def test_texts_without_a_name_get_one_that_is_free():
    read = Memory(make("v1"), byte_tokenizer()).read("One king.").read("Two kings.").forget("text 1").read("Three.")
    assert read.names == ["text 2", "text 3"]


@pytest.mark.parametrize("kind", ["v1", "armt", "gpt2"])
def test_a_text_is_kept_once_whatever_it_is_called(kind, tmp_path, monkeypatch, capsys):
    """Two copies of a document were kept, and a changed file stood beside its old text under the name of its path."""
    model = make(kind)
    sub, other = tmp_path / "sub", tmp_path / "other"
    for folder, text in ((sub, TEXTS["kings"]), (other, TEXTS["queen"])):
        folder.mkdir()
        (folder / "a.txt").write_text(text)
    (tmp_path / "b.txt").write_text(TEXTS["kings"])
    monkeypatch.chdir(tmp_path)
    Memory(model, byte_tokenizer()).read(Path("sub/a.txt")).save(tmp_path / "memory")
    read = Memory(model, byte_tokenizer()).load(tmp_path / "memory")
    documents = read.documents
    for source in (Path("sub/a.txt"), Path("./sub/../sub/a.txt"), sub / "a.txt", Path("b.txt"), TEXTS["kings"]):
        read.read(source)
        assert read.documents is documents
    assert read.read(TEXTS["kings"], "again").documents is documents
    assert capsys.readouterr().err.splitlines() == [
        *["memorize: 'a.txt' is there already, with the same text; it is kept once"] * 3,
        *[
            f"memorize: {name!r} is there already, as 'a.txt', with the same text; it is kept once"
            for name in ("b.txt", "text 2", "again")
        ],
    ]
    read.read(Path("other/a.txt")).read(TEXTS["home"][:-1], "home")  # other texts
    assert read.names == ["a.txt", "other/a.txt", "home"]
    (sub / "a.txt").write_text(TEXTS["home"])
    (other / "a.txt").write_text(TEXTS["home"])
    for source, name in ((Path("sub/a.txt"), "a.txt"), (other / "a.txt", "other/a.txt")):
        refused(f"must be new; got '{name}', that of another text. Forget it first", read.read, source)
    merged = memory(model, "kings", "home").merge(read.forget("home"))
    assert merged.names == ["kings", "home", "other/a.txt"]
    said = "merge: 'a.txt' is there already, as 'kings', with the same text; it is kept once\n"
    assert capsys.readouterr().err == said
    assert same(merged.state, memory(model, "kings", "home", "queen").state)


def test_what_cannot_be_is_said(tmp_path):
    model = make("gpt2")
    empty, read = memory(model), memory(model, "kings")
    for mistake, match in [
        (lambda: empty.read("a king " * 57 + "!", "long"), "fit the 300 positions of the model; got 400 tokens"),
        (lambda: read.read("again", "kings"), "the name of a document must be new; got 'kings', that of another text"),
        (lambda: read.forget("queen"), "be one of 'kings'; got 'queen'"),
        (lambda: read.merge(memory(model).read("again", "kings")), "different names; got two of 'kings'"),
        (lambda: read.merge(memory(make("llama"), "queen")), "be of one model; got gpt2 and another llama"),
        (lambda: Memory(None, byte_tokenizer()), "Memory: model must be given with its tokenizer; got None"),
        (lambda: Memory(model), "Memory: tokenizer must be the model's, a fast one of transformers; got NoneType"),
        (lambda: read.read(""), "must hold text"),
        (lambda: read.read(Path("none.txt")), "none.txt: cannot be read"),
        (lambda: read.ask("Who?", cite=1), "keep pairs"),
        (lambda: memory(make("v1"), "kings").ask("Who?", cite=-1, max_new_tokens=1), "at least 1; got -1"),
        (lambda: read.read("once", Path("once.txt")), "Memory.read: name must be a text; got PosixPath"),
        (lambda: read.read("once", pace=3), "the arguments must be those of its signature; .* 'pace'"),
        (lambda: read.read(str(tmp_path)), "must be a plain file of text"),  # it was read as a text of these letters
        (lambda: read.read("none.txt"), r"name one that is there; got none.txt. If it is a text: read\(\[text\]\)"),
        (lambda: read.read("my notes.PDF"), "name one that is there"),
        (lambda: read.read("books/one.txt.gz"), "name one that is there"),
    ]:
        refused(match, mistake)
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.4")
    refused(r"a.pdf: (needs the package markitdown|cannot be read as pdf)", read.read, tmp_path / "a.pdf")
    assert together([memory(make("v1"), "kings").state]).document is None


def test_a_text_that_is_given_as_one_may_look_like_the_name_of_a_file():
    read = memory(make("v1")).read(["none.txt"]).read("He wrote none.txt\nand more", "two")
    assert [document.size for document in read.documents] == [8, 26]


@pytest.mark.parametrize("kind", ["v2", "gpt2"])
def test_a_model_in_training_mode_neither_reads_nor_answers(kind, tmp_path):
    """Its random delays and dropout were in the state: two readings of a text differed, and so did the answers."""
    model = make(kind)
    read = memory(model, "kings", "queen")
    model.train()
    for mistake in (lambda: read.read("again"), lambda: read.ask("Who?"), lambda: memory(model, "kings")):
        refused("the model must be in evaluation mode; got one in training mode. Call model.eval", mistake)
    if kind == "gpt2":
        refused("in evaluation mode", read.forget, "kings")  # the other document is read again
        assert read.names == ["kings", "queen"]
    read.save(tmp_path / "memory")  # what was read before is as it was
    assert same(Memory(model.eval(), byte_tokenizer()).load(tmp_path / "memory").state, read.state)


class ReadsOn(MemoryMosaicLayer):
    """A layer of v1, whose contextual memory is one that holds no pairs, as a plugin's may be."""

    def __init__(self, config):
        super().__init__(config)
        self.contextual = LinearAttentionMemory(config.hidden_size, config.num_heads, "linear_transformer")

    def follow(self, config):
        """Nothing may change."""


class ReadsOnBeside(MemoryMosaicV2Layer):
    """A layer of v2 with pairs in its short-term memory alone."""

    def __init__(self, config):
        super().__init__(config)
        self.long = LinearAttentionMemory(config.hidden_size, config.num_heads, "linear_transformer")

    def forward(self, hidden, state=None, documents=None, keep_state=False, **delay):
        states, own = (None, None) if state is None else (state[:2], state[2])
        hidden, states = super().forward(hidden, states, documents, keep_state, **delay)
        recalled, own = self.long(hidden, own, documents, keep_state)
        return hidden + recalled, (*states, own) if keep_state else None


@pytest.mark.parametrize(("kind", "layer"), [("v1", ReadsOn), ("v2", ReadsOnBeside)])
def test_a_layer_that_holds_more_than_pairs_reads_documents_in_their_order(kind, layer):
    """Of its other memory the last document alone stayed, and where there are no pairs, a text could not be cited."""
    model = make(kind)
    model.model.layers = torch.nn.ModuleList(layer(model.config) for _ in model.model.layers)
    read = memory(model.eval(), "kings", "home")
    ids = torch.cat([document.tokens for document in read.documents])[None]
    with torch.no_grad():
        logits = read_on(model, ids[:, :5], read.state)[0]
        expected = model(torch.cat([ids, ids[:, :5]], 1)).logits[:, -5:]
    torch.testing.assert_close(logits, expected)
    refused("cite: the model must keep pairs", read.ask, "Who?", cite=1, max_new_tokens=1)
