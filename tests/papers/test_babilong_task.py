"""BABILong: its stories against bAbI's own, where facts lie, what splits share, long samples, both scorers."""

import gzip
from dataclasses import replace
from functools import partial
from itertools import combinations, islice, pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from tessera.evaluation.task_scores import score_batches
from tessera.papers.babilong import stories as babi
from tessera.papers.babilong.sample import RESERVED, SHORTEST, HalfFacts, books_of, draw_noise
from tessera.papers.babilong.task import BABILong
from tessera.papers.babilong.vocabulary import NAMES, STORY_WORDS, Words, decode
from tessera.tasks.task import estimate
from tests.covering import each_value, some
from tests.refusals import refused
from tests.tasks.cases import VARIANTS, case_of

BABI = Path(__file__).parent / "babilong_files"
SMALL = {"length": 300, "vocab_size": 250}
pytestmark = pytest.mark.usefixtures("short_books")


@pytest.mark.parametrize("file", sorted(BABI.glob("*.txt")), ids=lambda file: file.name[:8])
def test_the_rules_are_those_of_the_public_generator(file):
    stories = babi.read_stories(file)
    assert len(stories) >= 5
    for story in stories:
        (question,) = story.questions
        assert babi.answer(babi.world_after(story.facts), question.text) == question.answer, story


@pytest.mark.parametrize(
    ("facts", "question", "expected"),
    [
        (["Mary picked up the milk there.", "Mary went back to the garden."], "Where is the milk?", "garden"),
        (["Mary got the milk.", "Mary discarded the milk.", "Mary moved to the park."], "Where is the milk?", None),
        (["Fred handed the milk to Bill.", "Bill passed Jeff the milk."], "Who gave the milk to Jeff?", "bill"),
        (["The garden is north of the park."], "What is the garden south of?", None),
        (["Mary moved to the park."], "How is Mary?", None),
    ],
)
def test_published_wordings_and_questions_without_an_answer(facts, question, expected):
    assert babi.answer(babi.world_after(facts), question) == expected


@pytest.mark.parametrize("kind", babi.LENGTHS)
def test_generated_stories(kind):
    random = Random(0)
    stories = [babi.generate(kind, random) for _ in range(50)]
    assert len({story.facts for story in stories}) > 40
    answers = {question.answer for story in stories for question in story.questions}
    assert len(answers) >= 6
    assert answers <= set(babi.labels(kind))


def test_a_fact_comes_before_the_sentence_of_its_place():
    task = BABILong("qa1", **SMALL)
    for sample in islice(task.samples(3), 20):
        context = sample.context
        words = decode(task.vocabulary, context.tokens())
        place = 0
        for fact in sample.story.facts:
            place = words.index(fact[:-1].lower() + " .", place) + 1
        noise = np.concatenate([span.tokens(0, span.num_sentences) for span in context.spans])
        assert len(noise) + sum(map(len, context.facts)) == len(context.tokens()) == task.length - RESERVED
        ends = np.cumsum([len(piece) for piece, _ in context.pieces()])
        starts = {0, *ends.tolist()}
        boundaries = np.cumsum(
            [0, *(len(span.tokens(i, i + 1)) for span in context.spans for i in range(span.num_sentences))]
        )
        shifted = 0
        for position, fact in zip(context.positions, context.facts):
            assert int(boundaries[position]) + shifted in starts
            shifted += len(fact)


@pytest.mark.parametrize("words", [{"lookalikes": 0.1}, {"near_facts": 0.01}], ids=str)
def test_samples_are_those_that_stored_results_were_made_with(words):
    """Whatever fields are named, and whatever else changes in a context or is asked of it."""
    changed = {"half_facts": 0.1, "also_asked": ("qa2",), "from_memory": True, **words}
    plain, other = (next(BABILong("qa1", **SMALL, **settings).samples(3)) for settings in ({}, changed))
    assert plain.story.facts == ("John moved to the bathroom.", "Sandra journeyed to the hallway.")
    assert plain.context.positions == (1, 1)
    assert plain.context.lookalikes is None
    assert other.story.facts == plain.story.facts, "the seed of samples names the share"


