"""Any checkpoint is scored on any task of tokens: the oracle scores 1, lengths are lengths, refusals are said."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch.nn.functional import one_hot

from tessera import MemoryMosaicConfig
from tessera.data.tokenizers import train_bpe
from tessera.evaluation.task_scores import make_task, score_batches, score_task
from tessera.papers.babilong.stories import examples_of, facts_of
from tessera.tasks.task import TASKS, TokenExamples
from tests.refusals import refused, refused_in_a_line
from tests.tasks.cases import VARIANTS, case_of

pytestmark = pytest.mark.usefixtures("short_books")

TOKEN_TASKS = [name for name, task in TASKS.items() if hasattr(task, "vocab_size")]


def predicting(logits, vocab_size):
    """A model whose logits are a function of tokens."""
    return Mock(
        side_effect=lambda tokens, use_cache: SimpleNamespace(logits=logits(tokens)),
        config=MemoryMosaicConfig(vocab_size=vocab_size),
        device=torch.device("cpu"),
    )


class Oracle:
    """A model that answers as the task's oracle does, with a vocabulary larger than the task's."""

    def __init__(self, task, extra=3):
        self.task, self.extra, self.calls = task, extra, []
        self.config = SimpleNamespace(model_type="oracle", to_diff_dict=dict)
        self.config.get_text_config = lambda: SimpleNamespace(vocab_size=task.vocab_size + extra)
        self.device = torch.device("cpu")

    def __call__(self, tokens, use_cache):
        self.calls.append(tokens)
        logits = case_of(self.task).oracle(self.examples)[self.row : self.row + len(tokens)]
        self.row += len(tokens)
        above = torch.full((*logits.shape[:2], self.extra), 1e9)  # tokens that the task does not have do not count
        return SimpleNamespace(logits=torch.cat([logits, above.to(logits)], -1))


@pytest.mark.parametrize("name", TOKEN_TASKS)
def test_an_oracle_scores_one(name, monkeypatch):
    task = VARIANTS[name][-1]
    model, sample = Oracle(task), type(task).sample

    def remember(self, *arguments):
        model.examples, model.row = sample(self, *arguments), 0
        return model.examples

    monkeypatch.setattr(type(task), "sample", remember)
    rows = []
    scores = score_task(model, task, examples=5, batch_size=2, rows=rows)
    assert scores[task.main_score].mean == 1
    assert scores[task.main_score].count == 5
    assert [len(tokens) for tokens in model.calls] == [2, 2, 1]
    assert len(rows) == 5
    for row in rows:
        assert row["prompt"]
        assert row["target"]
        assert isinstance(row["target"], str) == hasattr(task, "vocabulary")
        assert not hasattr(task, "vocabulary") or row["answer"] == row["target"]
    assert not torch.equal(model.calls[0], model.calls[1])


@pytest.mark.parametrize("name", ["passwords", "mqmtar"])
def test_which_questions_are_asked_does_not_depend_on_how_many_are_read_at_once(name):
    task = TASKS[name]()
    rows_by_batch_size = []
    for batch_size in (1, 3, 8, 16):
        rows = []
        model = predicting(lambda tokens: torch.zeros(*tokens.shape, task.vocab_size), task.vocab_size)
        score_task(model, task, examples=12, batch_size=batch_size, rows=rows)
        assert max(len(call.args[0]) for call in model.call_args_list) == min(batch_size, 8)
        rows_by_batch_size.append([(row["prompt"], row["target"]) for row in rows])
    assert all(rows == rows_by_batch_size[0] for rows in rows_by_batch_size)
    assert len({str(row) for row in rows_by_batch_size[0]}) == 12


def test_answers_are_predicted_among_all_tokens_of_a_tokenizer(tmp_path):
    """Its tokens may be more than `vocab_size`, which counts the words of a task without one."""
    tokenizer = train_bpe([*facts_of("qa1"), *examples_of("qa1"), *(9 * ["\nQuestion:\nAnswer:"])], 500)
    tokenizer.save_pretrained(tmp_path)
    task = TASKS["babilong"](kind="qa1", length=1500, vocab_size=300, tokenizer=str(tmp_path))
    assert min(min(task.answer_tokens(word)) for word in task.labels) < 300 < len(tokenizer)
    assert max(max(task.answer_tokens(word)) for word in task.labels) >= 300
    model = predicting(lambda tokens: one_hot(tokens.roll(-1, 1), len(tokenizer)).float(), len(tokenizer))
    assert score_task(model, task, examples=8, batch_size=4)["exact_match"].mean == 1
    model.config = MemoryMosaicConfig(vocab_size=len(tokenizer) - 1)
    refused(rf"know BABILong's {len(tokenizer)} tokens", score_task, model, task)


@pytest.mark.parametrize("name", list(TASKS))
def test_longer_is_longer(name):
    def size(length):
        examples = TASKS[name]().at_length(length).sample(2, 0, "test")
        return (examples.tokens if isinstance(examples, TokenExamples) else examples.observations).shape[1]

    # A length of many_shot is in shots, and its smallest class has 95 examples.
    shorter, longer = (8, 16) if name == "many_shot" else (120, 240)
    assert size(longer) > size(shorter)


def test_settings_are_yaml_and_checked():
    task = make_task("associative_retrieval", ["rule=remember", "num_pairs=3"])
    assert (task.rule, task.num_pairs) == ("remember", 3)
    assert make_task("regbench", ["strings=[2, 3]"]).strings == (2, 3)
    for name, settings, message in (
        ("associative_retrieval", ["num_pair=3"], "no setting 'num_pair'. Did you mean 'num_pairs'?"),
        ("associative_retrieval", ["num_pairs"], "--set must be key=value; got 'num_pairs'."),
        ("associative_retrieval", ["num_pairs=0"], "num_pairs must be at least 1; got 0."),
        ("associative_retrieval", ["num_pairs=a"], "num_pairs must be an integer; got 'a'."),
        ("associative_retrieval", ["num_pairs=[1"], "must be a YAML value"),
        ("asociative_retrieval", [], "Did you mean 'associative_retrieval'?"),
    ):
        refused_in_a_line(message, make_task, name, settings)


def test_what_cannot_be_scored_is_said():
    task = make_task("associative_retrieval", [])
    refused(r"know AssociativeRetrieval's 19 tokens; got vocab_size 18\.", score_task, Oracle(task, extra=-1), task)
    refused("--task must be about tokens", score_task, Oracle(task), TASKS["three_moons"]())
    model = predicting(lambda tokens: torch.full((*tokens.shape, 19), torch.nan), task.vocab_size)
    refused("the model's predictions must be numbers; got NaN", score_task, model, task, examples=1)


def test_predictions_that_are_no_numbers_are_not_left_out_of_a_mean():
    """Half of them NaN, the others right: the skill was 1."""
    task = TASKS["three_moons"]()
    examples = task.sample(4, 0)
    future = examples.future.clone()
    future[:2] = torch.nan
    assert score_batches(task, [examples], lambda batch: batch.future)["skill"].mean == 1.0
    refused("the model's predictions must be numbers; got NaN", score_batches, task, [examples], lambda batch: future)
