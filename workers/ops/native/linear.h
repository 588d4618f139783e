// Linears: every output column sums over K in rising order; lanes are columns, tiles are rows, neither shares a sum.
#pragma once
#include <type_traits>

#include "fields.h"
#include "half.h"
#include "kernels.h"
#include "layout.h"
#include "packed_weights.h"

namespace helexa {

constexpr int kExpandedRows = 64;     // rows that pass by weights once they are expanded
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
        const int32_t halves[2] = {Isa::sum_int(low), Isa::sum_int(high)}, sum = halves[0] + halves[1];
        const float scale = !finite ? __builtin_nanf("") : tiny ? 0.0f : largest / kLargest;
        out.scale[place] = scale;
        out.total[place] = scale * static_cast<float>(sum);
        for (int half = 0; half < 2; half++) out.half_total[half][place] = scale * static_cast<float>(halves[half]);
        out.offset[place] = -8 * sum;
    }
}

// Where the outputs of a group of columns go, from a row on: `columns` are left, of which a group is the first 16.
template <class Isa> struct Outputs {
    float* out;
    size_t stride;
    int columns;

    Outputs beside(int groups) const { return {out + groups * kLanes, stride, columns - groups * kLanes}; }
    Outputs after(int rows) const { return {out + static_cast<size_t>(rows) * stride, stride, columns}; }
    template <int Rows> void start(typename Isa::F (&acc)[Rows]) const {
        HELEXA_UNROLL
        for (int t = 0; t < Rows; t++) acc[t] = Isa::zero();
    }
    template <int Rows> void store(const typename Isa::F (&acc)[Rows]) const {
        if (columns >= kLanes) {
            HELEXA_UNROLL
            for (int t = 0; t < Rows; t++) Isa::store(out + static_cast<size_t>(t) * stride, acc[t]);
        } else {
            HELEXA_UNROLL
            for (int t = 0; t < Rows; t++) Isa::store_first(out + static_cast<size_t>(t) * stride, acc[t], columns);
        }
    }
};

