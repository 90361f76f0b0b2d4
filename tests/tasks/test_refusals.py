"""Settings that no task can have, and what is said of them."""

import pytest

from tessera.papers.associative_retrieval.task import AssociativeRetrieval
from tessera.papers.babilong.task import BABILong
from tessera.papers.document_qa.task import DocumentQA
from tessera.papers.induction.task import Induction
from tessera.papers.length_generalization.task import MultiQueryRecall, Reverse, Sort
from tessera.papers.many_shot.task import ManyShot
from tessera.papers.passwords.task import Passwords
from tessera.papers.regbench.task import RegBench
from tessera.papers.three_moons.task import TRAINING, ThreeMoons
from tests.refusals import refused

FEW_AUTOMATA = RegBench(states=(2, 2), alphabet=(2, 2), num_symbols=2, max_edges=1)
ALSO_ASKED = r"also_asked must be other kinds of qa1, .*; got \('qa2', "
REFUSED = {
    "rule must be one of remember, rewrite": lambda: AssociativeRetrieval("recall"),
    r"at most the number of keys \(16, key_size 1\); got 17": lambda: AssociativeRetrieval("remember", 17),
    "num_pairs must be at least 1; got 0": lambda: AssociativeRetrieval("rewrite", 0),
    "kind must be one of qa1": lambda: BABILong("qa6"),
    r"lookalikes must lie in \[0, 1\); got 1": lambda: BABILong(lookalikes=1.0),
    r"near_facts must lie in \[0, 1\); got -0.1": lambda: BABILong(near_facts=-0.1),
    r"split_facts must lie in \[0, 1\]; got 2": lambda: BABILong(split_facts=2),
    r"half_facts must lie in \[0, 1\]; got -1": lambda: BABILong(half_facts=-1),
    r"cut_facts must lie in \[0, 1\]; got 1.5": lambda: BABILong(cut_facts=1.5),
    "fewest_facts must be from 3 to 96 for qa3; got 2": lambda: BABILong("qa3", fewest_facts=2),
    f"{ALSO_ASKED}'qa1'": lambda: BABILong("qa1", also_asked=("qa2", "qa1")),
    f"{ALSO_ASKED}'qa6'": lambda: BABILong("qa1", also_asked=("qa2", "qa6")),
    "test_noise must be other books than noise": lambda: BABILong(noise="novels", test_noise="novels"),
    "no such text file": lambda: BABILong(noise="nowhere.txt").sample(1, 0),
    "at least three books": lambda: BABILong(noise=__file__).sample(1, 0),
    "length must be at least 62": lambda: DocumentQA(length=60),
    "people in all documents must be at least the questions": lambda: DocumentQA(length=128, questions=9),
    r"num_names must lie in \[152, 4900\]": lambda: DocumentQA(length=1024, num_names=100),
    "moves must be at least 1": lambda: DocumentQA(moves=0),
    r"known_names must lie in \[12, 400\]; got 3": lambda: DocumentQA(num_names=400, known_names=3),
    r"known_names must lie in \[12, 400\]; got 401": lambda: DocumentQA(num_names=400, known_names=401),
    r"wording must lie in \[0, 4\]": lambda: DocumentQA(wording=5),
    "length must be at least 4": lambda: Induction(length=3),
    r"num_triggers must lie in 1\.\.65": lambda: Induction(num_triggers=66),
    "triggers must be one of": lambda: Induction(triggers="rare"),
    "length - spread must be at least 1; got 0": lambda: Sort(length=4, spread=4),
    "length - spread must be at least 8; got 7": lambda: MultiQueryRecall(length=20, spread=13),
    "spread must be at least 0; got -1": lambda: Reverse(spread=-1),
    "num_symbols must be at least 2; got 1": lambda: Reverse(num_symbols=1),
    r"num_words must be at most num_symbols\^2": lambda: MultiQueryRecall(num_symbols=9),
    "num_words must be at least the number of pairs in the longest": lambda: MultiQueryRecall(num_words=7),
    "num_queries must be at least 1": lambda: MultiQueryRecall(num_queries=0),
    "num_classes must be between 2 and 8; got 9": lambda: ManyShot(num_classes=9),
    "distinct must be between 1 and shots": lambda: ManyShot(shots=4, distinct=5),
    "Passwords: length must be at least 58 tokens; got 57": lambda: Passwords().at_length(57),
    r"states must be .*; got \(1, 4\)": lambda: RegBench(states=(1, 4)),
    r"states must be .*; got \(6, 4\)": lambda: RegBench(states=(6, 4)),
    "alphabet must be at most num_symbols": lambda: RegBench(alphabet=(4, 30)),
    r"max_edges must lie in 1\.\.3": lambda: RegBench(max_edges=4),
    "length must be": lambda: RegBench(length=(0, 4)),
    "count must be at most the number of automata": lambda: FEW_AUTOMATA.sample(50, 0),
    "count must be at least 1": lambda: FEW_AUTOMATA.sample(0, 0),
    "context must be at least 1": lambda: ThreeMoons(context=0),
    "horizon must be at least 1, and at most 5000 - context": lambda: ThreeMoons(horizon=5000),
    "periods must be one of the train triples": lambda: ThreeMoons(periods=(1.0, 2.0, 3.0)).sample(1, 0),
    "periods must be one of the test triples": lambda: ThreeMoons(periods=TRAINING[0]).sample(1, 0, "test"),
    "split must be one of train, validation, test": lambda: ThreeMoons().sample(1, 0, "tset"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_impossible_settings_are_refused(message):
    refused(message, REFUSED[message])


def test_a_length_with_room_for_one_question_is_enough():
    assert Passwords().at_length(58).length == 58
