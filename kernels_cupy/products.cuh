// Products of rows with weights as in the file (FORMAT), summed over K in one order whatever is computed beside them.
//
// Each lane of a warp sums its own weights' products in rising k, and a butterfly adds the 32 lanes. How many rows and outputs a warp
// takes, and how many steps are loaded ahead, changes only what is loaded together, never what is added to what.
#pragma once
#include "weight_formats.cuh"

// A step of 256 weights; k is the lane's first.
template <int ROWS, int COLUMNS>
__device__ __forceinline__ void add_step(const ACT* const (&rows)[ROWS], const u8* const (&weights)[COLUMNS], int step, int k,
                                         float (&total)[ROWS][COLUMNS]) {
    float w[COLUMNS][8];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) FORMAT::decode(weights[c], step, threadIdx.x % 32, w[c]);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float x[2][4];
        load_four(rows[r] + k, x[0]);
        load_four(rows[r] + k + FORMAT::GAP, x[1]);
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) total[r][c] = fmaf(x[i / 4][i % 4], w[c][i], total[r][c]);
    }
}

// total[r][c], in every lane: row r (`inputs` activations, at a multiple of 16 bytes) times weight row c. AHEAD: steps without a branch in
// between, so that their loads are under way together.
template <int ROWS, int COLUMNS, int AHEAD>
__device__ __forceinline__ void products(const ACT* const (&rows)[ROWS], const u8* const (&weights)[COLUMNS], int inputs,
                                         float (&total)[ROWS][COLUMNS]) {
    const int first = FORMAT::first(threadIdx.x % 32), whole = inputs / 256;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) total[r][c] = 0.0f;
#pragma unroll AHEAD
    for (int step = 0; step < whole; step++) add_step<ROWS, COLUMNS>(rows, weights, step, 256 * step + first, total);
    if (256 * whole + first < inputs) add_step<ROWS, COLUMNS>(rows, weights, whole, 256 * whole + first, total);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) total[r][c] = warp_sum(total[r][c]);
}
