"""A model's quantisations against its float32 weights, over one text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from helexa.formats.checkpoint import model_path, open_checkpoint
from helexa.formats.quantise import QUANTS
from helexa.quality.comparing import ROWS, Comparison, Ids, Side, compare
from workers.models.registry import load_model
from workers.ops.choice import choose_ops
from workers.weights.opening import Quantising, open_model
from workers.weights.quantised import quantised_info

AS_IT_IS = "as it is"  # the file's own weights


@dataclass(frozen=True)
class Measured:
    """One quantisation: its name in `model.quant`, or AS_IT_IS; the bytes of its weights."""

    name: str
    bytes: int
    compared: Comparison


def possible(files: Mapping[str, str]) -> list[str]:
    """What the model's float matrices can be quantised to; none where it has none."""
    with closing(open_checkpoint(model_path(files))) as checkpoint:
        tensors = list(checkpoint.tensors.values())
    return [quant for quant in QUANTS if any(quantised_info(tensor, quant) for tensor in tensors)]


def measured(
    files: Mapping[str, str], quants: Sequence[str], ids: Ids, ops: str, threads: int, report: Callable[[str], None]
) -> Iterator[Measured]:
    """The file's own weights, then each of `quants`, one at a time, on `ops`; float32 is the reference ops'. ModelFileError."""
    float_ops = choose_ops("reference", threads, ROWS, ROWS)
    with closing(open_checkpoint(model_path(files))) as floats:
        first = Side(load_model(floats, float_ops), float_ops)
        for quant in ("", *quants):
            name = quant or AS_IT_IS
            report(f"{name}: {len(ids):,} tokens")
            with closing(open_model(files, Quantising(quant), threads, report)) as opened:
                own_ops = choose_ops(ops, threads, ROWS, ROWS)
                second = Side(load_model(opened, own_ops), own_ops)
                count = sum(tensor.nbytes for tensor in opened.tensors.values())
                yield Measured(name, count, compare(first, second, ids))
