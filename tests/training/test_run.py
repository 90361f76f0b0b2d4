"""Training ends in a model that learned, loads, and can be continued from anywhere to the same bits."""

import json

import pytest
import torch
import transformers
import yaml

from tessera import MemoryMosaicForCausalLM
from tessera.models.lazy_logits import LazyLogits
from tessera.models.saving.loading import load_model, load_tokenizer, model_folder
from tessera.recipes.model_section import build_model, model_config
from tessera.recipes.recipe import read_recipe
from tessera.training import training_data
from tessera.training.initial_model import enable_checkpointing, starting_model
from tessera.training.model_card import is_generated_card
from tessera.training.optimizer import parameter_groups
from tessera.training.run import train
from tessera.training.run_log import MetricsFile
from tests.covering import some
from tests.refusals import refused
from tests.training.processes import metrics, same_weights, weights

TRANSFORMER = "model={type: transformer, hidden_size: 16, num_layers: 1, num_heads: 2, dropout: 0.1}"
V2 = (
    "model={type: memory_mosaic_v2, hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 24, "
    "short_term_span: 4, long_term_delay: 2, training_long_term_delay: [2, 8]}",
    "data.document_ids=true",
)
DROPOUT = ("model.weight_dropout=0.1", "model.residual_dropout=0.1")
FOUR_LAYERS = V2[0].replace("num_layers: 1", "num_layers: 4")
AGAIN = "training.gradient_checkpointing=true"


@pytest.fixture
def stop_after(change_losses):
    """Make training fail right after the given step, as a kill would: nothing is tidied up."""

    def patch(last):
        def killed(step, loss):
            if step >= last:
                raise KeyboardInterrupt
            return loss

        return change_losses(killed)

    return patch


@pytest.fixture
def stopped_after_four(go, stop_after):
    """The run in folder "whole", and one like it that was stopped after step 4."""
    go(folder="whole")
    restart = stop_after(4)
    with pytest.raises(KeyboardInterrupt):
        go()
    restart()


def without_speed(folder):
    records = MetricsFile(folder / "metrics.jsonl").read()
    return [{key: value for key, value in record.items() if key != "tokens_per_second"} for record in records]


@pytest.mark.parametrize("model", [[], [TRANSFORMER]], ids=["mosaic", "transformer"])
def test_a_run_learns_and_leaves_a_hugging_face_model(go, tmp_path, model):
    summary = go("training.steps=40", "training.evaluate_every=20", "training.checkpoint_every=40", *model)
    losses, validation = metrics(tmp_path / "run", "loss"), metrics(tmp_path / "run", "validation_loss")
    assert losses[-1] < losses[0] - 1.5
    assert validation[-1] == summary.validation_loss < validation[0]
    text = transformers.pipeline("text-generation", model=str(tmp_path / "run"))(
        "Once", max_new_tokens=4, do_sample=False, return_full_text=True
    )[0]["generated_text"]
    assert text.startswith("Once")
    assert len(text) > len("Once")
    result = json.loads((tmp_path / "run" / "run.json").read_text())
    assert result["result"]["parameters"] == sum(p.numel() for p in load_model(tmp_path / "run").parameters())
    assert result["provenance"]["configuration"]["training"]["steps"] == 40
    assert is_generated_card(tmp_path / "run" / "README.md"), "the run knows more than its model does"
    assert not [path for path in (tmp_path / "run").rglob("*") if path.suffix in (".bin", ".tmp")]


def test_a_run_leaves_random_numbers_alone(go):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    go(TRANSFORMER)  # which draws its dropout
    assert torch.equal(torch.rand(3), expected)


def test_all_models_see_the_same_batches(go, monkeypatch):
    seen = []
    original = training_data.stacked

    def stacked(windows):
        seen.append(original(windows)["input_ids"])
        return original(windows)

    monkeypatch.setattr(training_data, "stacked", stacked)
    go(folder="a")
    first = seen.copy()
    seen.clear()
    go(TRANSFORMER, folder="b")
    second = seen
    assert len(first) == len(second) == 6
    assert all(torch.equal(one, other) for one, other in zip(first, second))


@some(
    ("model", "stopped"),
    [(DROPOUT, 1), (DROPOUT, 3), (DROPOUT, 5), (V2, 3), ([TRANSFORMER], 3)],
    by_default=[(DROPOUT, 3), (V2, 3)],
)
def test_a_stopped_run_ends_bit_identical(go, tmp_path, stop_after, stopped, model):
    go(*model, folder="whole")
    mend = stop_after(stopped)
    with pytest.raises(KeyboardInterrupt):
        go(*model)
    mend()
    go(*model, resume=True)
    same_weights(tmp_path / "run", tmp_path / "whole")
    assert without_speed(tmp_path / "run") == without_speed(tmp_path / "whole")


def test_resuming_passes_over_a_truncated_checkpoint(go, tmp_path, heard):
    go(*DROPOUT, folder="whole")
    go(*DROPOUT)
    damaged = tmp_path / "run" / "checkpoints" / "checkpoint-6" / "optimizer.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-10])
    (tmp_path / "run" / "model.safetensors").unlink()
    go(*DROPOUT, resume=True)
    assert "checkpoint-6: passed over" in heard.text
    same_weights(tmp_path / "run", tmp_path / "whole")


