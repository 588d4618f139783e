// Linears: every output column sums over K in rising order; lanes are columns, tiles are rows, neither shares a sum.
#pragma once
#include <type_traits>

#include "half.h"
#include "kernels.h"
#include "layout.h"

#if defined(__clang__)
#define HELEXA_UNROLL _Pragma("unroll")
#else
#define HELEXA_UNROLL _Pragma("GCC unroll 16")
#endif

namespace helexa {

// int8 activations with a scale per 16 (half the error of a scale per 32 at the same speed). A NaN or an infinity makes
// the scale NaN, so every output of the row is NaN and the row is reported, never answered.
template <class Isa> void quantise_row(const float* x, int columns, ActivationBlock* panel, int place) {
    for (int block = 0; block < columns / kQuantBlock; block++) {
        ActivationBlock& out = panel[block];
        int32_t sums[2];
        for (int half = 0; half < 2; half++) {
            const auto values = Isa::load(x + block * kQuantBlock + half * kScaleBlock);
            const uint32_t bits = Isa::max_magnitude_bits(values);
            const float largest = from_bits(bits);
            const bool finite = bits < 0x7f800000u, tiny = bits < 0x0d800000u;  // 2^-100: its inverse could overflow
            const float inverse = finite && !tiny ? 127.0f / largest : 0.0f;
            const float scale = tiny ? 0.0f : largest / 127.0f;
            const auto scaled = Isa::mul(values, Isa::set(inverse));
            const auto rounded = finite ? Isa::to_int(scaled) : Isa::set_int(0);
            Isa::store_int8(out.q[place] + half * kScaleBlock, rounded);
            sums[half] = Isa::sum_int(rounded);
            out.scale[place][half] = finite ? scale : __builtin_nanf("");
            out.offset[place][half] = -8 * sums[half];
        }
        const float* scales = out.scale[place];
        out.total[place] = __builtin_fmaf(scales[1], static_cast<float>(sums[1]), scales[0] * static_cast<float>(sums[0]));
    }
}

// acc += scale_w * (dot0 * scale_x0 + dot1 * scale_x1), the float steps of every quantised format.
template <class Isa> static inline typename Isa::F add_block(typename Isa::F acc, typename Isa::I dot0, typename Isa::I dot1,
                                                             typename Isa::F weight_scale, const float* scales) {
    const auto first = Isa::mul(Isa::to_float(dot0), Isa::set(scales[0]));
    const auto both = Isa::fma(Isa::to_float(dot1), Isa::set(scales[1]), first);
    return Isa::fma(both, weight_scale, acc);
}

template <class Isa, int Rows> struct TileOut {
    float* out;
    size_t stride;
    int columns;

    void store(const typename Isa::F* acc) const {
        if (columns == kLanes) {
            HELEXA_UNROLL
            for (int t = 0; t < Rows; t++) Isa::store(out + static_cast<size_t>(t) * stride, acc[t]);
        } else {
            HELEXA_UNROLL
            for (int t = 0; t < Rows; t++) Isa::store_first(out + static_cast<size_t>(t) * stride, acc[t], columns);
        }
    }
};

// Asks for the weights that come `kAhead` bytes later, also across the end of a group: the next one lies behind it. Reading
// ahead pays because a tile of one row is done with a block long before memory has answered.
template <class Group> static inline void prefetch(const Group* w) {
    constexpr size_t kAhead = 4096;
    const char* ahead = reinterpret_cast<const char*>(w) + kAhead;
    HELEXA_UNROLL
    for (size_t line = 0; line < sizeof(Group); line += 64) __builtin_prefetch(ahead + line, 0, 3);
}

template <class Isa, int Rows, class Group>
void nibble_tile(const Group* w, int blocks, const ActivationBlock* x, int place, const TileOut<Isa, Rows>& out) {
    constexpr bool has_minimum = std::is_same_v<Group, Q4_1Group>;
    typename Isa::F acc[Rows];
    HELEXA_UNROLL
    for (int t = 0; t < Rows; t++) acc[t] = Isa::zero();
    for (int block = 0; block < blocks; block++) {
        const Group& group = w[block];
        prefetch(&group);
        const auto* q = x[block].q + place;
        const auto* scales = x[block].scale + place;
        typename Isa::NibbleSum low[Rows], high[Rows];
        HELEXA_UNROLL
        for (int t = 0; t < Rows; t++) low[t] = Isa::nibble_start(), high[t] = Isa::nibble_start();
        HELEXA_UNROLL
        for (int j = 0; j < 4; j++) {
            const auto nibbles = Isa::split(group.q[j]);
            HELEXA_UNROLL
            for (int t = 0; t < Rows; t++) {
                low[t] = Isa::nibble_add(low[t], nibbles.low, q[t] + 4 * j);
                high[t] = Isa::nibble_add(high[t], nibbles.high, q[t] + 16 + 4 * j);
            }
        }
        const auto scale = Isa::from_half(group.scale);
        if constexpr (has_minimum) {
            const auto minimum = Isa::from_half(group.minimum);
            const float* totals = x[block].total + place;
            HELEXA_UNROLL
            for (int t = 0; t < Rows; t++) {
                acc[t] = Isa::fma(minimum, Isa::set(totals[t]), acc[t]);
                acc[t] = add_block<Isa>(acc[t], Isa::nibble_end(low[t]), Isa::nibble_end(high[t]), scale, scales[t]);
            }
        } else {
            const auto* offsets = x[block].offset + place;
            HELEXA_UNROLL
            for (int t = 0; t < Rows; t++) {
                const auto first = Isa::add_int(Isa::nibble_end(low[t]), Isa::set_int(offsets[t][0]));
                const auto second = Isa::add_int(Isa::nibble_end(high[t]), Isa::set_int(offsets[t][1]));
                acc[t] = add_block<Isa>(acc[t], first, second, scale, scales[t]);
            }
        }
    }
    out.store(acc);
}

template <class Isa, int Rows>
void byte_tile(const Q8_0Group* w, int blocks, const ActivationBlock* x, int place, const TileOut<Isa, Rows>& out) {
    typename Isa::F acc[Rows];
    HELEXA_UNROLL
    for (int t = 0; t < Rows; t++) acc[t] = Isa::zero();
    for (int block = 0; block < blocks; block++) {
        const Q8_0Group& group = w[block];
        prefetch(&group);
        const auto* q = x[block].q + place;
        const auto* scales = x[block].scale + place;
        const auto* offsets = x[block].offset + place;
        typename Isa::I sums[2][Rows];
        HELEXA_UNROLL
        for (int half = 0; half < 2; half++) {
            HELEXA_UNROLL
            for (int t = 0; t < Rows; t++) sums[half][t] = Isa::byte_start(offsets[t][half]);
            HELEXA_UNROLL
            for (int j = 4 * half; j < 4 * half + 4; j++) {
                const auto bytes = Isa::bytes(group.q[j]);
                HELEXA_UNROLL
                for (int t = 0; t < Rows; t++) sums[half][t] = Isa::byte_add(sums[half][t], bytes, q[t] + 4 * j);
            }
        }
        const auto scale = Isa::from_half(group.scale);
        HELEXA_UNROLL
        for (int t = 0; t < Rows; t++) acc[t] = add_block<Isa>(acc[t], sums[0][t], sums[1][t], scale, scales[t]);
    }
    out.store(acc);
}

template <class Isa> typename Isa::F load_weights(const float* p) { return Isa::load(p); }

struct Half {
    uint16_t bits;
};
struct Bfloat {
    uint16_t bits;
};
template <class Isa> typename Isa::F load_weights(const Half* p) { return Isa::from_half(&p->bits); }
template <class Isa> typename Isa::F load_weights(const Bfloat* p) { return Isa::from_bfloat(&p->bits); }

template <class Isa, int Rows, class Weight>
void float_tile(const Weight* w, int columns, const float* x, const TileOut<Isa, Rows>& out) {
    typename Isa::F acc[Rows];
    HELEXA_UNROLL
    for (int t = 0; t < Rows; t++) acc[t] = Isa::zero();
    for (int k = 0; k < columns; k++) {
        const auto weights = load_weights<Isa>(w + static_cast<size_t>(k) * kLanes);
        HELEXA_UNROLL
        for (int t = 0; t < Rows; t++)
            acc[t] = Isa::fma(
                weights, Isa::set(x[static_cast<size_t>(t) * static_cast<size_t>(columns) + static_cast<size_t>(k)]), acc[t]);
    }
    out.store(acc);
}

// Rows row0 .. row1 - 1 of one group of columns, in tiles of Rows and one smaller one; `out` is row0's.
template <class Isa, int Rows, class Group> void quantised_rows(const Group* w, int blocks, const ActivationBlock* x, int row0,
                                                                int row1, float* out, size_t stride, int columns) {
    for (int row = row0; row < row1; row += Rows) {
        if constexpr (Rows > 1) {
            if (row1 - row < Rows) return quantised_rows<Isa, Rows - 1>(w, blocks, x, row, row1, out, stride, columns);
        }
        const ActivationBlock* panel = x + static_cast<size_t>(row / kPanelRows) * static_cast<size_t>(blocks);
        const TileOut<Isa, Rows> tile{out, stride, columns};
        if constexpr (std::is_same_v<Group, Q8_0Group>)
            byte_tile<Isa, Rows>(w, blocks, panel, row % kPanelRows, tile);
        else
            nibble_tile<Isa, Rows>(w, blocks, panel, row % kPanelRows, tile);
        out += Rows * stride;
    }
}

template <class Isa, int Rows, class Weight>
void float_rows(const Weight* w, int k, const float* x, int row0, int row1, float* out, size_t stride, int columns) {
    for (int row = row0; row < row1; row += Rows) {
        if constexpr (Rows > 1) {
            if (row1 - row < Rows) return float_rows<Isa, Rows - 1>(w, k, x, row, row1, out, stride, columns);
        }
        const TileOut<Isa, Rows> tile{out, stride, columns};
        float_tile<Isa, Rows>(w, k, x + static_cast<size_t>(row) * static_cast<size_t>(k), tile);
        out += Rows * stride;
    }
}

template <class Isa> void linear_groups(const helexa_segment& segment, int k, int first, int last, const float* x,
                                        const ActivationBlock* q, int row0, int row1, float* out, size_t stride) {
    const int blocks = k / kQuantBlock;
    for (int group = first; group < last; group++) {
        const size_t block = static_cast<size_t>(group) * static_cast<size_t>(blocks);
        const size_t weight = static_cast<size_t>(group) * static_cast<size_t>(k) * kLanes;
        const int columns = segment.rows - group * kLanes < kLanes ? segment.rows - group * kLanes : kLanes;
        float* to = out + static_cast<size_t>(group - first) * kLanes;
        const auto quantised = [&](auto* w) {
            quantised_rows<Isa, Isa::kTileRows>(w + block, blocks, q, row0, row1, to, stride, columns);
        };
        const auto floats = [&](auto* w) {
            float_rows<Isa, Isa::kFloatTileRows>(w + weight, k, x, row0, row1, to, stride, columns);
        };
        switch (segment.type) {
            case HELEXA_Q4_0: quantised(static_cast<const Q4_0Group*>(segment.data)); break;
            case HELEXA_Q4_1: quantised(static_cast<const Q4_1Group*>(segment.data)); break;
            case HELEXA_Q8_0: quantised(static_cast<const Q8_0Group*>(segment.data)); break;
            case HELEXA_F16: floats(static_cast<const Half*>(segment.data)); break;
            case HELEXA_BF16: floats(static_cast<const Bfloat*>(segment.data)); break;
            default: floats(static_cast<const float*>(segment.data)); break;
        }
    }
}

}  // namespace helexa
