// The linears of a mixture's experts: each pair's row times its expert's weight (FORMAT), a tile of pairs of one expert at a time. A pair's
// bits are those that linear.cu gives the row alone (products.cuh).
#include "products.cuh"

#define WARPS (THREADS / 32)
#define TILE 8
#define COLUMNS 2  // outputs a warp

template <int ROWS>
__device__ __forceinline__ void multiply(const ACT* x, const u8* weight, i64 row_bytes, const int* pairs, int held, ACT* out, i64 out_stride,
                                         int sharing, int column_start, int inputs, int outputs) {
    const ACT* from[ROWS];
    const u8* weights[COLUMNS];
    float total[ROWS][COLUMNS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) from[r] = x + u64(pairs[r < held ? r : held - 1] / sharing) * inputs;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) weights[c] = weight + (column_start + c < outputs ? column_start + c : outputs - 1) * row_bytes;
    products<ROWS, COLUMNS, ROWS == 1 ? FORMAT::AHEAD : 1>(from, weights, inputs, total);
    if (threadIdx.x % 32) return;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
            if (r < held && column_start + c < outputs) store(out + pairs[r] * out_stride + column_start + c, total[r][c]);
}

// grid: (outputs / (WARPS COLUMNS) rounded up, tiles, parts). weights: parts x experts, addresses of outputs x row_bytes each; 0 where that
// one is of another format: nothing is written then. tiles, order: as moe_group leaves them. x: a row for `sharing` pairs; out: pairs x
// (parts outputs), part after part.
extern "C" __global__ void __launch_bounds__(THREADS, 3)
moe_linear(const ACT* __restrict__ x, const u64* __restrict__ weights, i64 row_bytes, const int* __restrict__ tiles,
           const int* __restrict__ order, ACT* __restrict__ out, int experts, int sharing, int inputs, int outputs) {
    const int expert = tiles[3 * blockIdx.y], first = tiles[3 * blockIdx.y + 1], count = tiles[3 * blockIdx.y + 2];
    const int column_start = (blockIdx.x * WARPS + threadIdx.x / 32) * COLUMNS;
    if (expert < 0 || column_start >= outputs) return;
    const u8* weight = reinterpret_cast<const u8*>(weights[blockIdx.z * experts + expert]);
    if (!weight) return;
    const i64 out_stride = i64(gridDim.z) * outputs;
    const int* pairs = order + first;
    out += blockIdx.z * outputs;
    if (count == 1)
        multiply<1>(x, weight, row_bytes, pairs, 1, out, out_stride, sharing, column_start, inputs, outputs);
    else
        multiply<TILE>(x, weight, row_bytes, pairs, count, out, out_stride, sharing, column_start, inputs, outputs);
}
