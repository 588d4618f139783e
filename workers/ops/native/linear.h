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

#define HELEXA_INLINE static inline __attribute__((always_inline))

namespace helexa {

constexpr float kLargest = 32767.0f;  // the integer that a block's largest activation becomes

// q = nearest(x * (32767 / largest)), scale = largest / 32767, for each 32 activations. A NaN or an infinity makes the scale NaN,
// so every output of the row is NaN and the row is reported, never answered.
template <class Isa> void quantise_row(const float* x, int columns, ActivationBlock* panel, int place) {
    for (int block = 0; block < columns / kQuantBlock; block++, x += kQuantBlock) {
        ActivationBlock& out = panel[block];
        const auto first = Isa::load(x), second = Isa::load(x + kLanes);
        const uint32_t bits = Isa::max_magnitude_bits(first, second);
        const float largest = from_bits(bits);
        const bool finite = bits < 0x7f800000u, tiny = bits < 0x0d800000u;  // 2^-100: its inverse could overflow
        const auto inverse = Isa::set(finite && !tiny ? kLargest / largest : 0.0f);
        const auto zero = Isa::set_int(0);
        const auto low = finite ? Isa::to_int(Isa::mul(first, inverse)) : zero;
        const auto high = finite ? Isa::to_int(Isa::mul(second, inverse)) : zero;
        Isa::store_int16(out.q[place], low);
        Isa::store_int16(out.q[place] + kLanes, high);
        const int32_t sum = Isa::sum_int(Isa::add_int(low, high));
        const float scale = !finite ? __builtin_nanf("") : tiny ? 0.0f : largest / kLargest;
        out.scale[place] = scale;
        out.total[place] = scale * static_cast<float>(sum);
        out.offset[place] = -8 * sum;
    }
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
template <class Group> HELEXA_INLINE void prefetch(const Group* w) {
    constexpr size_t kAhead = 4096;
    const char* ahead = reinterpret_cast<const char*>(w) + kAhead;
    HELEXA_UNROLL
    for (size_t line = 0; line < sizeof(Group); line += 64) __builtin_prefetch(ahead + line, 0, 3);
}

// sums[t] += weights times activations k and k + 1 of row t.
template <class Isa, int Rows>
HELEXA_INLINE void add_pairs(typename Isa::I (&sums)[Rows], typename Isa::Pairs weights, const int16_t (*x)[kQuantBlock], int k) {
    HELEXA_UNROLL
    for (int t = 0; t < Rows; t++) sums[t] = Isa::dot_add(sums[t], weights, x[t] + k);
}

template <class Isa, int Rows> HELEXA_INLINE void divide_by_16(typename Isa::I (&sums)[Rows]) {
    HELEXA_UNROLL
    for (int t = 0; t < Rows; t++) sums[t] = Isa::template shift_right_signed<4>(sums[t]);
}

// The integers of one block. Nibbles are taken out of their words with a mask alone, which leaves some times 256 or 16: these are
// summed first and divided while the sum is a multiple of 16, so exactly, and 256 * 15 * 8 * 32767 fits in 32 bits. Where
// products take long (kChains is 2), the others go to a second sum, so that neither waits for the other.
template <class Isa, int Rows, class Group>
HELEXA_INLINE void dot_block(const Group& w, const int16_t (*x)[kQuantBlock], typename Isa::I (&sums)[Rows]) {
    typename Isa::I second[Rows];
    auto& more = Isa::kChains == 2 ? second : sums;
    HELEXA_UNROLL
    for (int t = 0; t < Rows; t++) sums[t] = second[t] = Isa::set_int(0);
    if constexpr (std::is_same_v<Group, Q8_0Group>) {
        HELEXA_UNROLL
        for (int j = 0; j < 16; j += 2) {
            add_pairs<Isa, Rows>(sums, Isa::byte_pairs(w.q[j]), x, 2 * j);
            add_pairs<Isa, Rows>(more, Isa::byte_pairs(w.q[j + 1]), x, 2 * j + 2);
        }
    } else {
        HELEXA_UNROLL
        for (int j = 0; j < 4; j++) add_pairs<Isa, Rows>(sums, Isa::template nibble_pairs<2>(w.q[j]), x, 8 * j + 4);
        divide_by_16<Isa, Rows>(sums);
        HELEXA_UNROLL
        for (int j = 0; j < 4; j++) add_pairs<Isa, Rows>(sums, Isa::template nibble_pairs<1>(w.q[j]), x, 8 * j + 2);
        divide_by_16<Isa, Rows>(sums);
        HELEXA_UNROLL
        for (int j = 0; j < 4; j++) {
            add_pairs<Isa, Rows>(more, Isa::template nibble_pairs<0>(w.q[j]), x, 8 * j);
            add_pairs<Isa, Rows>(more, Isa::template nibble_pairs<3>(w.q[j]), x, 8 * j + 6);
        }
    }
    if constexpr (Isa::kChains == 2) {
        HELEXA_UNROLL
        for (int t = 0; t < Rows; t++) sums[t] = Isa::add_int(sums[t], second[t]);
    }
}

template <class Isa, int Rows, class Group>
void quantised_tile(const Group* w, int blocks, const ActivationBlock* x, int place, const TileOut<Isa, Rows>& out) {
    typename Isa::F acc[Rows];
    HELEXA_UNROLL
    for (int t = 0; t < Rows; t++) acc[t] = Isa::zero();
    for (int block = 0; block < blocks; block++) {
        const Group& group = w[block];
        prefetch(&group);
        typename Isa::I sums[Rows];
        dot_block<Isa, Rows>(group, x[block].q + place, sums);
        if constexpr (std::is_same_v<Group, Q4_0Group>) {
            HELEXA_UNROLL
            for (int t = 0; t < Rows; t++) sums[t] = Isa::add_int(sums[t], Isa::set_int(x[block].offset[place + t]));
        }
        if constexpr (std::is_same_v<Group, Q4_1Group>) {
            const auto minimum = Isa::from_half(group.minimum);
            HELEXA_UNROLL
            for (int t = 0; t < Rows; t++) acc[t] = Isa::fma(minimum, Isa::set(x[block].total[place + t]), acc[t]);
        }
        const auto scale = Isa::from_half(group.scale);
        HELEXA_UNROLL
        for (int t = 0; t < Rows; t++)
            acc[t] = Isa::fma(Isa::mul(Isa::to_float(sums[t]), Isa::set(x[block].scale[place + t])), scale, acc[t]);
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
        quantised_tile<Isa, Rows>(w, blocks, panel, row % kPanelRows, tile);
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
