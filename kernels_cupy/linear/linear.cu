// out = x @ weight.T for weights as in the file (FORMAT). A warp computes COLUMNS outputs of ROWS rows; every variant and entry gives the
// same bits (products.cuh).
#include "products.cuh"

#define WARPS (THREADS / 32)

// grid: (outputs / (WARPS COLUMNS), rows / ROWS), both rounded up. x: rows x inputs; out: rows x outputs, `out_stride` elements apart.
template <int ROWS, int COLUMNS, class Out>
__device__ __forceinline__ void multiply(const ACT* x, const u8* weight, i64 row_bytes, Out* out, i64 out_stride, int rows, int inputs,
                                         int outputs) {
    const int row_start = blockIdx.y * ROWS, column_start = (blockIdx.x * WARPS + threadIdx.x / 32) * COLUMNS;
    if (column_start >= outputs) return;
    const ACT* from[ROWS];
    const u8* weights[COLUMNS];
    float total[ROWS][COLUMNS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) from[r] = x + u64(row_start + r < rows ? row_start + r : rows - 1) * inputs;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) weights[c] = weight + (column_start + c < outputs ? column_start + c : outputs - 1) * row_bytes;
    products<ROWS, COLUMNS, ROWS == 1 ? FORMAT::AHEAD : 1>(from, weights, inputs, total);
    if (threadIdx.x % 32) return;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
            if (row_start + r < rows && column_start + c < outputs)
                store(out + (row_start + r) * out_stride + column_start + c, total[r][c]);
}

#define LINEAR(name, ROWS, COLUMNS, Out)                                                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                                       \
        name(const ACT* __restrict__ x, const u8* __restrict__ weight, i64 row_bytes, Out* __restrict__ out, i64 out_stride,       \
             int rows, int inputs, int outputs) {                                                                                  \
        multiply<ROWS, COLUMNS, Out>(x, weight, row_bytes, out, out_stride, rows, inputs, outputs);                                \
    }

LINEAR(linear_rows1, 1, 4, ACT)
LINEAR(linear_rows4, 4, 2, ACT)
LINEAR(linear_rows8, 8, 2, ACT)
LINEAR(linear_rows1_f32, 1, 4, f32)  // the head's logits, whatever the activations
LINEAR(linear_rows4_f32, 4, 2, f32)
LINEAR(linear_rows8_f32, 8, 2, f32)
