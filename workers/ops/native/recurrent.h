// Gated DeltaNet (Yang et al. 2024), one token after another: a causal convolution, gates, and the delta rule. Prompts, decoding
// and draft checks run the same arithmetic, so a state is a function of its tokens, however they were cut into steps.
#pragma once
#include "functions.h"
#include "kernels.h"
#include "layout.h"
#include "rows.h"

namespace helexa {

template <class Isa> typename Isa::F sigmoid(typename Isa::F x) {
    return Isa::div(Isa::set(1.0f), Isa::add(Isa::set(1.0f), exp_clamped<Isa>(Isa::sub(Isa::zero(), x))));
}

// ln(1 + e^x) as max(x, 0) + ln(1 + e^-|x|); ln(1 + y) with the correction of W. Kahan for what 1 + y rounds away.
template <class Isa> typename Isa::F softplus(typename Isa::F x) {
    const auto magnitude = Isa::max(x, Isa::sub(Isa::zero(), x));
    const auto y = exp_not_positive<Isa>(Isa::sub(Isa::zero(), magnitude));
    const auto one = Isa::set(1.0f), u = Isa::add(one, y), rest = Isa::sub(u, one);
    const auto tiny = Isa::equal(rest, Isa::zero());
    const auto log = Isa::select(tiny, y, Isa::mul(log_positive<Isa>(u), Isa::div(y, Isa::select(tiny, one, rest))));
    const auto sum = Isa::add(Isa::max(x, Isa::zero()), log);
    return Isa::select(Isa::unordered(x), x, sum);
}

// Channels first .. last - 1 of rows in order: out = silu(sum over taps of weight * input), the oldest input first. `state` holds
// the kernel - 1 inputs before the first row, the oldest first, and in the end those before the next.
template <class Isa> void convolve(const ConvTile& tile) {
    const size_t width = static_cast<size_t>(tile.channels);
    const int past = tile.kernel - 1;
    // What was fed `back` rows before the first row of the tile where back < 0, or in row `at`.
    const auto input = [&](int at) -> const float* {
        return at < 0 ? tile.state + static_cast<size_t>(past + at) * width : tile.x + static_cast<size_t>(at) * width;
    };
    for (int row = 0; row < tile.rows; row++) {
        float* out = tile.out + static_cast<size_t>(row) * width;
        each_lanes(tile.last - tile.first, [&](int at, int lanes) {
            at += tile.first;
            auto sum = Isa::zero();
            for (int tap = 0; tap <= past; tap++)
                sum = Isa::fma(load_lanes<Isa>(tile.weight + static_cast<size_t>(tap) * width + at, lanes),
                               load_lanes<Isa>(input(row - past + tap) + at, lanes), sum);
            store_lanes<Isa>(out + at, Isa::mul(sum, sigmoid<Isa>(sum)), lanes);
        });
    }
    for (int i = 0; i < past; i++) {  // rising, so what is still to be moved is not yet overwritten
        const float* from = input(tile.rows - past + i);
        float* to = tile.state + static_cast<size_t>(i) * width;
        if (from != to)
            for (int c = tile.first; c < tile.last; c++) to[c] = from[c];
    }
}

// out = sigmoid(b), then decay * softplus(a + dt_bias), of a row that holds b then a, one a head.
template <class Isa> void gate_heads(const float* ba, const float* decay, const float* dt_bias, int heads, float* out) {
    each_lanes(heads, [&](int at, int lanes) {
        store_lanes<Isa>(out + at, sigmoid<Isa>(load_lanes<Isa>(ba + at, lanes)), lanes);
        const auto a = Isa::add(load_lanes<Isa>(ba + heads + at, lanes), load_lanes<Isa>(dt_bias + at, lanes));
        store_lanes<Isa>(out + heads + at, Isa::mul(load_lanes<Isa>(decay + at, lanes), softplus<Isa>(a)), lanes);
    });
}

// x * sigmoid(gate); a single gate is for all columns.
template <class Isa> void sigmoid_mul_row(const float* x, const float* gate, bool single, int columns, float* out) {
    each_lanes(columns, [&](int at, int lanes) {
        const auto g = single ? Isa::set(gate[0]) : load_lanes<Isa>(gate + at, lanes);
        store_lanes<Isa>(out + at, Isa::mul(load_lanes<Isa>(x + at, lanes), sigmoid<Isa>(g)), lanes);
    });
}

// x / sqrt(sum(x^2) + 1e-6) * scale; `out` is padded with zeros to kKeyUnroll.
template <class Isa> void unit_length(const float* x, int columns, float scale, float* out) {
    auto squares = Isa::zero8();
    int i = 0;
    for (; i + 8 <= columns; i += 8) squares = Isa::square_add8(x + i, squares);
    if (i < columns) {
        float rest[8] = {};
        for (int j = i; j < columns; j++) rest[j - i] = x[j];
        squares = Isa::square_add8(rest, squares);
    }
    const auto factor = Isa::set(scale / __builtin_sqrtf(Isa::reduce_add8(squares) + 1e-6f));
    each_lanes(columns, [&](int at, int lanes) {
        store_lanes<Isa>(out + at, Isa::mul(load_lanes<Isa>(x + at, lanes), factor), lanes);
    });
    for (int j = columns; j < padded_key_dim(columns); j++) out[j] = 0.0f;
}

// Up to 16 value columns of one head, over the rows of a sequence in order. With S the state [key_dim][16]:
//   S = exp(g) S;  S += k (beta (v - k S));  out = q S / sqrt(key_dim),  q and k of unit length.
// A lane is a value column; each sums over the key dim in 4 interleaved chains, folded in one order.
template <class Isa> void delta_rule(const DeltaTile& tile) {
    static_assert(kKeyUnroll == 4, "the chains below are 4");
    alignas(64) float q[kMaxHeadDim], k[kMaxHeadDim];
    const int keys = padded_key_dim(tile.key_dim);
    const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(tile.key_dim));
    for (int row = 0; row < tile.rows; row++) {
        const size_t at = static_cast<size_t>(row) * tile.stride;
        unit_length<Isa>(tile.query + at, tile.key_dim, scale, q);
        unit_length<Isa>(tile.key + at, tile.key_dim, 1.0f, k);
        const float* gates = tile.gates + static_cast<size_t>(row) * tile.gate_stride;
        const auto decay = exp_not_positive<Isa>(Isa::set(gates[tile.gate_stride / 2]));
        typename Isa::F sums[kKeyUnroll];
        HELEXA_UNROLL
        for (int j = 0; j < kKeyUnroll; j++) sums[j] = Isa::zero();
        for (int i = 0; i < keys; i += kKeyUnroll) {
            HELEXA_UNROLL
            for (int j = 0; j < kKeyUnroll; j++)
                sums[j] = Isa::fma(Isa::set(k[i + j]), Isa::load(tile.state + (i + j) * kLanes), sums[j]);
        }
        const auto held = Isa::mul(decay, Isa::add(Isa::add(sums[0], sums[1]), Isa::add(sums[2], sums[3])));
        const auto change = Isa::mul(Isa::set(gates[0]), Isa::sub(load_lanes<Isa>(tile.value + at, tile.lanes), held));
        HELEXA_UNROLL
        for (int j = 0; j < kKeyUnroll; j++) sums[j] = Isa::zero();
        for (int i = 0; i < keys; i += kKeyUnroll) {
            HELEXA_UNROLL
            for (int j = 0; j < kKeyUnroll; j++) {
                float* place = tile.state + (i + j) * kLanes;
                const auto state = Isa::fma(Isa::set(k[i + j]), change, Isa::mul(decay, Isa::load(place)));
                Isa::store(place, state);
                sums[j] = Isa::fma(Isa::set(q[i + j]), state, sums[j]);
            }
        }
        const auto out = Isa::add(Isa::add(sums[0], sums[1]), Isa::add(sums[2], sums[3]));
        store_lanes<Isa>(tile.out + static_cast<size_t>(row) * tile.out_stride, out, tile.lanes);
    }
}

}  // namespace helexa
