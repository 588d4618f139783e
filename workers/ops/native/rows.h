// Ops on one row: embedding, norm, add, scale, soft cap, activations, rotary embedding, and storing a key or a value.
#pragma once
#include "functions.h"
#include "half.h"
#include "kernels.h"
#include "layout.h"
#include "packed_weights.h"

namespace helexa {

// Calls op(place, lanes) for each 16 columns, and for the rest.
template <class Op> static inline void each_lanes(int columns, Op op) {
    int i = 0;
    for (; i + kLanes <= columns; i += kLanes) op(i, kLanes);
    if (i < columns) op(i, columns - i);
}

template <class Isa> static inline typename Isa::F load_lanes(const float* p, int lanes) {
    return lanes == kLanes ? Isa::load(p) : Isa::load_first(p, lanes);
}
template <class Isa> static inline void store_lanes(float* p, typename Isa::F x, int lanes) {
    if (lanes == kLanes)
        Isa::store(p, x);
    else
        Isa::store_first(p, x, lanes);
}

// The dequantised weights of one output row, bit for bit as GGUF defines them.
template <class Isa> void embed_row(const helexa_segment& segment, int columns, int row, float* out) {
    with_layout(segment.type, [&](auto layout) {
        using Group = typename decltype(layout)::Group;
        const size_t before = static_cast<size_t>(row / kLanes) * static_cast<size_t>(columns / Group::kWeights);
        const Group* w = static_cast<const Group*>(segment.data) + before;
        for (int k = 0; k < columns; k++) out[k] = weight_at(w[k / Group::kWeights], row % kLanes, k % Group::kWeights);
    });
}

// x / sqrt(mean(x^2) + eps) * weight; the squares are summed in 8 lanes, then in a fixed tree.
template <class Isa> void rms_norm_row(const float* x, const float* weight, float eps, int columns, float* out) {
    auto squares = Isa::zero8();
    int i = 0;
    for (; i + 8 <= columns; i += 8) squares = Isa::square_add8(x + i, squares);
    if (i < columns) {
        float rest[8] = {};
        for (int j = i; j < columns; j++) rest[j - i] = x[j];
        squares = Isa::square_add8(rest, squares);
    }
    const float mean = Isa::reduce_add8(squares) / static_cast<float>(columns);
    const auto inverse = Isa::set(1.0f / __builtin_sqrtf(mean + eps));
    each_lanes(columns, [&](int at, int lanes) {
        const auto scaled = Isa::mul(load_lanes<Isa>(x + at, lanes), inverse);
        store_lanes<Isa>(out + at, Isa::mul(scaled, load_lanes<Isa>(weight + at, lanes)), lanes);
    });
}

template <class Isa> void add_row(const float* x, const float* y, int columns, float* out) {
    each_lanes(columns, [&](int at, int lanes) {
        store_lanes<Isa>(out + at, Isa::add(load_lanes<Isa>(x + at, lanes), load_lanes<Isa>(y + at, lanes)), lanes);
    });
}

// gate / (1 + exp(-gate)) * up.
template <class Isa> void silu_mul_row(const float* gate, const float* up, int columns, float* out) {
    each_lanes(columns, [&](int at, int lanes) {
        const auto g = load_lanes<Isa>(gate + at, lanes);
        const auto denominator = Isa::add(Isa::set(1.0f), exp_clamped<Isa>(Isa::sub(Isa::zero(), g)));
        store_lanes<Isa>(out + at, Isa::mul(Isa::div(g, denominator), load_lanes<Isa>(up + at, lanes)), lanes);
    });
}

// gelu(gate) * up with tanh's gelu (Hendrycks and Gimpel 2016): gate / 2 * (1 + tanh(u)) is gate / (1 + exp(-2 u)), which keeps
// its precision where tanh is near -1. u = sqrt(2 / pi) * (gate + 0.044715 gate^3).
template <class Isa> void gelu_mul_row(const float* gate, const float* up, int columns, float* out) {
    each_lanes(columns, [&](int at, int lanes) {
        const auto g = load_lanes<Isa>(gate + at, lanes);
        const auto cubic = Isa::fma(Isa::mul(g, g), Isa::set(0.044715f), Isa::set(1.0f));
        const auto minus_2u = Isa::mul(Isa::mul(g, cubic), Isa::set(-1.59576912f));
        const auto active = Isa::div(g, Isa::add(Isa::set(1.0f), exp_clamped<Isa>(minus_2u)));
        store_lanes<Isa>(out + at, Isa::mul(active, load_lanes<Isa>(up + at, lanes)), lanes);
    });
}

template <class Isa> void scale_row(const float* x, float factor, int columns, float* out) {
    each_lanes(columns, [&](int at, int lanes) {
        store_lanes<Isa>(out + at, Isa::mul(load_lanes<Isa>(x + at, lanes), Isa::set(factor)), lanes);
    });
}

// out += factor * x.
template <class Isa> void add_scaled_row(const float* x, float factor, int columns, float* out) {
    each_lanes(columns, [&](int at, int lanes) {
        const auto sum = Isa::fma(load_lanes<Isa>(x + at, lanes), Isa::set(factor), load_lanes<Isa>(out + at, lanes));
        store_lanes<Isa>(out + at, sum, lanes);
    });
}

template <class Isa> void soft_cap_row(const float* x, float cap, int columns, float* out) {
    each_lanes(columns, [&](int at, int lanes) {
        store_lanes<Isa>(out + at, softly_capped<Isa>(load_lanes<Isa>(x + at, lanes), cap), lanes);
    });
}

// exp(x - the highest x): what softmax weighs by.
template <class Isa> void soft_weights_row(const float* x, int columns, float* out) {
    float highest = x[0];
    for (int i = 1; i < columns; i++) highest = x[i] > highest ? x[i] : highest;
    each_lanes(columns, [&](int at, int lanes) {
        store_lanes<Isa>(out + at, exp_not_positive<Isa>(Isa::sub(load_lanes<Isa>(x + at, lanes), Isa::set(highest))), lanes);
    });
}

// One head; columns past the rotated ones are copied.
template <class Isa>
void rotate_head(const float* x, const float* cos, const float* sin, int half, bool neox, int head_dim, float* out) {
    if (neox) {
        each_lanes(half, [&](int at, int lanes) {
            const auto a = load_lanes<Isa>(x + at, lanes), b = load_lanes<Isa>(x + half + at, lanes);
            const auto c = load_lanes<Isa>(cos + at, lanes), s = load_lanes<Isa>(sin + at, lanes);
            store_lanes<Isa>(out + at, Isa::sub(Isa::mul(a, c), Isa::mul(b, s)), lanes);
            store_lanes<Isa>(out + half + at, Isa::add(Isa::mul(a, s), Isa::mul(b, c)), lanes);
        });
    } else {
        for (int i = 0; i < half; i++) {
            const float a = x[2 * i], b = x[2 * i + 1];
            out[2 * i] = a * cos[i] - b * sin[i];
            out[2 * i + 1] = a * sin[i] + b * cos[i];
        }
    }
    for (int i = 2 * half; i < head_dim; i++) out[i] = x[i];
}

template <class Isa> void store_key_row(const float* key, int head_dim, int place, uint8_t* block) {
    uint16_t* keys = reinterpret_cast<uint16_t*>(block) + place;
    uint16_t halves[kLanes];
    each_lanes(head_dim, [&](int at, int lanes) {
        Isa::to_half(halves, load_lanes<Isa>(key + at, lanes));
        for (int i = 0; i < lanes; i++) keys[(at + i) * kBlockTokens] = halves[i];
    });
}

template <class Isa> void store_value_row(const float* value, int head_dim, int place, uint8_t* block) {
    uint16_t* values = reinterpret_cast<uint16_t*>(block + key_bytes(head_dim)) + place * padded_head_dim(head_dim);
    each_lanes(head_dim, [&](int at, int lanes) { Isa::to_half(values + at, load_lanes<Isa>(value + at, lanes)); });
}

}  // namespace helexa
