"""Norms, gates, rotary embedding and attention against their references, in ragged batches with padding and broken rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from kernels_cupy.attention import launcher as attention_launcher
from kernels_cupy.attention.reference import attend
from kernels_cupy.checks import ACT_NAMES, KernelArgumentError
from kernels_cupy.elementwise import launcher as elementwise
from kernels_cupy.elementwise import reference as elementwise_reference
from kernels_cupy.registry import HEAD_DIMS, KV_OF_ACTIVATION
from kernels_cupy.rms_norm import reference as norm_reference
from kernels_cupy.rms_norm.launcher import add_rms_norm, gated_rms_norm, norm_heads, rms_norm
from kernels_cupy.rope_kv.launcher import BLOCK_SIZE, KV_DTYPES, Paged, rope_kv_write
from kernels_cupy.rope_kv.reference import rotate
from kernels_cupy.silu_mul import reference as silu_reference
from kernels_cupy.silu_mul.launcher import gelu_tanh_mul, silu_mul

NAN = float("nan")
DTYPES = {name: dtype for dtype, name in ACT_NAMES.items()}
ROUNDING = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}


def normal(random: np.random.Generator, *shape: int, act: str = "f32") -> torch.Tensor:
    return torch.from_numpy(random.standard_normal(shape).astype(np.float32)).to(DTYPES[act])


@pytest.mark.parametrize("act", DTYPES)
@pytest.mark.parametrize("width", [5, 576])
def test_rms_norm(device: Any, place: Any, random: np.random.Generator, act: str, width: int) -> None:
    """Within a few roundings of float64; a NaN spoils its own row only."""
    x, weight = normal(random, 4, width, act=act), normal(random, width)
    expected = norm_reference.rms_norm(x, weight, 1e-5)
    got = rms_norm(device, place(x), place(weight), 1e-5, place(torch.empty_like(x))).cpu()
    assert ((got.double() - expected).abs() <= expected.abs() * (ROUNDING[act] + 2.0**-19)).all()
    x[2, width - 1] = NAN
    broken = rms_norm(device, place(x), place(weight), 1e-5, place(torch.empty_like(x))).cpu()
    assert broken[2].isnan().all() and torch.equal(broken[[0, 1, 3]], got[[0, 1, 3]])


@pytest.mark.parametrize("act", DTYPES)
def test_the_norm_of_a_sum_is_the_sum_then_the_norm(device: Any, place: Any, random: np.random.Generator, act: str) -> None:
    """Bit for bit, also where the sum takes its operand's place."""
    x, residual, weight = normal(random, 3, 300, act=act), normal(random, 3, 300, act=act), place(normal(random, 300))
    total, out = place(x), place(torch.empty_like(x))
    add_rms_norm(device, total, place(residual), weight, 1e-5, total, out)
    assert torch.equal(total.cpu(), x + residual)
    expected = rms_norm(device, place(x + residual), weight, 1e-5, place(torch.empty_like(x)))
    assert torch.equal(out.cpu(), expected.cpu())


@pytest.mark.parametrize("act", DTYPES)
def test_norms_of_heads(device: Any, place: Any, random: np.random.Generator, act: str) -> None:
    """Queries and keys by themselves with their own weights, values untouched; and the gated norm of a recurrent layer."""
    heads, kv_heads, width = 3, 2, 40
    qkv, q_weight, k_weight = normal(random, 2, 7 * width, act=act), normal(random, width), normal(random, width)
    got = norm_heads(
        device, place(qkv), place(q_weight), place(k_weight), heads, kv_heads, 1e-5, place(torch.empty_like(qkv))
    ).cpu()
    parts = qkv.view(2, 7, width)
    expected = parts.double().clone()
    expected[:, :3] = norm_reference.rms_norm(parts[:, :3], q_weight, 1e-5)
    expected[:, 3:5] = norm_reference.rms_norm(parts[:, 3:5], k_weight, 1e-5)
    bound = expected.abs() * (ROUNDING[act] + 2.0**-19)
    assert ((got.view(2, 7, width).double() - expected).abs() <= bound).all() and torch.equal(
        got.view(2, 7, width)[:, 5:], parts[:, 5:]
    )

    gate = normal(random, 2, 7 * width, act=act)
    gated = gated_rms_norm(device, place(qkv), place(gate), place(q_weight), 1e-5, place(torch.empty_like(qkv))).cpu().double()
    wanted = norm_reference.rms_norm(parts, q_weight, 1e-5).view(2, -1) * torch.nn.functional.silu(gate.double())
    assert ((gated - wanted).abs() <= wanted.abs() * (ROUNDING[act] + 2.0**-18)).all()


