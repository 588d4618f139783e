// How weights, quantised activations and the KV cache lie in memory. The same bytes for every instruction set.
#pragma once
#include <cstddef>
#include <cstdint>

namespace helexa {

constexpr int kLanes = 16;        // output columns of one packed group, one a vector lane
constexpr int kQuantBlock = 32;   // weights that share a scale in Q4_0, Q4_1 and Q8_0, and activations that do
constexpr int kPanelRows = 8;     // rows of quantised activations that lie side by side
constexpr int kBlockTokens = 16;  // S: tokens in a KV block
constexpr int kMaxHeadDim = 256;

// One block of 32 weights of 16 columns, so that a load gives each lane neighbours in K, to be multiplied in pairs. The words of
// `q[j][lane]` hold the even and the odd ones of weights 8j .. 8j + 7 as nibbles, the first in the lowest bits; the bytes of
// Q8_0's `q[j][lane]` are weights 2j and 2j + 1.
struct Q4_0Group {
    uint16_t scale[kLanes];  // float16
    uint16_t q[4][kLanes][2];
};
struct Q4_1Group {
    uint16_t scale[kLanes];
    uint16_t minimum[kLanes];
    uint16_t q[4][kLanes][2];
};
struct Q8_0Group {
    uint16_t scale[kLanes];
    int8_t q[16][kLanes][2];
};

// Where nibble k of a lane begins in its word, q[k / 8][lane][k % 2].
static inline int nibble_shift(int k) { return k % 8 / 2 * 4; }

// 32 neighbours in K of 8 rows of activations, x = scale * q.
struct ActivationBlock {
    int16_t q[kPanelRows][kQuantBlock];
    float scale[kPanelRows];
    float total[kPanelRows];     // scale * sum of q: what a minimum is multiplied by
    int32_t offset[kPanelRows];  // -8 * sum of q: what turns unsigned nibbles into signed ones
};

// The bytes of one head in one KV block: keys as [head_dim][16 positions], so that a position is a lane, then values as
// [16 positions][padded head_dim], both float16.
static inline int padded_head_dim(int head_dim) { return (head_dim + kLanes - 1) / kLanes * kLanes; }
static inline size_t key_bytes(int head_dim) { return sizeof(uint16_t) * kBlockTokens * static_cast<size_t>(head_dim); }
static inline size_t head_block_bytes(int head_dim) {
    return key_bytes(head_dim) + sizeof(uint16_t) * kBlockTokens * static_cast<size_t>(padded_head_dim(head_dim));
}

}  // namespace helexa
