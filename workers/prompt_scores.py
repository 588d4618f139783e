"""Log probabilities of a prompt's own tokens, part by part. Pure but for what the seat remembers between parts."""

from __future__ import annotations

from ipc.messages import TokenLogprobs
from workers.ops.protocol import Logits
from workers.sampler import log_probabilities
from workers.seats import Seat


def score(seat: Seat, start: int, logits: Logits) -> tuple[int, list[TokenLogprobs]]:
    """(i, log probabilities of prompt tokens i + 1, ...) from the (R, V) logits of the part's first positions, from `start`.

    The token after a part's last one is not known before the next part: its row is kept until then.
    """
    best, values, first = seat.params.prompt_logprobs, [], start
    if seat.unscored is not None:
        first, values = start - 1, [log_probabilities(seat.unscored, seat.ids[start], best)]
        seat.unscored = None
    for row, line in enumerate(logits):
        following = start + row + 1
        if following < len(seat.ids):
            values.append(log_probabilities(line, seat.ids[following], best))
        else:
            seat.unscored = line.copy()
    return first, values