def test_resuming_without_any_whole_checkpoint_is_refused(go, tmp_path):
    go()
    for marker in (tmp_path / "run" / "checkpoints").glob("*/complete.json"):
        marker.unlink()
    refused("no complete checkpoint to resume from", go, resume=True)


def test_resuming_a_finished_run_changes_nothing(go, tmp_path):
    first = go(*DROPOUT)
    before, lines = weights(tmp_path / "run"), without_speed(tmp_path / "run")
    again = go(*DROPOUT, resume=True)
    torch.testing.assert_close(weights(tmp_path / "run"), before, rtol=0, atol=0)
    assert without_speed(tmp_path / "run") == lines
    assert again == first


def test_accumulation_changes_rounding_only(go, tmp_path):
    go(folder="whole")
    go("training.micro_batch_size=1", folder="parts")
    # sums of 60 float32 losses in another order, six steps of training apart
    assert metrics(tmp_path / "parts", "loss") == pytest.approx(metrics(tmp_path / "whole", "loss"), rel=1e-5)


def test_experts_are_balanced_once_for_a_step_not_for_each_micro_batch(go, tmp_path):
    sizes = "hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2"
    sizes += ", num_key_value_heads: 1, num_local_experts: 4"
    model = f"model={{type: mixtral, {sizes}, output_router_logits: true, router_aux_loss_coef: 0.5}}"
    go(model, "training.steps=1", folder="whole")
    go(model, "training.steps=1", "training.micro_batch_size=1", folder="parts")
    at_once, parts = tmp_path / "whole", tmp_path / "parts"
    # a sequence alone is routed a little less evenly
    assert metrics(parts, "loss") == pytest.approx(metrics(at_once, "loss"), abs=0.05)
    assert metrics(parts, "gradient_norm") == pytest.approx(metrics(at_once, "gradient_norm"), rel=0.05)


def test_bfloat16_trains(go):
    assert go("training.precision=bf16", "training.steps=2").validation_loss < 6


@pytest.mark.parametrize(("model", "every"), [(DROPOUT, 1), ([FOUR_LAYERS], 3)], ids=["all layers", "every third"])
def test_layers_that_are_computed_again_change_nothing(go, tmp_path, model, every):
    model = (*model, "training.steps=2")
    go(*model, folder="kept")
    go(*model, AGAIN, f"training.checkpoint_layers_every={every}", folder="again")
    same_weights(tmp_path / "kept", tmp_path / "again")


def kept_for_backward(recipe):
    """How many numbers."""
    model = build_model(model_config(recipe.model, vocab_size=258), seed=0).train()
    enable_checkpointing(model, recipe.training)
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        model(torch.zeros(2, 16, dtype=torch.long), labels=torch.zeros(2, 16, dtype=torch.long))
    return sum(sizes)


def test_every_second_layer_keeps_half_of_what_all_keep(recipe_file):
    nothing, half, all_layers = (
        kept_for_backward(read_recipe(recipe_file, [FOUR_LAYERS, *changes]))
        for changes in ((), (AGAIN, "training.checkpoint_layers_every=2"), (AGAIN,))
    )
    assert half - all_layers == pytest.approx((nothing - all_layers) / 2, rel=0.01)


def test_a_step_asks_for_no_logits(go, monkeypatch):
    """Not even for some that nobody looks at: FSDP looks at every field of an output."""
    monkeypatch.setattr(LazyLogits, "__init__", lambda self, *arguments: pytest.fail("logits of a training step"))
    go("training.steps=1")


def test_training_goes_on_from_another_run(go, tmp_path):
    go("training.steps=20", folder="first")
    start = ("training.steps=2", "training.warmup_steps=0", "training.learning_rate=1.0e-9", "data.context=32")
    before = go(*start, folder="fresh").validation_loss
    after = go(*start, f"training.initialize_from={tmp_path / 'first'}", folder="continued").validation_loss
    assert after < before - 1


def test_what_a_model_marks_against_decay_does_not_decay_with_loaded_weights(go, recipe_file, tmp_path, monkeypatch):
    """`from_pretrained` puts other parameters in the place of those that were marked."""
    go("training.steps=1", folder="first")
    initialise = MemoryMosaicForCausalLM.__init__

    def marking(self, *arguments, **options):
        initialise(self, *arguments, **options)
        self.get_input_embeddings().weight._no_weight_decay = True

    monkeypatch.setattr(MemoryMosaicForCausalLM, "__init__", marking)
    recipe = read_recipe(recipe_file, [f"training.initialize_from={tmp_path / 'first'}"])
    model = starting_model(recipe, load_tokenizer(tmp_path / "first"))
    decayed = [
        p for group in parameter_groups(model, recipe.training) if group["weight_decay"] for p in group["params"]
    ]
    assert decayed
    assert not any(parameter is model.get_input_embeddings().weight for parameter in decayed)


