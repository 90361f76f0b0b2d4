"""Tests of other libraries that our models do not pass, with the reason. The list only shrinks."""

_GENERATION = "the archive has no tests of generation: tests/models/contract.py has laws of our own"
_RECALLS = "a layer of two memories has the recall weights of each: twice as many as layers"
_SIZES = "sizes are those of the base's configuration, which cannot be given twice"
_ATTENTIONS = "attention is the base's: output_attentions is refused by name where the base computes none"
_EXPERTS = "the test takes a model that can hold experts for one that does: GPT-2 has none"
_SELECTED = "hidden states are those of all layers: a list of some is refused by name"

_LAYERS = "it goes on feed-forward networks or biases, which these models do not have: name target_modules"

_WRAPPED = {
    "test_can_capture_specific_layers_hidden_states": _SELECTED,
    "test_capture_outputs_decorator": _ATTENTIONS,
    "test_config": _SIZES,
    "test_eager_matches_batched_and_grouped_inference_0_fp16": _EXPERTS,
    "test_eager_matches_batched_and_grouped_inference_1_fp32": _EXPERTS,
    "test_eager_matches_batched_and_grouped_inference_2_bf16": _EXPERTS,
    "test_generation_tester_mixin_inheritance": _GENERATION,
}
_MOSAIC = {"test_attention_outputs": _RECALLS, "test_generation_tester_mixin_inheritance": _GENERATION}
BY_DESIGN: dict[str, dict[str, str]] = {
    "V1Test": _MOSAIC,
    "V2Test": _MOSAIC,
    "LinearAttentionTest": {"test_generation_tester_mixin_inheritance": _GENERATION},
    "ARMTTest": _WRAPPED,
    "RMTTest": _WRAPPED,
    "PRMTTest": _WRAPPED,
    "TestPeftOnV1": {"PEFT's IA3": _LAYERS, "PEFT's Beft": _LAYERS},
    "TestPeftOnV2": {},
    "TestEntmax": {},
}
