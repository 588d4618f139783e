// out = x @ weight.T for weights as in the file (FORMAT), summed over K in one order whatever the number of rows.
//
// A warp computes COLUMNS outputs of ROWS rows. Each of its lanes sums its own weights' products in rising k, and a butterfly adds the 32
// lanes. How many rows and outputs a warp takes changes only what is loaded together: every variant and entry gives the same bits.
#include "weight_formats.cuh"

#define WARPS (THREADS / 32)

// grid: (outputs / (WARPS COLUMNS), rows / ROWS), both rounded up. x: rows x inputs; out: rows x outputs, `out_stride` elements apart.
template <int ROWS, int COLUMNS, class Out>
__device__ __forceinline__ void multiply(const ACT* x, const u8* weight, i64 row_bytes, Out* out, i64 out_stride, int rows, int inputs,
                                         int outputs) {
    const int lane = threadIdx.x % 32;
    const int row_start = blockIdx.y * ROWS, column_start = (blockIdx.x * WARPS + threadIdx.x / 32) * COLUMNS;
    if (column_start >= outputs) return;
    float sum[ROWS][COLUMNS];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) sum[r][c] = 0.0f;
    for (int step = 0; 256 * step < inputs; step++) {
        const int k = 256 * step + FORMAT::first(lane);
        if (k >= inputs) break;
        float w[COLUMNS][8];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const int column = column_start + c < outputs ? column_start + c : outputs - 1;
            FORMAT::decode(weight + column * row_bytes, step, lane, w[c]);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int row = row_start + r < rows ? row_start + r : rows - 1;
            const ACT* at = x + u64(row) * inputs + k;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float value = to_float(at[i < 4 ? i : FORMAT::GAP + i - 4]);
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) sum[r][c] = fmaf(value, w[c][i], sum[r][c]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const float total = warp_sum(sum[r][c]);
            if (lane == 0 && row_start + r < rows && column_start + c < outputs)
                store(out + (row_start + r) * out_stride + column_start + c, total);
        }
}

#define LINEAR(name, ROWS, COLUMNS, Out)                                                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                                       \
        name(const ACT* __restrict__ x, const u8* __restrict__ weight, i64 row_bytes, Out* __restrict__ out, i64 out_stride,       \
             int rows, int inputs, int outputs) {                                                                                  \
        multiply<ROWS, COLUMNS, Out>(x, weight, row_bytes, out, out_stride, rows, inputs, outputs);                                \
    }

LINEAR(linear_rows1, 1, 2, ACT)
LINEAR(linear_rows8, 8, 2, ACT)
LINEAR(linear_rows1_f32, 1, 2, f32)  // the head's logits, whatever the activations
LINEAR(linear_rows8_f32, 8, 2, f32)
