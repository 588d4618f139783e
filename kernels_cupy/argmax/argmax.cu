// Batched argmax over rows of float32 logits: the highest value, the lowest id among equals, and an error word a row (row_error).
// Two launches: a partial key for each chunk of ids, then the highest of a row's.
#include "common.cuh"

#define WARPS (THREADS / 32)

// grid: (chunks, rows). Rows lie row_stride floats apart; what lies past `vocab` is not read. partial: rows x chunks.
extern "C" __global__ void __launch_bounds__(THREADS)
argmax_partial(const float* __restrict__ logits, i64 row_stride, int vocab, int chunk, u64* __restrict__ partial) {
    __shared__ u64 parts[WARPS];
    const float* row = logits + blockIdx.y * row_stride;
    const int start = blockIdx.x * chunk, end = vocab - start < chunk ? vocab : start + chunk;
    u64 best = 0;
    for (int id = start + threadIdx.x; id < end; id += THREADS) {
        const u64 key = order_key(row[id], id);
        best = key > best ? key : best;
    }
    best = block_highest<WARPS>(best, parts);
    if (threadIdx.x == 0) partial[u64(blockIdx.y) * gridDim.x + blockIdx.x] = best;
}

// grid: (rows). ids: -1 where the row is not sound.
extern "C" __global__ void __launch_bounds__(THREADS)
argmax_finish(const u64* __restrict__ partial, int chunks, int* __restrict__ ids, float* __restrict__ values, int* __restrict__ errors) {
    __shared__ u64 parts[WARPS];
    u64 best = 0;
    for (int chunk = threadIdx.x; chunk < chunks; chunk += THREADS) {
        const u64 key = partial[u64(blockIdx.x) * chunks + chunk];
        best = key > best ? key : best;
    }
    best = block_highest<WARPS>(best, parts);
    if (threadIdx.x == 0) {
        const int error = row_error(key_value(best));
        ids[blockIdx.x] = error ? -1 : int(key_id(best));
        values[blockIdx.x] = key_value(best);
        errors[blockIdx.x] = error;
    }
}
