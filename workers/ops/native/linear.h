// Linears: every output column sums over K in rising order; lanes are columns, tiles are rows, neither shares a sum.
#pragma once
#include <type_traits>

#include "half.h"
#include "kernels.h"
#include "layout.h"
#include "packed_weights.h"

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
template <size_t Bytes> HELEXA_INLINE void prefetch(const void* w) {
    constexpr size_t kAhead = 4096;
    const char* ahead = static_cast<const char*>(w) + kAhead;
    HELEXA_UNROLL
    for (size_t line = 0; line < Bytes; line += 64) __builtin_prefetch(ahead + line, 0, 3);
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

// A sum of products that is under way. Where products take long (kChains is 2), there is a second one, so that neither waits for
// the other.
template <class Isa, int Rows> struct Sums {
    typename Isa::I first[Rows], second[Rows];

    Sums() {
        HELEXA_UNROLL
        for (int t = 0; t < Rows; t++) first[t] = second[t] = Isa::set_int(0);
    }
    auto& other() { return Isa::kChains == 2 ? second : first; }
    auto& total() {
        if constexpr (Isa::kChains == 2) {
            HELEXA_UNROLL
            for (int t = 0; t < Rows; t++) first[t] = Isa::add_int(first[t], second[t]);
        }
        return first;
    }
};

// The integers of 8 * Words weights. Nibbles are taken out of their words with a mask alone, which leaves some times 256 or 16:
// these are summed first and divided while the sum is a multiple of 16, so exactly, and 256 * 15 * 8 * 32767 fits in 32 bits.
template <class Isa, int Rows, int Words>
HELEXA_INLINE void dot(const uint16_t (*q)[kLanes][2], const int16_t (*x)[kQuantBlock], int k, Sums<Isa, Rows>& sums) {
    HELEXA_UNROLL
    for (int j = 0; j < Words; j++) add_pairs<Isa, Rows>(sums.first, Isa::template nibble_pairs<2>(q[j]), x, k + 8 * j + 4);
    divide_by_16<Isa, Rows>(sums.first);
    HELEXA_UNROLL
    for (int j = 0; j < Words; j++) add_pairs<Isa, Rows>(sums.first, Isa::template nibble_pairs<1>(q[j]), x, k + 8 * j + 2);
    divide_by_16<Isa, Rows>(sums.first);
    HELEXA_UNROLL
    for (int j = 0; j < Words; j++) {
        add_pairs<Isa, Rows>(sums.other(), Isa::template nibble_pairs<0>(q[j]), x, k + 8 * j);
        add_pairs<Isa, Rows>(sums.other(), Isa::template nibble_pairs<3>(q[j]), x, k + 8 * j + 6);
    }
}

// The integers of 2 * Pairs weights, of a byte each.
template <class Isa, int Rows, int Pairs>
HELEXA_INLINE void dot(const int8_t (*q)[kLanes][2], const int16_t (*x)[kQuantBlock], int k, Sums<Isa, Rows>& sums) {
    HELEXA_UNROLL
    for (int j = 0; j < Pairs; j += 2) {
        add_pairs<Isa, Rows>(sums.first, Isa::byte_pairs(q[j]), x, k + 2 * j);
        add_pairs<Isa, Rows>(sums.other(), Isa::byte_pairs(q[j + 1]), x, k + 2 * j + 2);
    }
}

// Groups of 32 weights a column.
template <class Isa, int Rows, class Group>
void quantised_tile(const Group* w, int blocks, const ActivationBlock* x, int place, const TileOut<Isa, Rows>& out) {
    typename Isa::F acc[Rows];
    HELEXA_UNROLL
    for (int t = 0; t < Rows; t++) acc[t] = Isa::zero();
    for (int block = 0; block < blocks; block++) {
        const Group& group = w[block];
        prefetch<sizeof(Group)>(&group);
        Sums<Isa, Rows> dots;
        dot<Isa, Rows, std::extent_v<decltype(group.q)>>(group.q, x[block].q + place, 0, dots);
        auto& sums = dots.total();
        if constexpr (std::is_same_v<Group, Q4_0Group>) {
            HELEXA_UNROLL
            for (int t = 0; t < Rows; t++) sums[t] = Isa::add_int(sums[t], Isa::set_int(x[block].offset[place + t]));
        }
        if constexpr (Group::kMinimum) {
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

// scale * sum of q, of all 32 activations of a row or of the 16 from `first` on.
template <int Count> HELEXA_INLINE float total_of(const ActivationBlock& x, int row, int first) {
    if constexpr (Count == kQuantBlock) return x.total[row];
    int32_t sum = 0;
    for (int k = first; k < first + Count; k++) sum += x.q[row][k];
    return x.scale[row] * static_cast<float>(sum);
}

// Groups of 256 weights a column, in parts. The products of a part's small integers with the scale and the minimum are exact.
template <class Isa, int Rows, class Group>
void super_tile(const Group* w, int groups, const ActivationBlock* x, int place, const TileOut<Isa, Rows>& out) {
    constexpr int kBlocks = kSuperBlock / kQuantBlock, kPart = kSuperBlock / Group::kParts, kPartsOfBlock = kQuantBlock / kPart;
    constexpr int kWords = static_cast<int>(std::extent_v<decltype(Group::q), 1>) / kPartsOfBlock;
    constexpr size_t kShare = sizeof(Group) / kBlocks;
    typename Isa::F acc[Rows];
    HELEXA_UNROLL
    for (int t = 0; t < Rows; t++) acc[t] = Isa::zero();
    for (int g = 0; g < groups; g++) {
        const Group& group = w[g];
        const auto whole_scale = Isa::from_half(group.scale);
        for (int b = 0; b < kBlocks; b++, x++) {
            prefetch<kShare>(reinterpret_cast<const char*>(&group) + kShare * static_cast<size_t>(b));
            HELEXA_UNROLL
            for (int p = 0; p < kPartsOfBlock; p++) {
                const int part = b * kPartsOfBlock + p;
                Sums<Isa, Rows> dots;
                dot<Isa, Rows, kWords>(group.q[b] + p * kWords, x->q + place, p * kPart, dots);
                auto& sums = dots.total();
                if constexpr (Group::kMinimum) {
                    const auto minimum = Isa::mul(Isa::from_half(group.minimum), Isa::from_int8(group.minimums[part]));
                    const auto negative = Isa::sub(Isa::zero(), minimum);
                    HELEXA_UNROLL
                    for (int t = 0; t < Rows; t++)
                        acc[t] = Isa::fma(negative, Isa::set(total_of<kPart>(*x, place + t, p * kPart)), acc[t]);
                }
                const auto scale = Isa::mul(whole_scale, Isa::from_int8(group.scales[part]));
                HELEXA_UNROLL
                for (int t = 0; t < Rows; t++)
                    acc[t] = Isa::fma(Isa::mul(Isa::to_float(sums[t]), Isa::set(x->scale[place + t])), scale, acc[t]);
            }
        }
    }
    out.store(acc);
}

template <class Isa> typename Isa::F load_weights(const F32Group& g) { return Isa::load(g.v); }
template <class Isa> typename Isa::F load_weights(const F16Group& g) { return Isa::from_half(g.v); }
template <class Isa> typename Isa::F load_weights(const BF16Group& g) { return Isa::from_bfloat(g.v); }

template <class Isa, int Rows, class Group>
void float_tile(const Group* w, int columns, const float* x, const TileOut<Isa, Rows>& out) {
    typename Isa::F acc[Rows];
    HELEXA_UNROLL
    for (int t = 0; t < Rows; t++) acc[t] = Isa::zero();
    for (int k = 0; k < columns; k++) {
        const auto weights = load_weights<Isa>(w[k]);
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
        if constexpr (Group::kWeights == kSuperBlock)
            super_tile<Isa, Rows>(w, blocks * kQuantBlock / kSuperBlock, panel, row % kPanelRows, tile);
        else
            quantised_tile<Isa, Rows>(w, blocks, panel, row % kPanelRows, tile);
        out += Rows * stride;
    }
}

template <class Isa, int Rows, class Group>
void float_rows(const Group* w, int k, const float* x, int row0, int row1, float* out, size_t stride, int columns) {
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
    with_layout(segment.type, [&](auto layout) {
        using Group = typename decltype(layout)::Group;
        const size_t length = static_cast<size_t>(k / Group::kWeights);
        const Group* w = static_cast<const Group*>(segment.data) + static_cast<size_t>(first) * length;
        for (int group = first; group < last; group++, w += length, out += kLanes) {
            const int columns = segment.rows - group * kLanes < kLanes ? segment.rows - group * kLanes : kLanes;
            if constexpr (Group::kWeights == 1)
                float_rows<Isa, Isa::kFloatTileRows>(w, k, x, row0, row1, out, stride, columns);
            else
                quantised_rows<Isa, Isa::kTileRows>(w, k / kQuantBlock, q, row0, row1, out, stride, columns);
        }
    });
}

}  // namespace helexa