def with_words_replaced(context):
    """Its tokens, and those before words of its noise were replaced."""
    tokens, before = context.tokens(), replace(context, lookalikes=None).tokens()
    assert (tokens == context.tokens()).all(), "not the same each time"
    assert len(tokens) == len(before)
    return tokens, before


def test_lookalikes_are_words_of_stories_in_the_noise_alone():
    task = BABILong("qa1", length=2000, vocab_size=250, lookalikes=0.1)
    places = replaced = 0
    for sample in islice(task.samples(3), 10):
        tokens, before = with_words_replaced(sample.context)
        assert len(tokens) == task.length - RESERVED
        facts = [piece for piece, is_fact in sample.context.pieces() if is_fact]
        assert len(facts) == len(sample.story.facts)
        changed = tokens[tokens != before]
        assert {*decode(task.vocabulary, changed).split()} <= {*STORY_WORDS.lower().split()}
        places += len(tokens) - sum(map(len, facts))
        replaced += len(changed)
    assert 0.09 < replaced / places < 0.105  # a word may be replaced by itself


@some("kind", babi.LENGTHS, by_default=("qa1", "qa5"))
def test_near_facts_are_facts_but_for_one_name(kind):
    task = BABILong(kind, length=4000, vocab_size=250, near_facts=0.02)
    names = {*NAMES.lower().split()}
    facts = [fact.lower().replace(".", " .").split() for fact in babi.facts_of(kind)]
    tokens, before = with_words_replaced(next(task.samples(3)).context)
    words = decode(task.vocabulary, tokens).split()

    def replaced(fact: list[str], place: int) -> list[str]:
        return [one for one, other in zip(fact, words[place : place + len(fact)]) if one != other]

    begins = []
    for place in range(len(words) - 12):
        differing = [replaced(fact, place) for fact in facts]
        begins.append([] not in differing and any(len(one) == 1 and one[0] in names for one in differing))
    assert 0.01 < sum(begins) / len(begins) < 0.03  # some lie over others
    noise = decode(task.vocabulary, before).split()
    assert {word for word, old in zip(words, noise) if word != old} <= {*STORY_WORDS.lower().split(), *noise}


def test_borders_of_segments_split_the_share_of_facts_that_is_asked_for_as_far_as_there_are_places():
    segment, length = 64, 32 * 64 - 10
    plain = BABILong("qa1", length=length, vocab_size=250)
    facts = {fact.lower().rstrip(".") for fact in babi.facts_of("qa1")}
    split_share, first_halves = {}, set()
    for share in (0.0, 0.3, 1.0, None):
        task = replace(plain, split_facts=share)
        contexts = task.question_batch(64, 3, length, 0, "train", segment=segment).contexts
        assert contexts.shape == (64, length)
        rests = []
        for context in contexts:
            words = decode(task.vocabulary, context).split()
            begins = [place for place in range(length - 4) if " ".join(words[place : place + 5]) in facts]
            rests += [segment - begin % segment for begin in begins]
        split = [rest for rest in rests if rest <= 5]
        split_share[share] = len(split) / len(rests)
        first_halves |= set(split)
    assert split_share[0.0] < 0.13
    assert 0.25 < split_share[0.3] < 0.45
    assert split_share[1.0] > 0.5
    assert split_share[None] == 0
    assert first_halves == {1, 2, 3, 4, 5}, "facts are cut behind any of their words"
    without_borders = [replace(plain, split_facts=share).question_batch(4, 3, length, 0, "train") for share in (0, 1)]
    assert torch.equal(without_borders[0].contexts, without_borders[1].contexts)


FACTS = [fact.lower().rstrip(".").split() for fact in babi.facts_of("qa1")]
ENDS = {" ".join(fact[cut:]) for fact in FACTS for cut in range(1, 5)}