def test_another_tokenizers_weights_are_not_taken(go, tmp_path):
    go("training.steps=2", folder="first")
    start = f"training.initialize_from={tmp_path / 'first'}"
    refused("its tokenizer must be this recipe's", go, start, "tokenizer={type: bpe, vocab_size: 258}", folder="other")
    go(start, f"tokenizer={{type: pretrained, path: {tmp_path / 'first'}}}", folder="same")


def broken_fourth(step, loss):
    return loss * torch.nan if step == 3 else loss


def test_a_nan_stops_and_the_last_checkpoint_is_good(go, tmp_path, change_losses):
    change_losses(broken_fourth)
    refused(r"got NaN or infinity at step 4\. Stopped: the last good checkpoint is .*checkpoint-2", go)
    model = load_model(tmp_path / "run")
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    assert len(load_tokenizer(tmp_path / "run")) == 258


def test_a_nan_step_can_be_left_out_is_counted_and_leaves_the_weights_alone(go, tmp_path, change_losses):
    change_losses(broken_fourth)
    assert go("training.on_nonfinite=skip", "training.checkpoint_every=1").skipped_steps == 1
    assert all(torch.isfinite(value).all() for value in weights(tmp_path / "run").values())
    assert None not in metrics(tmp_path / "run", "loss")
    folder = tmp_path / "run" / "checkpoints"
    same_weights(folder / "checkpoint-3", folder / "checkpoint-4")
    with pytest.raises(AssertionError):
        same_weights(folder / "checkpoint-4", folder / "checkpoint-5")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # the compiler's own
def test_a_compiled_run_is_the_same_training_in_one_graph(go):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    plain = go("training.steps=4", folder="plain")
    compiled = go("training.steps=4", "training.compile=true", folder="compiled")
    assert compiled.validation_loss == pytest.approx(plain.validation_loss, rel=1e-4)
    assert torch._dynamo.utils.counters["graph_break"] == {}


def test_a_finished_run_is_extended(go, tmp_path, heard):
    constant = ("training.min_learning_rate=0.01",)  # the schedule is then the same for any number of steps
    go(*constant, "training.steps=10", folder="long")
    go(*constant)
    go(*constant, "training.steps=10", "training.log_every=3", "training.checkpoint_every=5", resume=True)
    same_weights(tmp_path / "long", tmp_path / "run")
    (line,) = [record.getMessage() for record in heard.records if "extended" in record.getMessage()]
    assert "extended from 6 to 10 steps" in line
    assert line.endswith("0.01 after step 6.")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["result"]["steps"] == 10
    assert yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())["training"]["log_every"] == 3


def test_an_extension_that_was_killed_has_no_result_and_the_weights_of_its_checkpoint(go, stop_after, tmp_path):
    """`tessera sweep` and `tessera eval` took those of fewer steps."""
    go()
    stop_after(8)
    with pytest.raises(KeyboardInterrupt):
        go("training.steps=10", resume=True)
    assert not (tmp_path / "run" / "run.json").exists()
    assert model_folder(tmp_path / "run").name == "checkpoint-8"


def test_what_a_step_needs_of_memory_may_change_on_resume(go, stopped_after_four, tmp_path):
    """After a step that did not fit. Sums are rounded otherwise; layers computed again say the same."""
    go("training.micro_batch_size=1", AGAIN, resume=True)
    for first, second in zip(without_speed(tmp_path / "whole"), without_speed(tmp_path / "run"), strict=True):
        assert second == pytest.approx(first, rel=1e-4)
    assert yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())["training"]["micro_batch_size"] == 1


def test_intervals_may_change_on_resume_and_nothing_else(go, stopped_after_four, tmp_path):
    refused(r"training\.learning_rate is 0\.01 there and 0\.02 here", go, "training.learning_rate=0.02", resume=True)
    refused(r"training\.steps is 6 there and 5 here", go, "training.steps=5", resume=True)
    go("training.evaluate_every=1", "training.checkpoint_every=1", "training.keep_checkpoints=1", resume=True)
    same_weights(tmp_path / "whole", tmp_path / "run")


def test_a_run_that_is_named_as_a_number_goes_on(go):
    """Its saved recipe had the number in place of the name: a recipe 1e-3.yaml names it so."""
    named = ("name='1e-3'", "training.steps=1")
    assert go(*named).name == go(*named, resume=True).name == "1e-3"


def test_sizes_come_before_the_first_step(recipe_file, tmp_path, capsys, change_losses):
    """Also without a terminal."""
    before = []

    def heard(step, loss):
        before.append(capsys.readouterr().err)
        return loss

    change_losses(heard)
    summary, tokens = train(read_recipe(recipe_file, ["training.steps=12"]), tmp_path / "run"), 12 * 4 * 16
    assert f"tiny: {summary.parameters:,} parameters, {tokens} training tokens" in before[0]
    assert f"({tokens / summary.parameters:.3g} per parameter), 12 steps (Ctrl-C stops; --resume goes on)" in before[0]


def test_without_progress_nothing_is_said(go, capfd):
    go("training.steps=12")
    assert "parameters" not in capfd.readouterr().err  # with the bars of transformers
