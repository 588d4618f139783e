// Gated DeltaNet, token by token (Yang et al. 2024): S = e^g S; d = beta (v - S^T k); S += k d^T; o = S^T q, with q and k of length 1 and q
// scaled. The same update for prefill, decode and draft checks, so chunks do not change bits.
//
// A block is a tile of COLUMNS columns of one value head of one sequence. A column's KEY_DIM states lie in the registers of PARTS neighbouring
// lanes over all the sequence's new rows, 64 each: more would spill.
#include "common.cuh"

#define HELD 64
#define PARTS (KEY_DIM / HELD)
#define COLUMNS (THREADS / PARTS)
#define WARPS (THREADS / 32)
#define EPSILON 1e-6f  // under the root of the length

__device__ __forceinline__ float column_sum(float x) {
#pragma unroll
    for (int step = 1; step < PARTS; step <<= 1) x += __shfl_xor_sync(FULL_WARP, x, step);
    return x;
}

// grid: (VALUE_DIM / COLUMNS, sequences x value_heads). qkv: rows of key_heads queries and as many keys of KEY_DIM, then value_heads values
// of VALUE_DIM; gates: rows of beta (value_heads) then g; out: rows x value_heads x VALUE_DIM; state: slots x value_heads x KEY_DIM x
// VALUE_DIM. row_start, positions, slots: as in causal_conv. Value head h reads key head h % key_heads (tiled) or h / (value_heads /
// key_heads).
extern "C" __global__ void __launch_bounds__(THREADS)
gdn_recurrence(const ACT* __restrict__ qkv, const float* __restrict__ gates, float* __restrict__ state, const int* __restrict__ row_start,
               const int* __restrict__ positions, const int* __restrict__ slots, ACT* __restrict__ out, int key_heads, int value_heads,
               int tiled, float scale) {
    __shared__ float query[KEY_DIM], key[KEY_DIM], query_parts[WARPS], key_parts[WARPS];
    const int sequence = blockIdx.y / value_heads, head = blockIdx.y % value_heads, slot = slots[sequence];
    const int key_head = tiled ? head % key_heads : head / (value_heads / key_heads);
    const int column = blockIdx.x * COLUMNS + threadIdx.x / PARTS, part = threadIdx.x % PARTS;
    const int first = row_start[sequence], end = row_start[sequence + 1];
    if (slot < 0 || first == end) return;
    float* own = state + ((u64(slot) * value_heads + head) * KEY_DIM + part * HELD) * VALUE_DIM + column;
    const bool begins = positions[first] == 0;
    float s[HELD];
#pragma unroll
    for (int i = 0; i < HELD; i++) s[i] = begins ? 0.0f : own[i * VALUE_DIM];
    for (int row = first; row < end; row++) {
        const ACT* from = qkv + u64(row) * (2 * key_heads * KEY_DIM + value_heads * VALUE_DIM);
        const ACT* q = from + key_head * KEY_DIM;
        const ACT* k = q + key_heads * KEY_DIM;
        const float value = to_float(from[2 * key_heads * KEY_DIM + head * VALUE_DIM + column]);
        const float beta = gates[u64(row) * 2 * value_heads + head], g = gates[(u64(row) * 2 + 1) * value_heads + head];
        float query_squares = 0.0f, key_squares = 0.0f;
        for (int i = threadIdx.x; i < KEY_DIM; i += THREADS) {
            const float x = to_float(q[i]), y = to_float(k[i]);
            query[i] = x;
            key[i] = y;
            query_squares = fmaf(x, x, query_squares);
            key_squares = fmaf(y, y, key_squares);
        }
        query_squares = warp_sum(query_squares);
        key_squares = warp_sum(key_squares);
        if (threadIdx.x % 32 == 0) {
            query_parts[threadIdx.x / 32] = query_squares;
            key_parts[threadIdx.x / 32] = key_squares;
        }
        __syncthreads();
        query_squares = key_squares = 0.0f;
#pragma unroll
        for (int warp = 0; warp < WARPS; warp++) {
            query_squares += query_parts[warp];
            key_squares += key_parts[warp];
        }
        const float query_scale = scale / sqrtf(query_squares + EPSILON), key_scale = 1.0f / sqrtf(key_squares + EPSILON);
        const float decay = exp_clamped(g);
        float recalled = 0.0f;
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            s[i] *= decay;
            recalled = fmaf(s[i], key[part * HELD + i], recalled);
        }
        const float change = beta * (value - column_sum(recalled) * key_scale) * key_scale;
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            s[i] = fmaf(key[part * HELD + i], change, s[i]);
            sum = fmaf(s[i], query[part * HELD + i], sum);
        }
        sum = column_sum(sum);
        if (part == 0) store(out + (u64(row) * value_heads + head) * VALUE_DIM + column, sum * query_scale);
        __syncthreads();  // the next row's query and key take these ones' place
    }
#pragma unroll
    for (int i = 0; i < HELD; i++) own[i * VALUE_DIM] = s[i];
}