@pytest.mark.parametrize("act", DTYPES)
def test_elementwise(device: Any, place: Any, random: np.random.Generator, act: str) -> None:
    """Sums and products are torch's bits; the gate and the cap within a few roundings, and what is not finite stays so."""
    x, y, bias, gate = (
        normal(random, *shape, act=kind) for shape, kind in (((3, 300), act), ((3, 300), act), ((300,), "f32"), ((3, 1), act))
    )

    def run(op: Any, *arguments: Any) -> torch.Tensor:
        placed = [place(value) if isinstance(value, torch.Tensor) else value for value in arguments]
        return op(device, *placed, place(torch.empty_like(x))).cpu()

    assert torch.equal(run(elementwise.add, x, y), x + y)
    assert torch.equal(run(elementwise.add_bias, x, bias), (x.float() + bias).to(x.dtype))
    assert torch.equal(run(elementwise.scale, x, 1 / 3), (x.float() * np.float32(1 / 3)).to(x.dtype))
    for one in (gate, y):
        expected = elementwise_reference.sigmoid_mul(x, one)
        assert (
            (run(elementwise.sigmoid_mul, x, one).double() - expected).abs() <= expected.abs() * (ROUNDING[act] + 2.0**-20)
        ).all()
    x[0, :5] = torch.tensor([1e-3, -0.2, 400.0, -3.0, 0.0])
    expected = elementwise_reference.soft_cap(x, 10.0)
    assert ((run(elementwise.soft_cap, x, 10.0).double() - expected).abs() <= expected.abs() * (ROUNDING[act] + 2.0**-20)).all()
    x[0, :3] = torch.tensor([NAN, float("inf"), -float("inf")])
    assert run(elementwise.soft_cap, x, 10.0)[0, :3].isnan().all()


@pytest.mark.parametrize("act", DTYPES)
def test_silu_mul(device: Any, place: Any, random: np.random.Generator, act: str) -> None:
    """Within a few roundings, far out too; what is not finite does not become a number."""
    gate_up = normal(random, 3, 2 * 300, act=act) * 20
    gate_up[1, :6] = torch.tensor([0.0, -88.0, 88.0, 300.0, NAN, -NAN])
    gate_up[1, 300:306] = 1.0
    for op, reference in ((silu_mul, silu_reference.silu_mul), (gelu_tanh_mul, silu_reference.gelu_tanh_mul)):
        got = op(device, place(gate_up), place(torch.empty(3, 300, dtype=gate_up.dtype))).cpu().double()
        expected = reference(gate_up)
        assert torch.equal(got.isnan(), expected.isnan())
        sound = ~expected.isnan()
        # the exponent's own rounding grows with its size
        relative = ROUNDING[act] + 2.0**-20 + 2.0**-22 * (gate_up[:, :300].double().abs() ** (1 if op is silu_mul else 3))
        assert ((got - expected).abs()[sound] <= (expected.abs() * relative + 1e-7)[sound]).all()