// The same where K is added up in turns: sums go on from what is there, but for the first turn.
template <class Isa> struct PartialSums {
    float (*sums)[kLanes];
    bool first;

    PartialSums beside(int groups) const { return {sums + groups * kExpandedRows, first}; }
    PartialSums after(int rows) const { return {sums + rows, first}; }
    template <int Rows> void start(typename Isa::F (&acc)[Rows]) const {
        HELEXA_UNROLL
        for (int t = 0; t < Rows; t++) acc[t] = first ? Isa::zero() : Isa::load(sums[t]);
    }
    template <int Rows> void store(const typename Isa::F (&acc)[Rows]) const {
        HELEXA_UNROLL
        for (int t = 0; t < Rows; t++) Isa::store(sums[t], acc[t]);
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

// A sum of `Count` products that is under way. Where products take long (kChains is 2), there is a second one, so that neither
// waits for the other, unless that is more work than it saves.
template <class Isa, int Rows, int Count> struct Sums {
    static constexpr bool kTwo = Isa::kChains == 2 && (Count == kQuantBlock || Rows < 4);
    typename Isa::I first[Rows], second[Rows];

    Sums() {
        HELEXA_UNROLL
        for (int t = 0; t < Rows; t++) first[t] = second[t] = Isa::set_int(0);
    }
    auto& other() { return kTwo ? second : first; }
    auto& total() {
        if constexpr (kTwo) {
            HELEXA_UNROLL
            for (int t = 0; t < Rows; t++) first[t] = Isa::add_int(first[t], second[t]);
        }
        return first;
    }
};

// The nibbles `Part` of both words of a lane: those of part 1 times 16, of part 2 times 256.
template <class Isa, int Part> HELEXA_INLINE typename Isa::Pairs nibble_pairs(const uint16_t (&q)[kLanes][2]) {
    if constexpr (Part == 3) return Isa::template move<-12>(Isa::words(q));
    return Isa::keep(Isa::words(q), 15 << 4 * (Part & 3));
}

// Products of weights First .. First + Count - 1 of 32. Nibbles are taken out of their words with a mask alone, which leaves some
// times 256 or 16: these are summed first and divided while the sum is a multiple of 16, so exactly: 256 * 15 * 8 * 32767 fits
// in 32 bits.
template <class Isa, int Rows, int First, int Count, int All>
HELEXA_INLINE void dot(const Nibbles& q, const int16_t (*x)[kQuantBlock], Sums<Isa, Rows, All>& sums) {
    HELEXA_UNROLL
    for (int k = First; k < First + Count; k += 8) add_pairs<Isa, Rows>(sums.first, nibble_pairs<Isa, 2>(q[k / 8]), x, k + 4);
    divide_by_16<Isa, Rows>(sums.first);
    HELEXA_UNROLL
    for (int k = First; k < First + Count; k += 8) add_pairs<Isa, Rows>(sums.first, nibble_pairs<Isa, 1>(q[k / 8]), x, k + 2);
    divide_by_16<Isa, Rows>(sums.first);
    HELEXA_UNROLL
    for (int k = First; k < First + Count; k += 8) {
        add_pairs<Isa, Rows>(sums.other(), nibble_pairs<Isa, 0>(q[k / 8]), x, k);
        add_pairs<Isa, Rows>(sums.other(), nibble_pairs<Isa, 3>(q[k / 8]), x, k + 6);
    }
}

template <class Isa, int Rows, int First, int Count, int All>
HELEXA_INLINE void dot(const Bytes& q, const int16_t (*x)[kQuantBlock], Sums<Isa, Rows, All>& sums) {
    HELEXA_UNROLL
    for (int k = First; k < First + Count; k += 4) {
        add_pairs<Isa, Rows>(sums.first, Isa::byte_pairs(q[k / 2]), x, k);
        add_pairs<Isa, Rows>(sums.other(), Isa::byte_pairs(q[k / 2 + 1]), x, k + 2);
    }
}

template <class Isa, int Rows, int First, int Count, int All>
HELEXA_INLINE void dot(const Words& q, const int16_t (*x)[kQuantBlock], Sums<Isa, Rows, All>& sums) {
    HELEXA_UNROLL
    for (int k = First; k < First + Count; k += 4) {
        add_pairs<Isa, Rows>(sums.first, Isa::words(q[k / 2]), x, k);
        add_pairs<Isa, Rows>(sums.other(), Isa::words(q[k / 2 + 1]), x, k + 2);
    }
}

template <class Isa, int Rows, int First, int Count, int All, int Low, int High, int Less>
HELEXA_INLINE void dot(const Fields<Low, High, Less>& q, const int16_t (*x)[kQuantBlock], Sums<Isa, Rows, All>& sums) {
    const auto bytes = four_weights<Isa, First / 4>(q);
    add_pairs<Isa, Rows>(sums.first, lower_pairs<Isa, Less>(bytes), x, First);
    add_pairs<Isa, Rows>(sums.other(), upper_pairs<Isa, Less>(bytes), x, First + 2);
    if constexpr (Count > 4) dot<Isa, Rows, First + 4, Count - 4>(q, x, sums);
}

// Groups of 32 weights a column.
template <class Isa, int Rows, class Group, class Out>
void quantised_tile(const Group* w, int blocks, const ActivationBlock* x, int place, const Out& out) {
    typename Isa::F acc[Rows];
    out.start(acc);
    for (int block = 0; block < blocks; block++) {
        const Group& group = w[block];
        if constexpr (!kExpanded<Group>) prefetch<sizeof(Group)>(&group);
        Sums<Isa, Rows, kQuantBlock> dots;
        dot<Isa, Rows, 0, kQuantBlock>(group.q, x[block].q + place, dots);
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

// Part `Part` of a block of 32 in a group of 256. The products of its small integers with the scale and the minimum are exact.
template <class Isa, int Rows, int Part, class Group>
HELEXA_INLINE void add_part(const Group& group, int block, const ActivationBlock& x, int place, typename Isa::F whole_scale,
                            typename Isa::F (&acc)[Rows]) {
    constexpr int kPart = kSuperBlock / Group::kParts, kPartsOfBlock = kQuantBlock / kPart;
    const int part = block * kPartsOfBlock + Part;
    Sums<Isa, Rows, kPart> dots;
    dot<Isa, Rows, Part * kPart, kPart>(group.q[block], x.q + place, dots);
    auto& sums = dots.total();
    if constexpr (Group::kMinimum) {
        const auto minimum = Isa::mul(Isa::from_half(group.minimum), Isa::from_int8(group.minimums[part]));
        const auto negative = Isa::sub(Isa::zero(), minimum);
        const float* totals = (kPart == kQuantBlock ? x.total : x.half_total[Part]) + place;
        HELEXA_UNROLL
        for (int t = 0; t < Rows; t++) acc[t] = Isa::fma(negative, Isa::set(totals[t]), acc[t]);
    }
    const auto scale = Isa::mul(whole_scale, Isa::from_int8(group.scales[part]));
    HELEXA_UNROLL
    for (int t = 0; t < Rows; t++)
        acc[t] = Isa::fma(Isa::mul(Isa::to_float(sums[t]), Isa::set(x.scale[place + t])), scale, acc[t]);
}

// Groups of 256 weights a column, in parts.
template <class Isa, int Rows, class Group, class Out>
void super_tile(const Group* w, int groups, const ActivationBlock* x, int place, const Out& out) {
    constexpr int kBlocks = kSuperBlock / kQuantBlock;
    constexpr size_t kShare = sizeof(Group) / kBlocks;
    typename Isa::F acc[Rows];
    out.start(acc);
    for (int g = 0; g < groups; g++) {
        const auto whole_scale = Isa::from_half(w[g].scale);
        for (int b = 0; b < kBlocks; b++, x++) {
            const char* share = reinterpret_cast<const char*>(&w[g]) + kShare * static_cast<size_t>(b);
            if constexpr (!kExpanded<Group>) prefetch<kShare>(share);
            add_part<Isa, Rows, 0>(w[g], b, *x, place, whole_scale, acc);
            if constexpr (Group::kParts == 2 * kBlocks) add_part<Isa, Rows, 1>(w[g], b, *x, place, whole_scale, acc);
        }
    }
    out.store(acc);
}

template <class Isa> typename Isa::F load_weights(const F32Group& g) { return Isa::load(g.v); }
template <class Isa> typename Isa::F load_weights(const F16Group& g) { return Isa::from_half(g.v); }
template <class Isa> typename Isa::F load_weights(const BF16Group& g) { return Isa::from_bfloat(g.v); }

// Groups of columns side by side, which share what is loaded of the rows.
template <class Isa, int Rows, int Groups, class Group, class Out>
void float_tile(const Group* w, size_t length, size_t count, const float* x, const Out& out) {
    typename Isa::F acc[Groups][Rows];
    HELEXA_UNROLL
    for (int g = 0; g < Groups; g++) out.beside(g).start(acc[g]);
    for (size_t k = 0; k < count; k++) {
        typename Isa::F weights[Groups];
        HELEXA_UNROLL
        for (int g = 0; g < Groups; g++) weights[g] = load_weights<Isa>(w[static_cast<size_t>(g) * length + k]);
        HELEXA_UNROLL
        for (int t = 0; t < Rows; t++) {
            const auto row = Isa::set(x[static_cast<size_t>(t) * length + k]);
            HELEXA_UNROLL
            for (int g = 0; g < Groups; g++) acc[g][t] = Isa::fma(weights[g], row, acc[g][t]);
        }
    }
    HELEXA_UNROLL
    for (int g = 0; g < Groups; g++) out.beside(g).store(acc[g]);
}

// Rows row0 .. row1 - 1 of one group of columns over `blocks` blocks of K, in tiles of Rows and one smaller one. `x` is the first
// of these blocks in the first panel, of which each has `panel_blocks`; `out` is row0's.
template <class Isa, int Rows, class Group, class Out> void quantised_rows(const Group* w, int blocks, const ActivationBlock* x,
                                                                           size_t panel_blocks, int row0, int row1, Out out) {
    for (int row = row0; row < row1; row += Rows, out = out.after(Rows)) {
        if constexpr (Rows > 1) {
            if (row1 - row < Rows) return quantised_rows<Isa, Rows - 1>(w, blocks, x, panel_blocks, row, row1, out);
        }
        const ActivationBlock* panel = x + static_cast<size_t>(row / kPanelRows) * panel_blocks;
        if constexpr (Group::kWeights == kSuperBlock)
            super_tile<Isa, Rows>(w, blocks * kQuantBlock / kSuperBlock, panel, row % kPanelRows, out);
        else
            quantised_tile<Isa, Rows>(w, blocks, panel, row % kPanelRows, out);
    }
}

// The same for fields and several tiles: 256 weights at a time are expanded, and all rows pass by them.
template <class Isa, class Group> void expanded_rows(const Group* w, int blocks, const ActivationBlock* x, int row0, int row1,
                                                     const Outputs<Isa>& out) {
    constexpr int kGroups = kSuperBlock / Group::kWeights, kBlocks = kSuperBlock / kQuantBlock;
    typename Group::template With<Words> expanded[kGroups];
    alignas(64) float sums[kExpandedRows][kLanes];
    for (int row = row0; row < row1; row += kExpandedRows) {
        const int end = row1 - row < kExpandedRows ? row1 : row + kExpandedRows;
        for (int block = 0; block < blocks; block += kBlocks) {
            const int count = blocks - block < kBlocks ? blocks - block : kBlocks, groups = count * kQuantBlock / Group::kWeights;
            const Group* from = w + block * kQuantBlock / Group::kWeights;
            for (int g = 0; g < groups; g++) {
                prefetch<sizeof(Group)>(&from[g]);
                expand<Isa>(from[g], expanded[g]);
            }
            const PartialSums<Isa> partial{sums, block == 0};
            quantised_rows<Isa, Isa::kTileRows>(expanded, count, x + block, static_cast<size_t>(blocks), row, end, partial);
        }
        for (int i = row; i < end; i++) {
            const typename Isa::F acc[1] = {Isa::load(sums[i - row])};
            out.after(i - row0).store(acc);
        }
    }
}

template <class Isa, int Rows, int Groups, class Group, class Out>
void float_rows(const Group* w, size_t length, size_t count, const float* x, int row0, int row1, Out out) {
    for (int row = row0; row < row1; row += Rows, out = out.after(Rows)) {
        if constexpr (Rows > 1) {
            if (row1 - row < Rows) return float_rows<Isa, Rows - 1, Groups>(w, length, count, x, row, row1, out);
        }
        float_tile<Isa, Rows, Groups>(w, length, count, x + static_cast<size_t>(row) * length, out);
    }
}

// Several tiles pass by 256 weights of a column at a time.
template <class Isa, int Groups, class Group>
void float_columns(const Group* w, size_t length, const float* x, int row0, int row1, const Outputs<Isa>& out) {
    if (row1 - row0 <= Isa::kFloatTileRows)
        return float_rows<Isa, Isa::kFloatTileRows, Groups>(w, length, length, x, row0, row1, out);
    alignas(64) float sums[Groups][kExpandedRows][kLanes];
    for (int row = row0; row < row1; row += kExpandedRows) {
        const int end = row1 - row < kExpandedRows ? row1 : row + kExpandedRows;
        for (size_t k = 0; k < length; k += kSuperBlock) {
            const size_t count = length - k < kSuperBlock ? length - k : kSuperBlock;
            const PartialSums<Isa> partial{sums[0], k == 0};
            float_rows<Isa, Isa::kFloatTileRows, Groups>(w + k, length, count, x + k, row, end, partial);
        }
        for (int i = row; i < end; i++)
            for (int g = 0; g < Groups; g++) {
                const typename Isa::F acc[1] = {Isa::load(sums[g][i - row])};
                out.after(i - row0).beside(g).store(acc);
            }
    }
}

template <class Isa, class Group> void quantised_columns(const Group* w, int blocks, const ActivationBlock* x, int row0, int row1,
                                                         const Outputs<Isa>& out) {
    if constexpr (kHasFields<Group>) {
        if (row1 - row0 > Isa::kTileRows) return expanded_rows<Isa>(w, blocks, x, row0, row1, out);
    }
    quantised_rows<Isa, Isa::kTileRows>(w, blocks, x, static_cast<size_t>(blocks), row0, row1, out);
}

template <class Isa> void linear_groups(const helexa_segment& segment, int k, int first, int last, const float* x,
                                        const ActivationBlock* q, int row0, int row1, float* out, size_t stride) {
    with_layout(segment.type, [&](auto layout) {
        using Group = typename decltype(layout)::Group;
        const size_t length = static_cast<size_t>(k / Group::kWeights);
        const Group* w = static_cast<const Group*>(segment.data) + static_cast<size_t>(first) * length;
        Outputs<Isa> outputs{out, stride, segment.rows - first * kLanes};
        int group = first;
        if constexpr (Group::kWeights == 1) {
            constexpr int kTogether = Isa::kFloatGroups;
            for (; last - group >= kTogether; group += kTogether, w += kTogether * length, outputs = outputs.beside(kTogether))
                float_columns<Isa, kTogether>(w, length, x, row0, row1, outputs);
        }
        for (; group < last; group++, w += length, outputs = outputs.beside(1)) {
            if constexpr (Group::kWeights == 1)
                float_columns<Isa, 1>(w, length, x, row0, row1, outputs);
            else
                quantised_columns<Isa>(w, k / kQuantBlock, q, row0, row1, outputs);
        }
    });
}

}  // namespace helexa
