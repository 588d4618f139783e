// Rows of a weight (FORMAT) at token ids, decoded: a warp a row.
#include "weight_formats.cuh"

// grid: (rows). table: row_bytes a token; out: rows x width. An id below 0 is padding: its row is not written.
extern "C" __global__ void __launch_bounds__(THREADS)
embed(const u8* __restrict__ table, i64 row_bytes, const int* __restrict__ ids, ACT* __restrict__ out, int width) {
    const int lane = threadIdx.x, id = ids[blockIdx.x];
    if (id < 0) return;
    for (int step = 0; 256 * step < width; step++) {
        const int at = 256 * step + FORMAT::first(lane);
        if (at >= width) break;
        float w[8];
        FORMAT::decode(table + id * row_bytes, step, lane, w);
        ACT* to = out + u64(blockIdx.x) * width + at;
#pragma unroll
        for (int i = 0; i < 8; i++) store(to + (i < 4 ? i : FORMAT::GAP + i - 4), w[i]);
    }
}
