"""`tessera generate` with several models and many prompts: a table that shows what each model writes."""

import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, MambaConfig, OpenAIGPTConfig

from tessera.generation.sampling import Sampling, continuation, markdown_table, read_prompts
from tessera.models.drafted_generation import PromptLookup
from tessera.models.saving.loading import load_model, load_tokenizer


@pytest.fixture(scope="module")
def two_models(run_folder, tmp_path_factory):
    """The run, and a copy of it with other weights."""
    other = shutil.copytree(run_folder, tmp_path_factory.mktemp("models") / "other")
    torch.manual_seed(1)
    model = load_model(run_folder)
    with torch.no_grad():
        model.get_output_embeddings().weight.normal_()
    model.save_pretrained(other)
    return run_folder, other


def greedy(folder, prompt, tokens):
    ids = torch.tensor([list(prompt.encode())])
    actual = load_model(folder).generate(ids, max_new_tokens=tokens, num_beams=2, do_sample=False)[0, ids.shape[1] :]
    return bytes(token for token in actual.tolist() if token < 256).decode(errors="replace")


def test_a_table_of_models_and_prompts(tessera, done, refused, two_models, tmp_path):
    prompts = ["Once upon", "The king"]
    (tmp_path / "prompts.txt").write_text("Once upon\n\nThe king\n")
    options = ("--prompts", tmp_path / "prompts.txt", "--num-beams", 2, "--max-new-tokens", 4)
    out, _ = done("generate", *two_models, *options, "--out", tmp_path / "table.md")
    columns = {str(folder): [greedy(folder, prompt, 4) for prompt in prompts] for folder in two_models}
    assert columns[str(two_models[0])] != columns[str(two_models[1])]
    assert out == markdown_table(prompts, columns) + "\n"
    assert (tmp_path / "table.md").read_text() == out
    short = tmp_path / "short"  # has too few positions for the prompts
    sizes = {"vocab_size": 258, "n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 4}
    GPT2LMHeadModel(GPT2Config(**sizes)).save_pretrained(short)
    load_tokenizer(two_models[0]).save_pretrained(short)
    status, others, err = tessera("generate", two_models[0], short, two_models[1], *options)
    assert (status, others, err.startswith(f"{short}: ")) == (2, out, True), err
    status, others, err = tessera("generate", short, f"{short}/", *options)
    assert (status, others, err.count("\n")) == (2, "", 2), err
    refused("--out must be a new file", "generate", *two_models, *options, "--out", tmp_path / "table.md")


@pytest.mark.parametrize("sampling", [Sampling(8, temperature=0), Sampling(8, num_beams=2), Sampling(8, seed=3)])
def test_settings_in_the_models_folder_choose_no_tokens(run_folder, sampling):
    """The likeliest token is not the likeliest any more with a penalty that the folder's generation_config.json has."""
    model, tokenizer = load_model(run_folder), load_tokenizer(run_folder)
    expected = continuation(model, tokenizer, "abcabcabc", sampling)
    model.generation_config.update(
        repetition_penalty=5.0, no_repeat_ngram_size=1, min_new_tokens=8, length_penalty=-5.0
    )
    model.generation_config.update(guidance_scale=3.0, length_penalty=-5.0, encoder_repetition_penalty=0.1)
    model.generation_config.update(exponential_decay_length_penalty=(1, 50.0), eos_token_id=tokenizer.eos_token_id)
    if sampling.arguments["do_sample"]:
        model.generation_config.update(min_p=0.9, typical_p=0.1, epsilon_cutoff=0.5, eta_cutoff=0.5, top_h=0.01)
    assert continuation(model, tokenizer, "abcabcabc", sampling) == expected


def test_the_story_prompts_are_those_of_the_papers():
    prompts = read_prompts("stories")
    assert len(set(prompts)) == 24
    assert prompts[0] == "Alice was so tired when she got back home so she went"


def test_text_in_a_table_cannot_break_it():
    table = markdown_table(["a|b\nc"], {"m": ["<script>*x*</script>`|"]})
    row = table.splitlines()[2]
    assert row == "| a\\|b c | &lt;script&gt;\\*x\\*&lt;/script&gt;\\`\\| |"


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\xff\xfe", "this is UTF-16"), (b"\n \n", "which holds none"), (None, "(No such file or directory)")],
)
def test_prompts_that_cannot_be_read(refused, run_folder, tmp_path, content, message):
    if content is not None:
        (tmp_path / "prompts.txt").write_bytes(content)
    refused(message, "generate", run_folder, "--prompts", tmp_path / "prompts.txt")


@pytest.mark.parametrize("sampling", [("--temperature", 0), ("--seed", 3)])
def test_prompt_lookup_writes_the_same(tessera, run_folder, monkeypatch, sampling):
    options = ("generate", run_folder, "--prompt", "to and fro, to and fro, to", "--max-new-tokens", 30, *sampling)
    plain, drafted, draft = tessera(*options), [], PromptLookup.draft
    monkeypatch.setattr(PromptLookup, "draft", lambda *arguments: drafted.append(draft(*arguments)) or drafted[-1])
    assert tessera(*options, "--prompt-lookup", 6) == plain
    assert any(drafted)


@pytest.mark.parametrize(
    "config",
    [
        OpenAIGPTConfig(vocab_size=258, n_embd=16, n_layer=1, n_head=2),
        MambaConfig(vocab_size=258, hidden_size=16, num_hidden_layers=1),
    ],
    ids=["without a cache", "recurrent"],
)
def test_prompt_lookup_is_for_models_that_can_go_back_and_not_for_beams(refused, run_folder, tmp_path, config):
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    load_tokenizer(run_folder).save_pretrained(tmp_path)
    message = "--prompt-lookup must be left out for a model without a cache that can be cut back; got "
    options = ("--prompt", "to and fro", "--prompt-lookup", 3, "--max-new-tokens", 2)
    refused(message, "generate", tmp_path, *options)
    refused("--prompt-lookup must be left out with --num-beams", "generate", run_folder, *options, "--num-beams", 2)
