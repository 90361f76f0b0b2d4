"""What is shown of document questions, and that the stages are trained and tested as they say."""

import json
from itertools import combinations, pairwise
from random import Random

import pytest
import torch

from tessera.kernels import kernel_from_config
from tessera.papers.document_qa.prompting import (
    DocumentQuestion,
    QuestionFile,
    contains_answer,
    longest_prompt,
    read_questions,
    write_prompt,
)
from tessera.papers.document_qa.report import BUDGETS, EXPERIMENT, build
from tessera.papers.document_qa.task import NUM_NAMES, DocumentQA, names, write_document
from tessera.papers.experiment import RunContext
from tests.refusals import refused

SMOKE = BUDGETS["smoke"]


def test_tuning_goes_on_from_training_and_long_term_memories_are_on_again(tmp_path):
    run = SMOKE.run("mosaic_v2", 0)
    outcome = EXPERIMENT.execute(run, RunContext(tmp_path))
    assert (outcome["training"]["steps"], outcome["tuning"]["steps"]) == (2, 2)
    assert list(outcome["training"]["scores"]) == ["64", "128"]
    assert outcome["training"].keys() == outcome["tuning"].keys()
    again = EXPERIMENT.execute(run, RunContext(tmp_path))  # both trainings are found finished
    assert again["tuning"]["scores"] == outcome["tuning"]["scores"]
    assert again["tuning"]["without_long_term_memory"] == outcome["tuning"]["without_long_term_memory"]


