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

// Integers of 32 weights. As nibbles, the words of `q[j][lane]` hold the even and the odd ones of weights 8j .. 8j + 7, the first
// in the lowest bits. As bytes, `q[j][lane]` are weights 2j and 2j + 1.
using Nibbles = uint16_t[4][kLanes][2];
using Bytes = int8_t[16][kLanes][2];

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

// 32 weights a column: scale * q (+ minimum), both float16. Q4_0's q is less 8.
struct Q4_0Group {
    static constexpr int kWeights = 32;
    static constexpr bool kMinimum = false;
    uint16_t scale[kLanes];
    Nibbles q;
};
struct Q4_1Group {
    static constexpr int kWeights = 32;
    static constexpr bool kMinimum = true;
    uint16_t scale[kLanes];
    uint16_t minimum[kLanes];
    Nibbles q;
};
struct Q8_0Group {  // also Q5_0
    static constexpr int kWeights = 32;
    static constexpr bool kMinimum = false;
    uint16_t scale[kLanes];
    Bytes q;
};
struct Q5_1Group {
    static constexpr int kWeights = 32;
    static constexpr bool kMinimum = true;
    uint16_t scale[kLanes];
    uint16_t minimum[kLanes];
    Bytes q;
};

// 256 weights a column, in parts of 32 or 16: (scale * scales[part]) * q (- minimum * minimums[part]). Both products are exact.
template <class Integers, int Parts> struct SuperGroup {
    static constexpr int kWeights = kSuperBlock, kParts = Parts;
    static constexpr bool kMinimum = true;
    uint16_t scale[kLanes], minimum[kLanes];
    int8_t scales[Parts][kLanes], minimums[Parts][kLanes];
    Integers q[kSuperBlock / kQuantBlock];
};
using Q4_KGroup = SuperGroup<Nibbles, 8>;
using Q5_KGroup = SuperGroup<Bytes, 8>;
using Q2_KGroup = SuperGroup<Nibbles, 16>;  // also Q3_K, whose integers are less 4: a minimum of 4 * scale
struct Q6_KGroup {
    static constexpr int kWeights = kSuperBlock, kParts = 16;
    static constexpr bool kMinimum = false;
    uint16_t scale[kLanes];
    int8_t scales[kParts][kLanes];
    Bytes q[kSuperBlock / kQuantBlock];
};

template <class G> struct Layout {
    using Group = G;
};

// Calls use(Layout<Group>) with the group that a type is packed in.
template <class Use> auto with_layout(int type, const Use& use) {
    switch (type) {
        case HELEXA_Q4_0: return use(Layout<Q4_0Group>{});
        case HELEXA_Q4_1: return use(Layout<Q4_1Group>{});
        case HELEXA_Q5_0:
        case HELEXA_Q8_0: return use(Layout<Q8_0Group>{});
        case HELEXA_Q5_1: return use(Layout<Q5_1Group>{});
        case HELEXA_Q2_K:
        case HELEXA_Q3_K: return use(Layout<Q2_KGroup>{});
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
template <class Group> float weight_at(const Group& g, int lane, int k) {
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
