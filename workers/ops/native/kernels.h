// What one instruction set offers: the work of each op on a part of its rows, columns or heads, on one thread.
#pragma once
#include <cstddef>
#include <cstdint>

#include "helexa_ops.h"
#include "layout.h"

namespace helexa {

constexpr int kMaxQueries = 8;  // queries of one KV head that are computed together

// Queries of one sequence and one KV head; query i sees positions starts[i] .. limits[i] - 1. `starts` and `soft_cap` are read by
// `attend_ruled` alone.
struct AttentionTile {
    int count;
    const float* queries[kMaxQueries];  // head_dim
    float* outs[kMaxQueries];           // head_dim
    int limits[kMaxQueries];
    int starts[kMaxQueries];
    const uint8_t* cache;   // this layer and KV head in block 0
    size_t block_stride;    // bytes from a block to the next
    const int32_t* blocks;  // the sequence's block table
    int head_dim;
    float scale;     // what scores are multiplied by
    float soft_cap;  // 0: none
};

// Channels first .. last - 1 of a sequence's rows, through a causal depthwise convolution and silu.
struct ConvTile {
    const float* x;       // [rows][channels]
    const float* weight;  // [kernel][channels], the tap of the oldest input first
    float* state;         // [kernel - 1][channels]
    float* out;           // [rows][channels]
    int rows, channels, kernel, first, last;
};

// 16 value columns of one head over a sequence's rows.
struct DeltaTile {
    const float *query, *key, *value;  // of the first row; `stride` floats to the next
    const float* gates;                // beta, and half a stride behind it g
    float* state;                      // [padded key dim][16]
    float* out;
    size_t stride, gate_stride, out_stride;
    int rows, key_dim, lanes;
};

// The highest of a row of logits, and the lowest id that has it.
struct Peak {
    float value;
    int32_t id;
};

constexpr int kBuckets = 2048;  // of logits by their distance from the maximum, the last holds all that are far
constexpr float kBucketsPerNat = 64.0f;

struct Kernels {
    const char* name;

    // Groups first .. last - 1 of a packed segment, for rows row0 .. row1 - 1 (row0 a multiple of kPanelRows). `x` has k columns;
    // `out` is where group `first` of row0 goes.
    void (*linear)(const helexa_segment& segment, int k, int first, int last, const float* x, const ActivationBlock* q, int row0,
                   int row1, float* out, size_t out_stride);
    void (*quantise)(const float* x, int columns, ActivationBlock* panel, int place);
    void (*embed)(const helexa_segment& segment, int columns, int row, float* out);
    void (*rms_norm)(const float* x, const float* weight, float eps, int columns, float* out);
    void (*add)(const float* x, const float* y, int columns, float* out);
    void (*silu_mul)(const float* gate, const float* up, int columns, float* out);
    void (*gelu_mul)(const float* gate, const float* up, int columns, float* out);
    void (*scale)(const float* x, float factor, int columns, float* out);
    void (*add_scaled)(const float* x, float factor, int columns, float* out);
    void (*soft_cap)(const float* x, float cap, int columns, float* out);
    void (*soft_weights)(const float* x, int columns, float* out);
    void (*rotate)(const float* x, const float* cos, const float* sin, int half, bool neox, int head_dim, float* out);
    void (*store_key)(const float* key, int head_dim, int place, uint8_t* block);
    void (*store_value)(const float* value, int head_dim, int place, uint8_t* block);
    void (*attend)(const AttentionTile& tile, const AttentionTile* next);  // `next` is computed after it, for prefetching
    void (*attend_ruled)(const AttentionTile& tile, const AttentionTile* next);  // with a window or a soft cap

    void (*convolve)(const ConvTile& tile);
    void (*gate_heads)(const float* ba, const float* decay, const float* dt_bias, int heads, float* out);
    void (*delta_rule)(const DeltaTile& tile);
    void (*sigmoid_mul)(const float* x, const float* gate, bool single, int columns, float* out);

    Peak (*find_peak)(const float* logits, int vocab, bool* has_nan);
    void (*weigh)(const float* logits, int vocab, float temperature, float maximum, float* scaled, float* weights,
                  int32_t* buckets);
    int32_t (*draw_noisy)(const float* values, int vocab, float temperature, uint32_t key, float cut, int32_t last_tie);
};

const Kernels* portable_kernels();
const Kernels* avx2_kernels();    // null where not compiled
const Kernels* avx512_kernels();  // null where not compiled

}  // namespace helexa
