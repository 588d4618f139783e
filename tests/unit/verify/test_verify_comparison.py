"""What counts as a mismatch."""

from __future__ import annotations

import pytest

from helexa.verify.comparison import Comparison, Stream, compare

ALONE = {0: [(5, 11), (6, 12), (7, 13)], 1: [(8, 14)]}


@pytest.mark.parametrize(
    ("tokens", "cut", "compared", "mismatches", "first"),
    [
        ([(5, 11), (6, 12), (7, 13)], False, 3, 0, ""),
        ([(5, 11), (9, 20), (7, 13)], False, 3, 1, "request 0, token 1: id 9, alone 6"),
        ([(5, 11), (6, 99), (7, 13)], False, 3, 1, "request 0, token 1: same id 6, other logits"),
        ([(5, 11), (6, None), (7, 0)], False, 3, 2, "request 0, token 1: no digest of its logits came"),
        ([(5, 11)], False, 3, 2, "request 0 ended after 1 of 3 tokens"),
        ([(5, 11), (6, 12), (7, 13), (8, 14)], False, 4, 1, "request 0 went on after its 3 tokens"),
        ([], False, 3, 3, "request 0 ended after 0 of 3 tokens"),
        ([(5, 11), (6, 12)], True, 2, 0, ""),
        ([(5, 11), (6, 12), (7, 13), (8, 14)], True, 3, 0, ""),
        ([(5, 11), (7, 12)], True, 2, 1, "request 0, token 1: id 7, alone 6"),
    ],
)
def test_one_stream(tokens, cut, compared, mismatches, first):
    """An id, a digest, a missing digest and a wrong length are mismatches; one that was cut is compared as far as it goes."""
    assert compare(ALONE, [Stream(0, tokens, cut)]) == Comparison(compared, mismatches, first)


def test_streams_add_up():
    """All streams are counted, and the first mismatch is kept."""
    seen = compare(ALONE, [Stream(1, [(8, 14)]), Stream(0, [(5, 11), (6, 12), (7, 1)]), Stream(1, [(9, 14)])])
    assert (seen.tokens, seen.mismatches) == (5, 2) and seen.first.startswith("request 0, token 2")


def test_a_baseline_without_digests_cannot_match_itself():
    """Two sides without digests are not the same logits: nothing is known about them."""
    assert compare({0: [(1, None)]}, [Stream(0, [(1, None)])]).mismatches == 1
