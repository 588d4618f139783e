// How packed weights lie in memory, the same bytes for every instruction set: a group holds neighbours in K of 16 output columns,
// so that a load gives each lane neighbours in K, to be multiplied in pairs. The groups of 16 columns follow each other along K.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "half.h"
#include "helexa_ops.h"
#include "layout.h"

namespace helexa {

// Integers of 32 weights, in one of three forms. As nibbles, the words of `q[j][lane]` hold the even and the odd ones of weights
// 8j .. 8j + 7, the first in the lowest bits. As bytes, `q[j][lane]` are weights 2j and 2j + 1.
using Nibbles = uint16_t[4][kLanes][2];
using Bytes = int8_t[16][kLanes][2];
using Words = uint16_t[16][kLanes][2];  // as bytes lie, each made 16 bits: fields that many rows read become these first

// Integers of Low + High bits, less `Less`: their low bits in the first Low words of a lane, their high ones in the others. Again
// even and odd weights have words of their own, and weights 4m .. 4m + 3 are the fields m of the words' lower and upper bytes.
template <int Low, int High, int Less> struct Fields {
    uint16_t words[Low + High][kLanes][2];
};
template <class Integers> inline constexpr bool kAreFields = false;
template <int Low, int High, int Less> inline constexpr bool kAreFields<Fields<Low, High, Less>> = true;

// The field of `Bits` bits of weight k.
template <int Bits> static int get_field(const uint16_t (*words)[kLanes][2], int lane, int k) {
    constexpr int kFields = 8 / Bits;
    const int four = k / 4, shift = k % 4 / 2 * 8 + four % kFields * Bits;
    return words[four / kFields][lane][k % 2] >> shift & ((1 << Bits) - 1);
}
// Bits From .. From + Bits - 1 of 32 integers plus `Less`.
template <int Bits, int From, int Less> static void put_fields(uint16_t (*words)[kLanes][2], int lane, const int8_t* values) {
    constexpr int kFields = 8 / Bits, kMask = (1 << Bits) - 1;
    for (int word = 0; word < Bits; word++)
        for (int odd = 0; odd < 2; odd++) {
            unsigned bits = 0;
            for (int field = 0; field < kFields; field++) {
                const int8_t* v = values + 4 * (word * kFields + field) + odd;
                const int lower = (v[0] + Less) >> From & kMask, upper = (v[2] + Less) >> From & kMask;
                bits |= static_cast<unsigned>(lower | upper << 8) << field * Bits;
            }
            words[word][lane][odd] = static_cast<uint16_t>(bits);
        }
}

// Where nibble k of a lane begins in its word, q[k / 8][lane][k % 2].
static inline int nibble_shift(int k) { return k % 8 / 2 * 4; }

static inline int get(const Nibbles& q, int lane, int k) { return q[k / 8][lane][k % 2] >> nibble_shift(k) & 15; }
static inline int get(const Bytes& q, int lane, int k) { return q[k / 2][lane][k % 2]; }
static inline void put(Nibbles& q, int lane, const int8_t* values) {
    for (int j = 0; j < 4; j++)
        for (int odd = 0; odd < 2; odd++) {
            const int8_t* v = values + 8 * j + odd;
            q[j][lane][odd] = static_cast<uint16_t>(v[0] | v[2] << 4 | v[4] << 8 | v[6] << 12);
        }
}
static inline void put(Bytes& q, int lane, const int8_t* values) {
    for (int j = 0; j < 16; j++) std::memcpy(q[j][lane], values + 2 * j, 2);
}
template <int Low, int High, int Less> static int get(const Fields<Low, High, Less>& q, int lane, int k) {
    int value = get_field<Low>(q.words, lane, k);
    if constexpr (High > 0) value |= get_field<High>(q.words + Low, lane, k) << Low;
    return value - Less;
}
template <int Low, int High, int Less> static void put(Fields<Low, High, Less>& q, int lane, const int8_t* values) {
    put_fields<Low, 0, Less>(q.words, lane, values);
    if constexpr (High > 0) put_fields<High, Low, Less>(q.words + Low, lane, values);
}

// One weight a column.
struct F32Group {
    static constexpr int kWeights = 1;
    float v[kLanes];
};
struct F16Group {
    static constexpr int kWeights = 1;
    uint16_t v[kLanes];
};
struct BF16Group {
    static constexpr int kWeights = 1;
    uint16_t v[kLanes];
};

// 32 weights a column: scale * q (+ minimum), both float16. The q of Q4_0, plain nibbles, is less 8.
template <class Integers> struct PlainGroup {
    template <class Others> using With = PlainGroup<Others>;
    static constexpr int kWeights = kQuantBlock;
    static constexpr bool kMinimum = false;
    uint16_t scale[kLanes];
    Integers q;
};
template <class Integers> struct MinimumGroup {
    template <class Others> using With = MinimumGroup<Others>;
    static constexpr int kWeights = kQuantBlock;
    static constexpr bool kMinimum = true;
    uint16_t scale[kLanes], minimum[kLanes];
    Integers q;
};
using Q4_0Group = PlainGroup<Nibbles>;
using Q4_1Group = MinimumGroup<Nibbles>;
using Q5_0Group = PlainGroup<Fields<4, 1, 16>>;
using Q5_1Group = MinimumGroup<Fields<4, 1, 0>>;
using Q8_0Group = PlainGroup<Bytes>;

// 256 weights a column, in parts of 32 or 16: (scale * scales[part]) * q (- minimum * minimums[part]). Both products are exact.
template <class Integers, int Parts> struct PlainSuperGroup {
    template <class Others> using With = PlainSuperGroup<Others, Parts>;
    static constexpr int kWeights = kSuperBlock, kParts = Parts;
    static constexpr bool kMinimum = false;
    uint16_t scale[kLanes];
    int8_t scales[Parts][kLanes];
    Integers q[kSuperBlock / kQuantBlock];
};
template <class Integers, int Parts> struct MinimumSuperGroup {
    template <class Others> using With = MinimumSuperGroup<Others, Parts>;
    static constexpr int kWeights = kSuperBlock, kParts = Parts;
    static constexpr bool kMinimum = true;
    uint16_t scale[kLanes], minimum[kLanes];
    int8_t scales[Parts][kLanes], minimums[Parts][kLanes];
    Integers q[kSuperBlock / kQuantBlock];
};
using Q2_KGroup = MinimumSuperGroup<Fields<2, 0, 0>, 16>;
using Q3_KGroup = PlainSuperGroup<Fields<2, 1, 4>, 16>;
using Q4_KGroup = MinimumSuperGroup<Nibbles, 8>;
using Q5_KGroup = MinimumSuperGroup<Fields<4, 1, 0>, 8>;
using Q6_KGroup = PlainSuperGroup<Fields<4, 2, 32>, 16>;

template <class G> struct Layout {
    using Group = G;
};

// Calls use(Layout<Group>) with the group that a type is packed in.
template <class Use> auto with_layout(int type, const Use& use) {
    switch (type) {
        case HELEXA_Q4_0: return use(Layout<Q4_0Group>{});
        case HELEXA_Q4_1: return use(Layout<Q4_1Group>{});
        case HELEXA_Q5_0: return use(Layout<Q5_0Group>{});
        case HELEXA_Q5_1: return use(Layout<Q5_1Group>{});
        case HELEXA_Q8_0: return use(Layout<Q8_0Group>{});
        case HELEXA_Q2_K: return use(Layout<Q2_KGroup>{});
        case HELEXA_Q3_K: return use(Layout<Q3_KGroup>{});
        case HELEXA_Q4_K: return use(Layout<Q4_KGroup>{});
        case HELEXA_Q5_K: return use(Layout<Q5_KGroup>{});
        case HELEXA_Q6_K: return use(Layout<Q6_KGroup>{});
        case HELEXA_F16: return use(Layout<F16Group>{});
        case HELEXA_BF16: return use(Layout<BF16Group>{});
        default: return use(Layout<F32Group>{});
    }
}

// One weight of a column: as the type defines it, with one rounding at most.
static inline float weight_at(const F32Group& g, int lane, int) { return g.v[lane]; }
static inline float weight_at(const F16Group& g, int lane, int) { return half_to_float(g.v[lane]); }
static inline float weight_at(const BF16Group& g, int lane, int) { return bfloat_to_float(g.v[lane]); }
static inline float weight_at(const Q4_0Group& g, int lane, int k) {
    return half_to_float(g.scale[lane]) * static_cast<float>(get(g.q, lane, k) - 8);
}
template <class Group> static float weight_at(const Group& g, int lane, int k) {
    const float scale = half_to_float(g.scale[lane]);
    if constexpr (Group::kWeights == kSuperBlock) {
        const int part = k / (kSuperBlock / Group::kParts);
        const float q = static_cast<float>(get(g.q[k / kQuantBlock], lane, k % kQuantBlock));
        const float weight = scale * static_cast<float>(g.scales[part][lane]) * q;
        if constexpr (Group::kMinimum)
            return weight - half_to_float(g.minimum[lane]) * static_cast<float>(g.minimums[part][lane]);
        else
            return weight;
    } else {
        const float weight = scale * static_cast<float>(get(g.q, lane, k));
        if constexpr (Group::kMinimum)
            return weight + half_to_float(g.minimum[lane]);
        else
            return weight;
    }
}

}  // namespace helexa