def test_the_short_term_memory_spans_what_the_settings_say():
    model_settings = SMOKE.run("mosaic_v2", 0).configuration
    model = build(model_settings)
    assert model.config.short_term_span == model_settings.span
    assert model.config.long_term_delay == model_settings.span // 4
    assert tuple(model.config.training_long_term_delay) == (model_settings.span // 4, model_settings.span)
    assert torch.isfinite(model(torch.zeros(1, 8, dtype=torch.long)).logits).all()


def test_each_row_of_v2_has_its_kernel():
    names = ("mosaic_v2", "mosaic_v2_biweight", "mosaic_v2_triweight")
    kernels = [build(SMOKE.run(name, 0).configuration).config.kernel for name in names]
    assert [kernel_from_config(kernel).name for kernel in kernels] == ["gaussian", "biweight", "triweight"]
    assert build(SMOKE.run("llama", 0).configuration).config.model_type == "llama"


def test_easier_forms_come_before_the_training_of_the_twin():
    for model, count in (("mosaic_v2", 0), ("llama", 6), ("lstm", 0)):
        stages = BUDGETS["cpu"].run(model, 0).configuration.stages()
        assert [stage.name for stage in stages] == [*(f"stage-{n}" for n in range(count)), "training", "tuning"]
        drawn_from = [(stage.first_seed, {repr(task) for task in stage.tasks}) for stage in stages]
        apart = [one[0] != other[0] or not one[1] & other[1] for one, other in combinations(drawn_from, 2)]
        assert all(apart), "two stages would see the same samples"
    stages = BUDGETS["cpu"].run("llama", 0).configuration.stages()
    documents = [[task.num_documents for task in stage.tasks] for stage in stages[:6]]
    assert documents == [[1], [1] * 5, [1] * 5, [1, 1, 1, 1, 1, 2], [1, 2, 3], [1, 2, 3]]
    assert all(task.length == task.length_of(task.num_documents) for stage in stages[:6] for task in stage.tasks)
    assert len({stage.tasks[0].vocab_size for stage in stages}) == 1


def paragraph(context, *questions):
    """Of SQuAD: a context and its questions, each before its answers."""
    asked = [{"question": text, "answers": [{"text": one} for one in answers]} for text, *answers in questions]
    return {"context": context, "qas": [one if one["answers"] else one | {"is_impossible": True} for one in asked]}


NORMANS = paragraph("Normans lived in France.", ("Where?", "France", "France", "in France"), ("When?",))
OXYGEN = paragraph("Oxygen is a gas.", ("What?", "a gas"))
SQUAD = {"data": [{"paragraphs": [NORMANS, paragraph("They spoke Norman.")]}, {"paragraphs": [OXYGEN]}]}


def test_squad(tmp_path):
    path = tmp_path / "dev.json"
    path.write_text(json.dumps(SQUAD))
    file = read_questions("squad", path)
    assert file.documents == ("Normans lived in France.", "They spoke Norman.", "Oxygen is a gas.")
    assert file.questions == (
        DocumentQuestion("Where?", ("France", "in France"), (0,), (1,)),
        DocumentQuestion("What?", ("a gas",), (2,), ()),
    )
    path.write_text("\ufeff" + json.dumps(SQUAD))
    assert read_questions("squad", path) == file
    for damaged in ("[]", "[" * 100_000):
        path.write_text(damaged)
        refused("must be a file of squad", read_questions, "squad", path)
    path.write_text(json.dumps(SQUAD).replace('"a gas"', '""'))  # which every output would hold
    refused("a question and its answers must be texts", read_questions, "squad", path)
    refused("cannot be read", read_questions, "squad", tmp_path / "none.json")


def test_hotpotqa(tmp_path):
    rows = [
        {"question": "Who?", "answer": "Ann", "context": [["A", ["One.", " Two."]], ["B", ["Three."]]]},
        {"question": "What?", "answer": "yes", "context": [["B", ["Three."]], ["C", ["Four."]]]},
    ]
    path = tmp_path / "dev.json"
    path.write_text(json.dumps(rows))
    file = read_questions("hotpotqa", path)
    assert file.documents == ("A\nOne. Two.", "B\nThree.", "C\nFour.")
    assert [question.golden for question in file.questions] == [(0, 1), (1, 2)]
    assert file.questions[1].answers == ("yes",)
    path.write_text(json.dumps([{**rows[0], "answer": None}]))
    refused("a question and its answers must be texts", read_questions, "hotpotqa", path)
    path.write_text("[]")
    refused("the file must hold questions", read_questions, "hotpotqa", path)


FILE = QuestionFile(tuple(f"text {number}" for number in range(20)), (DocumentQuestion("Why?", ("x",), (3,), (4, 5)),))


def test_a_prompt_is_rulers():
    order = (
        "Answer the question based on the given documents. Only give me the answer and do not output any other words."
    )
    assert write_prompt(FILE, FILE.questions[0], 1, Random(0)) == (
        f"{order}\n\nThe following are given documents.\n\nDocument 1:\ntext 3\n\n{order}\n\nQuestion: Why? Answer:"
    )


def test_the_same_article_distracts_first():
    for count, needed in ((2, {"text 3"}), (3, {"text 3", "text 4", "text 5"}), (9, {"text 3", "text 4", "text 5"})):
        lines = write_prompt(FILE, FILE.questions[0], count, Random(0)).splitlines()
        documents = [line for line in lines if line.startswith("text ")]
        assert len(set(documents)) == count
        assert needed <= set(documents)
        assert [line for line in lines if line.startswith("Document ")] == [
            f"Document {number}:" for number in range(1, count + 1)
        ]
    places = {write_prompt(FILE, FILE.questions[0], 9, Random(seed)).index("text 3\n") for seed in range(9)}
    assert len(places) > 3, "the document with the answer moves"


def test_as_many_documents_as_fit():
    question = FILE.questions[0]

    def count(text):
        return len(text.split())

    fixed = count(write_prompt(FILE, question, 1, Random(0)))
    for length in range(fixed + 5, fixed + 60):
        prompt, num_documents = longest_prompt(FILE, question, length, count, seed=1, answer_tokens=5)
        assert count(prompt) == fixed + 4 * (num_documents - 1)
        assert count(prompt) + 5 <= length
        assert num_documents == min(20, 1 + (length - 5 - fixed) // 4)
    message = f"length must be at least {fixed + 5} tokens .*; got {fixed + 4}"
    refused(message, longest_prompt, FILE, question, fixed + 4, count, seed=1, answer_tokens=5)


def test_an_answer_counts_wherever_it_stands():
    assert contains_answer("It was in FRANCE, long ago", ("France",))
    assert not contains_answer("Spain", ("France", "Gaul"))


def test_stories():
    assert len(set(names())) == NUM_NAMES
    document = write_document(("bado", "kiru"), 3, Random(0))
    assert len(document.facts) == 6
    for person, place in document.places:
        moves = [fact.split()[-1] for fact in document.facts if fact.startswith(person)]
        assert moves[-1] == place
        assert all(one != other for one, other in pairwise(moves)), "everybody goes to another place"


@pytest.mark.parametrize("length", [128, 300, 1024])
def test_documents_fill_the_sample(length):
    task = DocumentQA(length=length, num_names=400, questions=5)
    examples = task.sample(4, 0)
    assert (examples.labels >= 0).sum(1).tolist() == [5] * 4
    used = (examples.tokens != 0).sum(1)
    assert (length - used < 26).all()
    for sample in examples.details:
        people = [person for document in sample.documents for person, _ in document.places]
        assert len(set(people)) == len(people) == 4 * task.num_documents
        assert len({person for person, _ in sample.questions}) == 5


WORDED = [
    ("bado kitchen .", "question : bado kitchen"),
    ("bado the kitchen .", "question : bado ? kitchen"),
    ("bado to the kitchen .", "question : bado ? answer kitchen"),
    ("bado went to the kitchen .", "question : where is bado ? answer : kitchen"),
]


@pytest.mark.parametrize(("wording", "fact", "question"), [(number, *forms) for number, forms in enumerate(WORDED)])
def test_plainer_wordings(wording, fact, question):
    task = DocumentQA(length=40, num_names=40, known_names=8, questions=1, people=2, wording=wording)
    for row in range(5):
        examples = task.sample(5, 3)
        (sample_documents, ((person, place),)) = examples.details[row].documents, examples.details[row].questions
        assert len(sample_documents) == task.num_documents
        documents = []
        for document in sample_documents:
            people = [sentence.split()[0] for sentence in document.facts]
            where = dict(document.places)
            assert set(people) <= set(names()[:8])
            facts = [fact.replace("bado", one).replace("kitchen", where[one]) for one in people]
            documents.append(" ".join(["document :", *facts]))
        asked = question.replace("bado", person).replace("kitchen", place)
        words = [task.vocabulary[token] for token in examples.tokens[row] if token]
        assert " ".join(words) == " ".join([*documents, asked])
