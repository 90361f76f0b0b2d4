"""What a run of other libraries' tests says of failures: `python -m tests.peers` itself takes minutes."""

from tests.peers.__main__ import compared
from tests.peers.by_design import BY_DESIGN

LISTED = dict.fromkeys(BY_DESIGN["V1Test"], "failed")


def test_known_failures_have_a_reason_and_others_are_surprises():
    known, surprises = compared({"V1Test": LISTED | {"test_other": "passed"}})
    assert surprises == []
    assert known == {BY_DESIGN["V1Test"][test]: [f"V1Test: {test}"] for test in LISTED}
    _, surprises = compared({"V1Test": LISTED | {"test_other": "failed", "test_attention_outputs": "passed"}})
    fails, passes = "test_other fails and is not listed.", "test_attention_outputs is listed and passes."
    assert surprises == [f"V1Test: {fails}", f"V1Test: {passes}"]
    assert compared({}) == ({}, ["nothing ran."])
