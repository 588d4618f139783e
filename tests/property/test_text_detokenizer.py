"""Any cutting of bytes into tokens gives the same text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from helexa.text.detokenizer import Detokenizer

piece = st.one_of(
    st.binary(max_size=6), st.text(max_size=3).map(str.encode), st.sampled_from([b"\xf0\x9f", b"\x98\x80", b"\xe2", b"\xc0"])
)


@given(st.lists(piece, max_size=20))
def test_equals_decoding_the_whole(pieces: list[bytes]) -> None:
    """Pushed piece by piece, valid or not, the text is that of the bytes decoded at once."""
    detokenizer = Detokenizer(lambda id: pieces[id])
    text = "".join(detokenizer.push(id) for id in range(len(pieces))) + detokenizer.flush()
    assert text == b"".join(pieces).decode(errors="replace")


@given(st.text(max_size=12), st.data())
def test_every_prefix_is_whole_characters(text: str, data: st.DataObject) -> None:
    """Of valid text, what is out is always a prefix, and what is held is less than one character."""
    whole = text.encode(errors="replace")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    detokenizer = Detokenizer(lambda id: pieces[id])
    out, pushed = "", b""
    for id, bytes_in in enumerate(pieces):
        out += detokenizer.push(id)
        pushed += bytes_in
        assert pushed.startswith(out.encode()) and len(pushed) - len(out.encode()) < 4