def test_segments_begin_with_ends_of_facts_whose_beginnings_are_nowhere():
    segment, length = 64, 16 * 64 - 10
    plain = BABILong("qa1", length=length, vocab_size=250)
    with_ends = replace(plain, half_facts=0.5)
    shares = []
    for task in (plain, with_ends):
        contexts = task.question_batch(32, 3, length, 0, "train", segment=segment).contexts
        rows = [decode(task.vocabulary, context).split() for context in contexts]
        begins = [" ".join(row[begin : begin + 6]) for row in rows for begin in range(segment, length, segment)]
        with_an_end = [text for text in begins if any(text.startswith(end) for end in ENDS)]
        shares.append(len(with_an_end) / len(begins))
    assert shares[0] < 0.1
    assert 0.3 < shares[1] < 0.55, "half of the segments, but for those beside facts"
    without, with_some = (
        task.question_batch(1, 3, length, 0, "train", segment=segment).contexts[0] for task in (plain, with_ends)
    )
    changed = (without != with_some).nonzero().flatten()
    assert len(changed) > 0
    assert all(segment <= place and place % segment < 6 for place in changed.tolist()), "only where segments begin"
    no_segments = [task.question_batch(4, 3, length, 0, "train").contexts for task in (plain, with_ends)]
    assert torch.equal(*no_segments)


@each_value(kind=sorted(babi.LENGTHS), segment=(4, 7, 64), shares={"first": (1.0, 0.0), "last": (0.0, 1.0)})
def test_ends_of_facts_hold_one_name_and_leave_facts_as_they_are(kind, segment, shares):
    first, last = shares
    task = BABILong(kind, vocab_size=250)
    names = np.unique(task._tokens(NAMES))
    halves = HalfFacts(segment, first, last, tuple(map(task._tokens, babi.facts_of(kind))), names)
    random, planted = Random(0), 0
    for sample in islice(task.samples(0), 40):
        tokens, is_fact = sample.context.tokens(), sample.context.is_fact()
        assert is_fact.sum() == sum(map(len, sample.context.facts))
        bare = np.where(is_fact, tokens, -1)  # no names but those of facts
        changed = halves.into(bare, is_fact, random)
        assert (changed == bare)[is_fact].all()
        for begin in range(segment, len(tokens), segment):
            end = changed[begin : begin + segment][~is_fact[begin : begin + segment]]
            assert np.isin(end, names).sum() <= 1
            planted += (end >= 0).any()
    assert planted > 20


def test_segments_end_with_ends_of_facts_that_have_no_beginning():
    segment, length = 64, 16 * 64 - 10
    plain = BABILong("qa1", length=length, vocab_size=250)
    cut = replace(plain, cut_facts=0.5)
    without, with_some = (
        torch.cat([task.question_batch(1, 3, length, seed, "train", segment=segment).contexts for seed in range(32)])
        for task in (plain, cut)
    )
    whole = length - length % segment  # the last segment is still open
    assert torch.equal(without[:, whole:], with_some[:, whole:])
    places = set((without != with_some).nonzero()[:, 1].remainder(segment).tolist())
    assert places == set(range(segment - 6, segment)), "four words, with up to two of the noise behind them"
    rows = [decode(plain.vocabulary, context[:whole]).split() for context in with_some]
    last_words = [row[border - 6 : border] for row in rows for border in range(segment, whole + 1, segment)]
    ended = sum(
        any(
            " ".join(words[-size - behind : len(words) - behind]) in ENDS
            for size in (1, 2, 3, 4)
            for behind in (0, 1, 2)
        )
        for words in last_words
    )
    assert 0.3 < ended / len(last_words) < 0.6, "half of the segments, but for those beside facts"


def test_training_asks_other_kinds_too_and_tests_do_not():
    plain = BABILong("qa2", length=256, vocab_size=250)
    task = replace(plain, also_asked=("qa1",))

    def questions_of(split: str, which: BABILong = task) -> list[set[str]]:
        """Those behind the contexts, and the early ones."""
        batch = which.question_batch(8, 6, 236, 0, split, early=4, segment=64)
        early = batch.early_questions[(batch.early_labels >= 0).any(-1)]
        parts = (batch.questions[batch.counts], early)
        return [{decode(task.vocabulary, row).split(" ?")[0] for row in rows} for rows in parts]

    people = {f"where is {name.lower()}" for name in babi.PEOPLE}
    things = {f"where is the {thing}" for thing in babi.THINGS}
    assert questions_of("train") == [people | things, people | things]
    assert questions_of("validation") == questions_of("train", plain) == [things, things]


