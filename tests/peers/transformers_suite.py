"""transformers' common tests of models and configurations, run on ours: `make peers`."""

import copy
import unittest

import torch
from transformers import GPT2Config, PreTrainedConfig, PreTrainedModel

from tessera.models.armt import ARMTForCausalLM
from tessera.models.linear_attention import LinearAttentionForCausalLM, LinearAttentionModel
from tessera.models.memory_mosaic import MemoryMosaicForCausalLM, MemoryMosaicModel
from tessera.models.memory_mosaic_v2 import MemoryMosaicV2ForCausalLM, MemoryMosaicV2Model
from tessera.models.prmt import PRMTForCausalLM
from tessera.models.rmt import RMTForCausalLM
from tests.peers.archive import load

SIZES = {"vocab_size": 99, "hidden_size": 32, "num_layers": 2, "num_heads": 4}
V2 = {"intermediate_size": 48, "short_term_span": 4, "long_term_delay": 2, "training_long_term_delay": [2, 2]}
NONE = {"bos_token_id": None, "eos_token_id": None, "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}
GPT2 = GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64, **NONE)
SEGMENTS = {"base_config": GPT2, "segment_size": 3, "num_memory_tokens": 2}  # the 7 tokens are three segments


class Tester:
    """What the mixins ask for sizes, a configuration and inputs."""

    batch_size, seq_length, is_training, hidden_size, num_hidden_layers, num_attention_heads = 3, 7, True, 32, 2, 4
    vocab_size = 99

    def __init__(self, parent: unittest.TestCase, fields: dict, classes: tuple[type[PreTrainedModel], ...]):
        self.parent, self.fields, self.classes = parent, fields, classes
        self.causal_lm_class, self.base_model_class = classes[-1], classes[0]

    def get_config(self) -> PreTrainedConfig:
        """A new configuration."""
        return self.classes[0].config_class(**copy.deepcopy(self.fields))

    def prepare_config_and_inputs_for_common(self) -> tuple[PreTrainedConfig, dict]:
        """It, and the arguments of `forward`."""
        shape = (self.batch_size, self.seq_length)
        ids = torch.randint(1, self.vocab_size, shape)
        return self.get_config(), {"input_ids": ids, "attention_mask": torch.ones(shape, dtype=torch.long)}


def suite(name: str, fields: dict, *classes: type[PreTrainedModel], **attributes: object) -> type[unittest.TestCase]:
    """The test case of one model type."""
    modeling, configuration, training = map(
        load, ("test_modeling_common", "test_configuration_common", "test_training_mixin")
    )

    def set_up(self: unittest.TestCase) -> None:
        self.model_tester = Tester(self, fields, classes)
        self.config_tester = configuration.ConfigTester(
            self, config_class=classes[0].config_class, **copy.deepcopy(fields)
        )

    def test_config(self: unittest.TestCase) -> None:
        self.config_tester.run_common_tests()

    body = {
        "all_model_classes": classes,
        "model_tester": None,
        "setUp": set_up,
        "test_config": test_config,
        **attributes,
    }
    bases = (modeling.ModelTesterMixin, training.TrainingTesterMixin, unittest.TestCase)
    return type(name, bases, body)


V1Test = suite("V1Test", {**SIZES, "num_persistent_slots": 8}, MemoryMosaicModel, MemoryMosaicForCausalLM)
V2Test = suite("V2Test", {**SIZES, **V2}, MemoryMosaicV2Model, MemoryMosaicV2ForCausalLM)
LinearAttentionTest = suite(
    "LinearAttentionTest", {**SIZES, "variant": "gla"}, LinearAttentionModel, LinearAttentionForCausalLM,
    has_attentions=False,
)  # fmt: skip
ARMTTest = suite("ARMTTest", {**SEGMENTS, "memory_dim": 4}, ARMTForCausalLM, has_attentions=False, _is_composite=True)
RMTTest = suite("RMTTest", SEGMENTS, RMTForCausalLM, has_attentions=False, _is_composite=True)
PRMTTest = suite("PRMTTest", SEGMENTS, PRMTForCausalLM, has_attentions=False, _is_composite=True)
