// Causal attention over the paged cache: softmax(scale q k) v over positions 0 .. own, one arithmetic for decode and prefill.
//
// A row is a query at its position, whatever is computed beside it. Positions are taken in fixed tiles of 16 from 0, the cache's blocks:
// warp w takes tiles w, w + WARPS, ..., each with a running softmax (Milakov and Gimelshein 2018), and the warps are joined in order.
// So a row's bits depend on its position and cache alone. A row without a sequence (-1) is padding: its output is not written.
#include "common.cuh"

#define WARPS (THREADS / 32)
#define TILE 16
#define PAIRS (HEAD_DIM / 2)
#define PAIRS_PER_LANE ((PAIRS + 31) / 32)

struct Pair {
    float x, y;
};
__device__ __forceinline__ Pair load_pair(const KV* place) {
    const u32 both = *reinterpret_cast<const u32*>(place);
    KV x, y;
    x.bits = u16(both);
    y.bits = u16(both >> 16);
    return {to_float(x), to_float(y)};
}

// The highest of a warp's numbers, in every lane; a NaN is above all.
__device__ __forceinline__ float warp_highest(float x) {
#pragma unroll
    for (int step = 16; step; step >>= 1) {
        const float other = __shfl_xor_sync(FULL_WARP, x, step);
        if (other > x || other != other) x = other;
    }
    return x;
}

// grid: (rows, heads). q, out: rows x heads x HEAD_DIM. block_tables: sequences x table_width. keys, values: blocks x kv_heads x 16 x
// HEAD_DIM. window: only the last so many positions, own included; 0 is all. soft_cap: 0 is none.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention(const ACT* __restrict__ q, const KV* __restrict__ keys, const KV* __restrict__ values, const int* __restrict__ positions,
          const int* __restrict__ sequence_of_row, const int* __restrict__ block_tables, ACT* __restrict__ out, int heads, int kv_heads,
          int table_width, float scale, int window, float soft_cap) {
    __shared__ float highest_of[WARPS], mass_of[WARPS], sums[WARPS][HEAD_DIM];
    const int row = blockIdx.x, head = blockIdx.y, sequence = sequence_of_row[row];
    if (sequence < 0) return;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int length = positions[row] + 1, start = window > 0 && length > window ? length - window : 0;
    const int* table = block_tables + u64(sequence) * table_width;
    const u64 query = (u64(row) * heads + head) * HEAD_DIM;

    Pair wanted[PAIRS_PER_LANE], sum[PAIRS_PER_LANE];
#pragma unroll
    for (int i = 0; i < PAIRS_PER_LANE; i++) {
        const int pair = lane + 32 * i;
        const bool held = pair < PAIRS;
        wanted[i] = {held ? to_float(q[query + 2 * pair]) * scale : 0.0f, held ? to_float(q[query + 2 * pair + 1]) * scale : 0.0f};
        sum[i] = {0.0f, 0.0f};
    }
    float highest = -INF_F32, mass = 0.0f;
    for (int tile = warp; tile * TILE < length; tile += WARPS) {
        if ((tile + 1) * TILE <= start) continue;
        const u64 base = (u64(table[tile]) * kv_heads + head / (heads / kv_heads)) * TILE * HEAD_DIM;
        const int held = length - tile * TILE < TILE ? length - tile * TILE : TILE;
        const int first = start - tile * TILE;  // of the tile's positions that count; 0 or less: all
        float score = -INF_F32;  // of position `lane` of the tile
#pragma unroll
        for (int j = 0; j < TILE; j++) {
            if (j < first || j >= held) continue;
            float product = 0.0f;
#pragma unroll
            for (int i = 0; i < PAIRS_PER_LANE; i++) {
                const int pair = lane + 32 * i;
                const Pair key = pair < PAIRS ? load_pair(keys + base + j * HEAD_DIM + 2 * pair) : Pair{0.0f, 0.0f};
                product = fmaf(wanted[i].x, key.x, product);
                product = fmaf(wanted[i].y, key.y, product);
            }
            product = warp_sum(product);
            if (lane == j) score = product;
        }
        const bool counts = lane >= first && lane < held;
        if (counts && soft_cap > 0.0f) score = soft_capped(score, soft_cap);
        const float top = warp_highest(score > highest || score != score ? score : highest);
        const float weight = counts ? exp_not_positive(score - top) : 0.0f;
        const float faded = highest == -INF_F32 ? 0.0f : exp_not_positive(highest - top);
        mass *= faded;
#pragma unroll
        for (int i = 0; i < PAIRS_PER_LANE; i++) sum[i] = {sum[i].x * faded, sum[i].y * faded};
#pragma unroll
        for (int j = 0; j < TILE; j++) {
            if (j < first || j >= held) continue;
            const float share = __shfl_sync(FULL_WARP, weight, j);
            mass += share;
#pragma unroll
            for (int i = 0; i < PAIRS_PER_LANE; i++) {
                const int pair = lane + 32 * i;
                const Pair value = pair < PAIRS ? load_pair(values + base + j * HEAD_DIM + 2 * pair) : Pair{0.0f, 0.0f};
                sum[i] = {fmaf(share, value.x, sum[i].x), fmaf(share, value.y, sum[i].y)};
            }
        }
        highest = top;
    }
#pragma unroll
    for (int i = 0; i < PAIRS_PER_LANE; i++) {
        const int pair = lane + 32 * i;
        if (pair < PAIRS) {
            sums[warp][2 * pair] = sum[i].x;
            sums[warp][2 * pair + 1] = sum[i].y;
        }
    }
    if (lane == 0) {
        highest_of[warp] = highest;
        mass_of[warp] = mass;
    }
    __syncthreads();

    float top = -INF_F32;
    for (int w = 0; w < WARPS; w++)
        if (top == top && !(highest_of[w] <= top)) top = highest_of[w];  // a NaN stays
    float share[WARPS], total = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        share[w] = highest_of[w] == -INF_F32 ? 0.0f : exp_not_positive(highest_of[w] - top);
        total += mass_of[w] * share[w];
    }
    for (int i = threadIdx.x; i < HEAD_DIM; i += THREADS) {
        float value = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) value = fmaf(sums[w][i], share[w], value);
        store(out + query + i, value / total);
    }
}
