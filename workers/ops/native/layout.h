// How weights, quantised activations and the KV cache lie in memory. The same bytes for every instruction set.
#pragma once
#include <cstddef>
#include <cstdint>

namespace helexa {

constexpr int kLanes = 16;        // output columns of one packed group, one a vector lane
constexpr int kQuantBlock = 32;   // weights that share a scale in Q4_0, Q4_1 and Q8_0
constexpr int kScaleBlock = 16;   // activations that share a scale
constexpr int kPanelRows = 8;     // rows of quantised activations that lie side by side
constexpr int kBlockTokens = 16;  // S: tokens in a KV block
constexpr int kMaxHeadDim = 256;

// One block of 32 weights of 16 columns. `q[j][lane]` holds 4 neighbours in K; a nibble byte holds k in its low half and
// k + 16 in its high half, as in GGUF.
struct Q4_0Group {
    uint16_t scale[kLanes];  // float16
    uint8_t q[4][kLanes][4];
};
struct Q4_1Group {
    uint16_t scale[kLanes];
    uint16_t minimum[kLanes];
    uint8_t q[4][kLanes][4];
};
struct Q8_0Group {
    uint16_t scale[kLanes];
    int8_t q[8][kLanes][4];
};

// 32 neighbours in K of 8 rows of activations, quantised to int8 with a scale per 16.
struct ActivationBlock {
    int8_t q[kPanelRows][kQuantBlock];
    float scale[kPanelRows][2];
    float total[kPanelRows];        // sum of the 32 dequantised values: what a minimum is multiplied by
    int32_t offset[kPanelRows][2];  // -8 * sum of the 16 q: what turns unsigned nibbles into signed ones
};

// The bytes of one head in one KV block: keys as [head_dim][16 positions], so that a position is a lane, then values as
// [16 positions][padded head_dim], both float16.
static inline int padded_head_dim(int head_dim) { return (head_dim + kLanes - 1) / kLanes * kLanes; }
static inline size_t key_bytes(int head_dim) { return sizeof(uint16_t) * kBlockTokens * static_cast<size_t>(head_dim); }
static inline size_t head_block_bytes(int head_dim) {
    return key_bytes(head_dim) + sizeof(uint16_t) * kBlockTokens * static_cast<size_t>(padded_head_dim(head_dim));
}

}  // namespace helexa
