"""What tools/gpu_check.py compares with the emulator and times on a GPU: one small input of each kind of kernel, and larger ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sizes:
    """What is timed: a square linear, logits, and positions that a row attends to."""

    width: int = 4096
    vocab: int = 151_936
    context: int = 4096
    rows: tuple[int, ...] = (1, 4, 16, 64, 512)
    cache_bytes: int = 128 * 2**20


Case = Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]


def random_weight(weight_format: str, outputs: int, inputs: int) -> Any:
    import torch

    from kernels_cupy.linear.launcher import BLOCKS, Weight

    block, size = BLOCKS[weight_format]
    generator = torch.Generator().manual_seed(1)
    data = torch.randint(0, 256, (outputs, inputs // block * size), dtype=torch.uint8, generator=generator)
    if weight_format in ("F32", "F16", "BF16"):
        kind = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[weight_format]
        data = torch.randn(outputs, inputs, generator=generator).to(kind).view(torch.uint8)
    else:  # scales are halves at the block's start, in Q6_K at its end: small numbers
        at = size - 2 if weight_format == "Q6_K" else 0
        blocks = data.view(-1, size)
        blocks[:, at + 1] = 0x24
        if weight_format in ("Q4_1", "Q4_K"):
            blocks[:, 3] = 0x24
    return Weight(data, weight_format, inputs)


def cases() -> dict[str, Case]:
    """One small input of each kind of kernel."""
    import torch

    from kernels_cupy.attention.launcher import attention
    from kernels_cupy.causal_conv.launcher import Sequences, causal_conv
    from kernels_cupy.elementwise.launcher import soft_cap
    from kernels_cupy.gdn_gating.launcher import gdn_gating
    from kernels_cupy.gdn_recurrence.launcher import gdn_recurrence
    from kernels_cupy.linear.launcher import BLOCKS, Weight, linear
    from kernels_cupy.moe_linear.launcher import ExpertWeights, moe_linear
    from kernels_cupy.moe_routing.launcher import Routing, combine, route
    from kernels_cupy.rms_norm.launcher import rms_norm
    from kernels_cupy.rope_kv.launcher import Paged
    from kernels_cupy.silu_mul.launcher import gelu_tanh_mul, silu_mul

    torch.manual_seed(3)

    def int32(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    def empty(x: torch.Tensor, *shape: int) -> torch.Tensor:
        return torch.empty(shape or x.shape, device=x.device)

    def of_linear(name: str) -> Case:
        weight = random_weight(name, 33, 512)
        run = lambda device, x, data: linear(device, x, Weight(data, name, 512), empty(x, len(x), 33))  # noqa: E731
        return lambda: (run, (torch.randn(9, 512), weight.data))

    def of_attention() -> Any:
        def run(device: Any, q: Any, keys: Any, values: Any, positions: Any, sequences: Any, tables: Any) -> Any:
            return attention(device, q, Paged(keys, values, positions, sequences, tables), empty(q), None, 60, 20.0)

        cache = [torch.randn(9, 2, 16, 64).half() for _ in range(2)]
        tables = torch.arange(9, dtype=torch.int32)[None]
        return run, (torch.randn(3, 256), *cache, int32(140, 17, 0), int32(0, 0, 0), tables)

    def of_recurrence() -> Any:
        def run(device: Any, qkv: Any, gates: Any, state: Any, *where: Any) -> Any:
            return gdn_recurrence(device, qkv, gates, state, Sequences(*where), 1, False, empty(qkv, 5, 256))

        gates = torch.cat([torch.rand(5, 2), -torch.rand(5, 2)], dim=1)
        return run, (torch.randn(5, 512), gates, torch.randn(1, 2, 128, 128), int32(0, 5), int32(4, 5, 6, 7, 8), int32(0))

    def of_conv() -> Any:
        def run(device: Any, x: Any, weight: Any, state: Any, *where: Any) -> Any:
            return causal_conv(device, x, weight, state, Sequences(*where), empty(x))

        return run, (
            torch.randn(5, 300),
            torch.randn(4, 300),
            torch.randn(1, 3, 300),
            int32(0, 5),
            int32(4, 5, 6, 7, 8),
            int32(0),
        )

    def of_mixture() -> Any:
        def run(device: Any, x: Any, scores: Any, of_rows: Any, *data: Any) -> Any:
            weights = ExpertWeights.of([[Weight(part, "Q4_0", 256)] for part in data], x.device)
            routing = route(device, scores, of_rows, True, Routing.empty(len(x), len(data), 2, x.device))
            return combine(
                device, moe_linear(device, x, weights, routing, 2, empty(x, 2 * len(x), 40)), routing, empty(x, len(x), 40)
            )

        data = [random_weight("Q4_0", 40, 256).data for _ in range(5)]
        return run, (torch.randn(13, 256), torch.randn(13, 5), int32(*[0] * 13), *data)

    def of_rows(op: Any, columns: int) -> Case:
        return lambda: (lambda device, x: op(device, x, empty(x, len(x), columns)), (torch.randn(7, 600) * 5,))

    gating = lambda device, ba, decay, bias: gdn_gating(device, ba, decay, bias, empty(ba))  # noqa: E731
    norm = lambda device, x, weight: rms_norm(device, x, weight, 1e-5, empty(x))  # noqa: E731
    return {
        **{f"linear {name}": of_linear(name) for name in BLOCKS},
        "attention": of_attention,
        "mixture of experts": of_mixture,
        "gdn_recurrence": of_recurrence,
        "causal_conv": of_conv,
        "gdn_gating": lambda: (gating, (torch.randn(5, 40) * 9, -torch.rand(20), torch.randn(20))),
        "rms_norm": lambda: (norm, (torch.randn(5, 700), torch.randn(700))),
        "silu_mul": of_rows(silu_mul, 300),
        "gelu_tanh_mul": of_rows(gelu_tanh_mul, 300),
        "soft_cap": of_rows(lambda device, x, out: soft_cap(device, x, 10.0, out), 600),
    }


def benchmarks(
    gpu: Any, where: str = "cuda", sizes: Sizes = Sizes()
) -> dict[str, Callable[[], tuple[Callable[[], Any], dict[str, float]]]]:
    """Work, and what of it per millisecond is worth saying: 1e6 bytes (GB/s) and 1e9 operations (TFLOP/s)."""
    import torch

    from kernels_cupy.argmax.launcher import argmax
    from kernels_cupy.attention.launcher import attention, partials_of
    from kernels_cupy.keyed_sampling.launcher import Rules, keyed_sample
    from kernels_cupy.linear.launcher import Weight, linear
    from kernels_cupy.moe_linear.launcher import ExpertWeights, moe_linear
    from kernels_cupy.moe_routing.launcher import Routing, route
    from kernels_cupy.rope_kv.launcher import Paged

    def of_linear(name: str, rows: int) -> Any:
        def make() -> Any:
            made = random_weight(name, sizes.width, sizes.width)
            copies = -(-sizes.cache_bytes // made.data.numel())  # so that each run reads from memory, not from the device's cache
            weights = itertools.cycle([Weight(made.data.to(where).clone(), name, sizes.width) for _ in range(copies)])
            x, out = torch.randn(rows, sizes.width, device=where), torch.empty(rows, sizes.width, device=where)
            moved = {"GB/s": made.data.numel() / 1e6, "TFLOP/s": 2 * rows * sizes.width**2 / 1e9}
            return lambda: linear(gpu, x, next(weights), out), moved

        return make

    def of_attention(rows: int) -> Any:
        def make() -> Any:
            blocks = rows * sizes.context // 16
            keys, values = (torch.randn(blocks, 8, 16, 128, device=where, dtype=torch.float16) for _ in range(2))
            tables = torch.arange(blocks, dtype=torch.int32, device=where).view(rows, -1)
            at = torch.full((rows,), sizes.context - 1, dtype=torch.int32, device=where)
            paged = Paged(keys, values, at, torch.arange(rows, dtype=torch.int32, device=where), tables)
            q = torch.randn(rows, 32 * 128, device=where)
            out, shape = torch.empty_like(q), partials_of(rows, 32, 128, tables.shape[1])
            partials = torch.empty(shape, device=where) if shape else None
            return lambda: attention(gpu, q, paged, out, partials=partials), {"GB/s": 2 * keys.numel() * 2 / 1e6}

        return make

    def of_mixture(rows: int) -> Any:
        def make() -> Any:
            data = [random_weight("Q4_1", sizes.width // 2, sizes.width // 2).data.to(where) for _ in range(32)]
            weights = ExpertWeights.of([[Weight(part, "Q4_1", sizes.width // 2)] for part in data], where)
            x, scores = torch.randn(rows, sizes.width // 2, device=where), torch.randn(rows, 32, device=where)
            routing = Routing.empty(rows, 32, 4, where)
            route(gpu, scores, torch.zeros(rows, dtype=torch.int32, device=where), True, routing)
            out = torch.empty(4 * rows, sizes.width // 2, device=where)
            taken = len({int(expert) for expert in routing.ids.cpu().reshape(-1)})
            return lambda: moe_linear(gpu, x, weights, routing, 4, out), {"GB/s": taken * data[0].numel() / 1e6}

        return make

    def of_sampling(rows: int, top_k: int, top_p: float) -> Any:
        def make() -> Any:
            logits = torch.randn(rows, sizes.vocab, device=where) * 3
            numbers = [(1.0, torch.float32), (top_k, torch.int32), (top_p, torch.float32), (-float("inf"), torch.float32)]
            columns = [torch.full((rows,), value, dtype=kind, device=where) for value, kind in numbers]
            seed, position = (torch.arange(rows, dtype=kind, device=where) for kind in (torch.int64, torch.int32))
            return lambda: keyed_sample(gpu, logits, Rules(*columns, seed, position)), {}

        return make

    def of_argmax(rows: int) -> Any:
        def make() -> Any:
            logits = torch.randn(rows, sizes.vocab, device=where)
            return lambda: argmax(gpu, logits), {"GB/s": logits.numel() * 4 / 1e6}

        return make

    return {
        **{f"linear {name} x{rows}": of_linear(name, rows) for name in ("Q4_1", "Q4_K", "Q8_0", "BF16") for rows in sizes.rows},
        **{f"attention x{rows}": of_attention(rows) for rows in (1, 16, 64)},
        **{f"mixture x{rows}": of_mixture(rows) for rows in (1, 16)},
        **{f"sample x{rows}": of_sampling(rows, 0, 1.0) for rows in (1, 16)},
        **{f"sample top-k/p x{rows}": of_sampling(rows, 50, 0.9) for rows in (1, 16)},
        **{f"argmax x{rows}": of_argmax(rows) for rows in (1, 16)},
    }