@pytest.mark.parametrize(("kind", "least"), babi.FEWEST.items())
def test_stories_can_be_as_short_as_a_question_allows(kind, least):
    assert {len(babi.generate(kind, Random(seed), least, least).facts) for seed in range(20)} == {least}
    published = BABILong(kind, length=400, vocab_size=250)
    short = replace(published, fewest_facts=least)
    fewest = [min(len(one.story.facts) for one in islice(task.samples(0), 200)) for task in (published, short)]
    assert fewest[0] == babi.LENGTHS[kind][0]
    assert (fewest[1] < fewest[0]) == (least < babi.LENGTHS[kind][0])


def test_no_sentence_comes_twice_before_all_have_come():
    books = books_of(Words("stories", 250), "train")
    assert min(np.diff(book.starts).min() for book in books) >= SHORTEST
    whole = sum(len(book.tokens) for book in books)
    for seed in range(5):
        spans = draw_noise(books, whole - 1, Random(seed))
        seen = [(span.book.name, span.first + number) for span in spans for number in range(span.num_sentences)]
        assert len(seen) == len(set(seen)) == sum(book.num_sentences for book in books)
        assert sum(len(span.tokens(0, span.num_sentences)) for span in spans) == whole - 1
        again = draw_noise(books, whole + 100, Random(seed))
        assert [span.book for span in again[: len(spans)]] == [span.book for span in spans]
        assert again[-1].first == spans[0].first, "from the first place on"


def test_stories_are_read_again_when_they_are_others(tmp_path):
    for place in ("bathroom", "kitchen"):
        story = f"1 Mary moved to the {place}.\n2 Where is Mary? \t{place}\t1\n"
        for split in ("train", "test"):
            (tmp_path / f"qa1_x_{split}.txt").write_text(50 * story)
        (sample,) = BABILong("qa1", stories=str(tmp_path), **SMALL).sample(1, 0, "test").details
        assert sample.question.answer == place