@dataclass
class Cache:
    """A paged cache for sequences of so many positions, in shuffled blocks; blocks that nobody owns hold NaNs."""

    lengths: list[int]
    kv_heads: int
    head_dim: int
    act: str
    random: np.random.Generator

    def __post_init__(self) -> None:
        needed = [-(-length // BLOCK_SIZE) for length in self.lengths]
        order = self.random.permutation(sum(needed) + 3)
        self.tables = torch.full((len(self.lengths), max(needed) + 1), -1, dtype=torch.int32)
        for sequence, count in enumerate(needed):
            at = sum(needed[:sequence])
            self.tables[sequence, :count] = torch.from_numpy(order[at : at + count].astype(np.int32))
        shape = (sum(needed) + 3, self.kv_heads, BLOCK_SIZE, self.head_dim)
        self.keys, self.values = (torch.full(shape, NAN, dtype=KV_DTYPES[KV_OF_ACTIVATION[self.act]]) for _ in range(2))

    def fill(self) -> None:
        for sequence, length in enumerate(self.lengths):
            for position in range(length):
                block, offset = int(self.tables[sequence, position // BLOCK_SIZE]), position % BLOCK_SIZE
                self.keys[block, :, offset] = normal(self.random, self.kv_heads, self.head_dim).to(self.keys.dtype)
                self.values[block, :, offset] = normal(self.random, self.kv_heads, self.head_dim).to(self.keys.dtype)

    def held(self, which: torch.Tensor, sequence: int, length: int) -> torch.Tensor:
        """(length, K, D)"""
        at = torch.arange(length)
        return which[self.tables[sequence, at // BLOCK_SIZE].long(), :, at % BLOCK_SIZE]

    def paged(self, place: Any, rows: list[tuple[int, int]]) -> Paged:
        """`rows`: (sequence, position); sequence -1 is padding."""
        sequences, positions = (torch.tensor(column, dtype=torch.int32) for column in zip(*rows, strict=True))
        return Paged(place(self.keys), place(self.values), place(positions), place(sequences), place(self.tables))


@pytest.mark.parametrize("act", DTYPES)
@pytest.mark.parametrize("neox", [False, True])
@pytest.mark.parametrize("rotary", [16, 10, 0])
def test_rope_and_kv_write(device: Any, place: Any, random: np.random.Generator, act: str, neox: bool, rotary: int) -> None:
    """Queries and keys rotated as the reference's, values as they are, each in its own slot and nowhere else; padding does nothing."""
    heads, kv_heads, head_dim = 4, 2, 16
    cache = Cache([20, 3], kv_heads, head_dim, act, random)
    rows = [(0, 15), (0, 16), (-1, 0), (1, 2), (0, 19)]
    qkv = normal(random, len(rows), (heads + 2 * kv_heads) * head_dim, act=act)
    angles = torch.arange(32)[:, None].double() * 100.0 ** (-torch.arange(rotary // 2).double() / rotary)
    cosines, sines = angles.cos().float(), angles.sin().float()
    paged = cache.paged(place, rows)
    q = place(torch.full((len(rows), heads * head_dim), 7.0, dtype=qkv.dtype))
    rope_kv_write(device, place(qkv), paged, place(cosines), place(sines), neox, q)

    parts = qkv.float().view(len(rows), heads + 2 * kv_heads, head_dim)
    positions = torch.tensor([position for _, position in rows])
    rotated = rotate(parts[:, : heads + kv_heads], cosines[positions], sines[positions], neox)
    expected_q = rotated[:, :heads].reshape(len(rows), -1).to(qkv.dtype)
    expected_q[2] = 7.0
    keys, values = cache.keys.clone(), cache.values.clone()
    for row, (sequence, position) in enumerate(rows):
        if sequence >= 0:
            block, offset = int(cache.tables[sequence, position // BLOCK_SIZE]), position % BLOCK_SIZE
            keys[block, :, offset] = rotated[row, heads:].to(keys.dtype)
            values[block, :, offset] = parts[row, heads + kv_heads :].to(keys.dtype)
    assert torch.equal(q.cpu(), expected_q)
    assert torch.equal(paged.keys.cpu().view(torch.int16), keys.view(torch.int16))
    assert torch.equal(paged.values.cpu().view(torch.int16), values.view(torch.int16))


def attention(device: Any, q: torch.Tensor, paged: Paged, out: torch.Tensor, *rule: Any) -> torch.Tensor:
    """By one warp a head and by chunks that are joined, which must give the same bits."""
    head_dim, rows = paged.keys.shape[3], len(q)
    before = out.clone()
    attention_launcher.attention(device, q, paged, out, *rule)
    chunks = -(-paged.block_tables.shape[1] * BLOCK_SIZE // attention_launcher.CHUNK)
    partials = torch.full((rows, q.shape[1] // head_dim, chunks, head_dim + 2), NAN, device=q.device)
    divided = attention_launcher.attention(device, q, paged, before, *rule, *[None, 0, 0.0][len(rule) :], partials)
    assert torch.equal(divided.view(torch.uint8), out.view(torch.uint8))
    return out


@pytest.mark.parametrize("act", DTYPES)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_attention(device: Any, place: Any, random: np.random.Generator, act: str, head_dim: int) -> None:
    """Ragged decode and prefill rows against float64, in blocks in any order; what lies past a row's position is not looked at, nor is
    padding."""
    heads, kv_heads = 6, 2
    cache = Cache([150, 1, 33], kv_heads, head_dim, act, random)
    cache.fill()
    rows = [(0, 149), (2, 32), (-1, 0), (1, 0), (0, 15), (0, 16), (2, 31), (0, 63)]
    q = normal(random, len(rows), heads * head_dim, act=act)
    out = place(torch.full_like(q, 7.0))
    attention(device, place(q), cache.paged(place, rows), out)
    got = out.cpu().double()
    assert (got[2] == 7).all()
    for row, (sequence, position) in enumerate(rows):
        if sequence >= 0:
            held = [cache.held(which, sequence, position + 1) for which in (cache.keys, cache.values)]
            expected = attend(q[row].view(heads, head_dim), *held).reshape(-1)
            assert ((got[row] - expected).abs() <= 2.0**-18 + 2 * ROUNDING[act] * expected.abs()).all()


@pytest.mark.parametrize("window", [1, 5, 16, 40, 128, 500])
def test_attention_rules(device: Any, place: Any, random: np.random.Generator, window: int) -> None:
    """A window of the last positions, another scale, capped scores; over several chunks, of which some have no position that counts."""
    cache = Cache([700], 2, 64, "f32", random)
    cache.fill()
    rows = [(0, 0), (0, 15), (0, 16), (0, 77), (0, 127), (0, 128), (0, 299), (0, 699)]
    q = normal(random, len(rows), 4 * 64)
    got = attention(device, place(q), cache.paged(place, rows), place(torch.empty_like(q)), 0.3, window, 7.0).cpu().double()
    for row, (_, position) in enumerate(rows):
        held = [cache.held(which, 0, position + 1) for which in (cache.keys, cache.values)]
        expected = attend(q[row].view(4, 64), *held, 0.3, window, 7.0).reshape(-1)
        assert ((got[row] - expected).abs() <= 2.0**-17).all()


def test_attention_bits_do_not_depend_on_company(device: Any, place: Any, random: np.random.Generator) -> None:
    """A row alone, and the same one in a batch with another table width and other blocks."""
    cache = Cache([90, 40], 2, 64, "f32", random)
    cache.fill()
    rows = [(0, position) for position in range(70, 90)] + [(1, 39)]
    q = normal(random, len(rows), 4 * 64)
    together = attention(device, place(q), cache.paged(place, rows), place(torch.empty_like(q))).cpu()
    moved = Cache([40, 90], 2, 64, "f32", np.random.default_rng(1))
    moved.tables = torch.cat([moved.tables, torch.full((2, 5), -1, dtype=torch.int32)], dim=1)
    for which in ("keys", "values"):
        for old, new, length in ((0, 1, 90), (1, 0, 40)):
            at = torch.arange(length)
            blocks = moved.tables[new, at // BLOCK_SIZE].long()
            getattr(moved, which)[blocks, :, at % BLOCK_SIZE] = cache.held(getattr(cache, which), old, length)
    for row in (0, 7, 19, 20):
        sequence, position = rows[row]
        alone = attention(
            device, place(q[row : row + 1]), moved.paged(place, [(1 - sequence, position)]), place(torch.empty(1, 256))
        )
        assert torch.equal(alone.cpu()[0], together[row])


def test_when_positions_are_divided() -> None:
    """Few rows in a long context are; one chunk alone, many rows, and more memory than is allowed are not."""
    shape = attention_launcher.partials_of
    assert shape(1, 32, 128, 256) == (1, 32, 32, 130) and shape(16, 32, 128, 256) == (16, 32, 32, 130)
    assert shape(1, 32, 128, 8) == shape(64, 32, 128, 256) == shape(63, 32, 128, 8192) == ()


@pytest.mark.parametrize("place_of_nan", [0, 17, 64, 89, 130, 201])
def test_a_nan_in_the_cache_is_not_lost(device: Any, place: Any, random: np.random.Generator, place_of_nan: int) -> None:
    """Whichever warp reads it, and whether in a key or in a value."""
    for which in ("keys", "values"):
        cache = Cache([202], 2, 16, "f32", random)
        cache.fill()
        block = int(cache.tables[0, place_of_nan // BLOCK_SIZE])
        getattr(cache, which)[block, :, place_of_nan % BLOCK_SIZE, 3] = NAN
        q = normal(random, 1, 64)
        out = attention(device, place(q), cache.paged(place, [(0, 201)]), place(torch.empty(1, 64))).cpu().view(4, 16)
        assert out.isnan().any(dim=1).all()


def test_wrong_shapes_are_refused(device: Any, random: np.random.Generator) -> None:
    """Heads with no kernel, KV of another type, heads that cannot share."""
    cache = Cache([4], 2, 24, "f32", random)
    with pytest.raises(KernelArgumentError, match="heads of 24"):
        attention(device, torch.zeros(1, 96), cache.paged(lambda x: x, [(0, 0)]), torch.zeros(1, 96))
    cache = Cache([4], 2, 16, "bf16", random)
    with pytest.raises(KernelArgumentError, match="keys is torch"):
        attention(device, torch.zeros(1, 64), cache.paged(lambda x: x, [(0, 0)]), torch.zeros(1, 64))
    cache = Cache([4], 2, 16, "f32", random)
    with pytest.raises(KernelArgumentError, match="cannot share"):
        attention(device, torch.zeros(1, 48), cache.paged(lambda x: x, [(0, 0)]), torch.zeros(1, 48))
