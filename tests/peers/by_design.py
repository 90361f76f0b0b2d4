"""Tests of transformers that our models do not pass, with the reason. The list only shrinks."""

_GENERATION = "the archive has no tests of generation: tests/models/contract.py has laws of our own"
_RECALLS = "a layer of two memories has the recall weights of each: twice as many as layers"
_SIZES = "sizes are those of the base's configuration, which cannot be given twice"
_ATTENTIONS = "attention is over the positions of one segment: output_attentions is refused by name"
_SELECTED = "hidden states are those of all layers: a list of some is refused by name"
_BASE = "the base alone has no memory: what it saves is a model of its own kind"
_SHIFTED = "open: a part of a text has no memory of the parts before it"
_SEGMENTS = "open: hidden states are put together from segments, behind the logits"

_WRAPPED = {
    "test_can_capture_specific_layers_hidden_states": _SELECTED,
    "test_capture_outputs_decorator": _ATTENTIONS,
    "test_causal_lm_loss_honors_shift_labels": _SHIFTED,
    "test_config": _SIZES,
    "test_correct_missing_keys": _BASE,
    "test_generation_tester_mixin_inheritance": _GENERATION,
    "test_retain_grad_hidden_states_attentions": _SEGMENTS,
}
_MOSAIC = {"test_attention_outputs": _RECALLS, "test_generation_tester_mixin_inheritance": _GENERATION}
BY_DESIGN: dict[str, dict[str, str]] = {
    "V1Test": _MOSAIC,
    "V2Test": _MOSAIC,
    "LinearAttentionTest": {"test_generation_tester_mixin_inheritance": _GENERATION},
    "ARMTTest": _WRAPPED,
    "RMTTest": _WRAPPED,
    "PRMTTest": _WRAPPED,
}
