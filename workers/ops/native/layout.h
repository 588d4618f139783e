// How quantised activations and the KV cache lie in memory, the same bytes for every instruction set. Weights: packed_weights.h.
#pragma once
#include <cstddef>
#include <cstdint>

#include "helexa_ops.h"

namespace helexa {

constexpr int kLanes = 16;        // output columns of one packed group, one a vector lane
constexpr int kQuantBlock = 32;   // activations that share a scale, and the weights that meet them
constexpr int kSuperBlock = 256;  // weights of a block of a K type
constexpr int kPanelRows = 8;     // rows of quantised activations that lie side by side
constexpr int kBlockTokens = 16;  // S: tokens in a KV block
constexpr int kMaxHeadDim = 256;

// 32 neighbours in K of 8 rows of activations, x = scale * q.
struct ActivationBlock {
    int16_t q[kPanelRows][kQuantBlock];
    float scale[kPanelRows];
    float total[kPanelRows];          // scale * sum of q: what a minimum is multiplied by
    float half_total[2][kPanelRows];  // of the first 16, and of the others
    int32_t offset[kPanelRows];       // -8 * sum of q: what turns unsigned nibbles into signed ones
};

// The bytes of one head in one KV block: keys as [head_dim][16 positions], so that a position is a lane, then values as
// [16 positions][padded head_dim], both float16.
static inline int padded_head_dim(int head_dim) { return (head_dim + kLanes - 1) / kLanes * kLanes; }
static inline size_t key_bytes(int head_dim) { return sizeof(uint16_t) * kBlockTokens * static_cast<size_t>(head_dim); }
static inline size_t head_block_bytes(int head_dim) {
    return key_bytes(head_dim) + sizeof(uint16_t) * kBlockTokens * static_cast<size_t>(padded_head_dim(head_dim));
}

// What a recurrent layer holds of one sequence, in floats: the last kernel - 1 inputs of its convolution, [kernel - 1][channels]
// (queries, keys, values), then a matrix of each value head in groups of 16 value columns, [value heads][groups][key dim][16].
constexpr int kKeyUnroll = 4;  // the key dim is padded to a multiple
static inline int padded_key_dim(int key_dim) { return (key_dim + kKeyUnroll - 1) / kKeyUnroll * kKeyUnroll; }
static inline int value_groups(const helexa_state& state) { return (state.value_dim + kLanes - 1) / kLanes; }
static inline int conv_channels(const helexa_state& state) {
    return 2 * state.key_heads * state.key_dim + state.value_heads * state.value_dim;
}
static inline size_t conv_state_floats(const helexa_state& state) {
    const size_t floats = static_cast<size_t>(state.kernel - 1) * static_cast<size_t>(conv_channels(state));
    return (floats + kLanes - 1) / kLanes * kLanes;
}
static inline size_t layer_state_floats(const helexa_state& state) {
    return conv_state_floats(state) + static_cast<size_t>(state.value_heads) * static_cast<size_t>(value_groups(state)) *
                                          static_cast<size_t>(padded_key_dim(state.key_dim)) * kLanes;
}

}  // namespace helexa
