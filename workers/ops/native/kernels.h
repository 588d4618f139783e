// What one instruction set offers: the work of each op on a part of its rows, columns or heads, on one thread.
#pragma once
#include <cstddef>
#include <cstdint>

#include "helexa_ops.h"
#include "layout.h"

namespace helexa {

constexpr int kMaxQueries = 8;  // queries of one KV head that are computed together

// Queries of one sequence and one KV head; query i sees positions 0 .. limits[i] - 1.
struct AttentionTile {
    int count;
    const float* queries[kMaxQueries];  // head_dim
    float* outs[kMaxQueries];           // head_dim
    int limits[kMaxQueries];
    const uint8_t* cache;   // this layer and KV head in block 0
    size_t block_stride;    // bytes from a block to the next
    const int32_t* blocks;  // the sequence's block table
    int head_dim;
    float scale;  // 1 / sqrt(head_dim)
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
    void (*rotate)(const float* x, const float* cos, const float* sin, int half, bool neox, int head_dim, float* out);
    void (*store_key)(const float* key, int head_dim, int place, uint8_t* block);
    void (*store_value)(const float* value, int head_dim, int place, uint8_t* block);
    void (*attend)(const AttentionTile& tile, const AttentionTile* next);  // `next` is computed after it, for prefetching

    Peak (*find_peak)(const float* logits, int vocab, bool* has_nan);
    void (*weigh)(const float* logits, int vocab, float temperature, float maximum, float* scaled, float* weights,
                  int32_t* buckets);
    int32_t (*draw_noisy)(const float* values, int vocab, float temperature, uint32_t key, float cut, int32_t last_tie);
};

const Kernels* portable_kernels();
const Kernels* avx2_kernels();    // null where not compiled
const Kernels* avx512_kernels();  // null where not compiled

}  // namespace helexa
