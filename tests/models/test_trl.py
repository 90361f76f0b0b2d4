"""TRL's supervised fine-tuning trains the mosaics, with texts padded and packed."""

import pytest
import torch

from tessera.data.tokenizers import byte_tokenizer
from tests.models.test_forward_arguments import STACKS, make


@pytest.mark.filterwarnings("ignore")  # TRL's and its friends' own
@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("name", STACKS)
def test_supervised_fine_tuning(name, packing, tmp_path):
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    tokenizer, model = byte_tokenizer(), make(name).float()
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    before = model.model.embed_tokens.weight.detach().clone()
    texts = datasets.Dataset.from_list([{"text": "Once upon a time. " * count} for count in (1, 2, 3, 4)])
    options = {"max_steps": 2, "per_device_train_batch_size": 2, "report_to": "none", "disable_tqdm": True}
    options |= {"use_cpu": True, "bf16": False, "save_strategy": "no", "logging_steps": 1}
    arguments = trl.SFTConfig(output_dir=str(tmp_path), max_length=24, packing=packing, **options)
    trainer = trl.SFTTrainer(model=model, args=arguments, train_dataset=texts, processing_class=tokenizer)
    trainer.train()
    losses = [record["loss"] for record in trainer.state.log_history if "loss" in record]
    assert len(losses) == 2
    assert all(4 < loss < 8 for loss in losses)
    assert not torch.equal(model.model.embed_tokens.weight.detach(), before)