def test_books_are_read_again_when_they_are_others(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.txt").write_text(f"The old book {name} is read by nobody who lives in this house. " * 40)
    task = partial(BABILong, length=128, vocab_size=250, noise=str(tmp_path))
    before = task()
    assert "old" in before.vocabulary.get_vocab()
    tokens = before.sample(2, 0).tokens
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.txt").write_text(f"The new book {name} is read by nobody who lives in this house. " * 40)
    assert torch.equal(before.sample(2, 0).tokens, tokens), "a task's samples stay what they are"
    after = task()
    assert "new" in after.vocabulary.get_vocab()
    assert "old" not in after.vocabulary.get_vocab()
    assert before.contents != after.contents


@pytest.mark.parametrize("name", ["a.txt.gz", "other.txt"])
def test_a_packed_book_or_one_by_another_name_is_no_other_book(tmp_path, name):
    for folder, file in (("noise", "a.txt"), ("test", name)):
        (tmp_path / folder).mkdir()
        write = gzip.open if file.endswith(".gz") else open
        with write(tmp_path / folder / file, "wt") as written:
            written.write("The book is read by nobody. " * 40)
    noise, test_noise = str(tmp_path / "noise"), str(tmp_path / "test")
    refused(f"test_noise must be other books than noise; got {name}", BABILong, noise=noise, test_noise=test_noise)


def test_tests_have_books_of_their_own_and_the_vocabulary_owes_them_nothing():
    own = BABILong(length=128, vocab_size=250, test_noise="novels")
    plain = BABILong(length=128, vocab_size=250)
    assert own.vocabulary.get_vocab() == plain.vocabulary.get_vocab()
    names = {split: {book.name for book in own.books(split)} for split in ("train", "validation", "test")}
    assert names["test"] == {"great_expectations_1400.txt", "pride_and_prejudice_1342.txt"}
    assert names["train"] == {book.name for book in plain.books("train")}
    assert names["validation"] == {book.name for split in ("validation", "test") for book in plain.books(split)}
    batch = own.question_batch(16, 2, 108, 0, "test")
    assert set(batch.sources.tolist()) == {0, 1}
    assert (batch.rows(3, 5).sources == batch.sources[3:5]).all()


@pytest.mark.parametrize("test_noise", [None, "novels"])
def test_the_error_of_a_score_is_that_over_books_where_there_are_several(test_noise):
    task = BABILong(length=128, vocab_size=250, test_noise=test_noise)
    batches = [task.sample(12, seed, "test") for seed in range(3)]
    books = [sample.context.spans[0].book.name for batch in batches for sample in batch.details]

    def predictions(batch):
        right = torch.tensor([sample.context.spans[0].book.name == books[0] for sample in batch.details])
        return torch.nn.functional.one_hot(batch.tokens.roll(-1, 1), 250) * right[:, None, None]

    assert np.isnan(estimate(torch.zeros(4), torch.zeros(4)).standard_error), "of one book there is none"
    score = score_batches(task, batches, predictions)["exact_match"]
    groups = torch.tensor([books.index(book) for book in books]) if test_noise else None
    assert score.count == (2 if test_noise else 36)
    assert score == pytest.approx(estimate(torch.tensor([float(book == books[0]) for book in books]), groups))


@pytest.mark.parametrize(("kind", "median"), [("qa2", 20), ("qa3", 22), ("qa5", 24)])
def test_stories_are_as_long_as_babis_generator_makes_them(kind, median):
    numbers = sorted(len(babi.generate(kind, Random(seed)).facts) for seed in range(1000))
    assert abs(numbers[500] - median) <= 2
    assert babi.LENGTHS[kind][0] <= numbers[0] <= 8
    assert babi.LENGTHS[kind][1] - 20 <= numbers[-1] <= babi.LENGTHS[kind][1]


@pytest.mark.parametrize("kind", babi.TWENTIETHS)
def test_every_twentieth_of_the_stories_is_as_frequent(kind):
    class Recorded(Random):
        def choices(self, numbers, weights):
            self.weights = dict(zip(numbers, weights))
            return super().choices(numbers, weights)

    random = Recorded(0)
    babi.generate(kind, random)
    ends = [babi.TWENTIETHS[kind][0] - 1, *babi.TWENTIETHS[kind][1:]]
    shares = [sum(random.weights[n] for n in range(first + 1, last + 1)) for first, last in pairwise(ends)]
    assert shares == pytest.approx([shares[0]] * 20)


def test_a_million_tokens_are_pieces_of_books():
    task = BABILong("qa1", length=1_000_000, vocab_size=250)
    context = next(task.samples(0, "test")).context
    pieces = [piece for piece, _ in context.pieces()]
    assert sum(map(len, pieces)) == 1_000_000 - RESERVED
    owned = sum(piece.nbytes for piece in pieces if piece.base is None)
    assert owned < 10_000, "the noise is copied"


def test_splits_share_no_book_and_no_story_of_files():
    task = BABILong("qa1", stories=str(BABI), **SMALL)
    held = [case_of(task).held_apart(task.sample(12, 0, split)) for split in ("train", "validation", "test")]
    assert not any(one & other for one, other in combinations(held, 2))


def test_stories_of_the_wrong_format(tmp_path):
    (tmp_path / "qa1_x_train.txt").write_text("Mary went home.\n")
    refused("line 1 must be", BABILong(stories=str(tmp_path), **SMALL).sample, 1, 0)
    (tmp_path / "latin").mkdir()
    (tmp_path / "latin" / "qa1_x_train.txt").write_bytes(b"1 M\xe4ry went home.\n")
    refused("text must be UTF-8; byte 3 is not", BABILong(stories=str(tmp_path / "latin"), **SMALL).sample, 1, 0)


def test_a_task_says_what_can_be_asked():
    task = BABILong("qa1", vocab_size=250, also_asked=("qa2",))
    assert "Where is Daniel?" in task.understands
    assert "bathroom, bedroom, garden, hallway, kitchen, office" in task.understands
    assert task.is_known("where is mary")
    assert task.is_known("Where is the milk?")
    assert not task.is_known("Who is in the kitchen?")
    assert task.is_stated("Sandra went to the office.")
    assert not any(task.is_stated(f"Sandra {said} the office.") for said in ("left", "did not go to"))
    assert not BABILong("qa1", vocab_size=250).is_known("Where is the milk?")
    for other in VARIANTS["babilong"]:
        sample = next(other.samples(0))
        assert other.is_known(sample.question.text)
        assert all(map(other.is_stated, sample.story.facts))
