// How ranks on several GPUs put rows together, in boards that each has in its own memory and all can write to (boards: their addresses).
//
// A board, in words of 4 bytes: a line of 16, of which the first is `turns`, how many gathers its rank has done, and the
// second a fault; a line for each rank,
// whose first word is what that rank's `turns` will be next; two regions of `region` floats, which gathers take turns at.
// Only its own rank changes and reads `turns`, so that a replayed graph goes on from it. Sums are none: all is copied.
#include "common.cuh"

#ifndef CUDA_ON_CPU  // the emulator brings its own three
__device__ __forceinline__ u32 load_acquire(const u32* word) {
    u32 value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}
__device__ __forceinline__ void store_release(u32* word, u32 value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
__device__ __forceinline__ void nap() { asm volatile("nanosleep.u32 64;"); }
#endif

enum Fault : u32 { kLate = 1, kLeft = 2 };
constexpr u32 kLookAtLeft = 256;  // rounds: it lies in the host's memory, which is far

__device__ __forceinline__ u32* words_of(u64 board) { return reinterpret_cast<u32*>(board); }
__device__ __forceinline__ u32* arrival_of(u64 board, int rank) { return words_of(board) + 16 * (1 + rank); }
__device__ __forceinline__ float* region_of(u64 board, int ranks, u32 turn, i64 region) {
    return reinterpret_cast<float*>(board) + 16 * (1 + ranks) + (turn & 1) * region;
}

// grid: (columns / THREADS rounded up, rows). x: rows of `columns`, `stride` apart; they go to column `first` of rows of `width`.
extern "C" __global__ void __launch_bounds__(THREADS)
push(const u64* boards, int rank, int ranks, i64 region, const float* x, i64 stride, int columns, int first, int width) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= columns) return;
    const u32 turn = *words_of(boards[rank]);
    const float value = x[blockIdx.y * stride + i];
    for (int to = 0; to < ranks; to++) region_of(boards[to], ranks, turn, region)[u64(blockIdx.y) * width + first + i] = value;
}

// grid: as of push. x: rows x width, of which those of an id that is not below 0 go to all.
extern "C" __global__ void __launch_bounds__(THREADS)
push_rows(const u64* boards, int rank, int ranks, i64 region, const float* x, const int* ids, int width) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= width || ids[blockIdx.y] < 0) return;
    const u32 turn = *words_of(boards[rank]);
    const u64 at = u64(blockIdx.y) * width + i;
    for (int to = 0; to < ranks; to++) region_of(boards[to], ranks, turn, region)[at] = x[at];
}

// grid: as of push. x: rows x columns; they go to column `first` of rows of `width` at the address `out`, of another rank.
extern "C" __global__ void __launch_bounds__(THREADS) place(const float* x, int columns, u64 out, int first, int width) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= columns) return;
    reinterpret_cast<float*>(out)[u64(blockIdx.y) * width + first + i] = x[u64(blockIdx.y) * columns + i];
}

// grid: (1). Says to all that this rank's rows are there, and waits for all others'. words: {whether the group was left, the fault}, in
// the host's memory. After a fault nothing waits any more.
extern "C" __global__ void __launch_bounds__(THREADS) meet(const u64* boards, int rank, int ranks, i64 rounds, u32* words) {
    if (threadIdx.x) return;
    u32* own = words_of(boards[rank]);
    const u32 turn = *own + 1;
    *own = turn;
    for (int to = 0; to < ranks; to++)
        if (to != rank) store_release(arrival_of(boards[to], rank), turn);
    u32 fault = own[1];
    for (int from = 0; from < ranks && !fault; from++) {
        if (from == rank) continue;
        for (i64 round = 0; int(load_acquire(arrival_of(boards[rank], from)) - turn) < 0; round++) {
            if (round >= rounds) fault = kLate;
            if (round % kLookAtLeft == kLookAtLeft - 1 && load_acquire(words)) fault = kLeft;
            if (fault) break;
            nap();
        }
    }
    if (!fault) return;
    own[1] = fault;
    store_release(words + 1, fault);
}

// grid: (count / THREADS rounded up). Copies the rows that lie in this rank's board since the last `meet`.
extern "C" __global__ void __launch_bounds__(THREADS)
collect(const u64* boards, int rank, int ranks, i64 region, float* out, i64 count) {
    const i64 i = i64(blockIdx.x) * THREADS + threadIdx.x;
    const u64 board = boards[rank];
    if (i < count) out[i] = region_of(board, ranks, *words_of(board) - 1, region)[i];
}

// grid: (count / THREADS rounded up). Ids as `rows` rows from id `first` on are counted; -1: not among them.
extern "C" __global__ void __launch_bounds__(THREADS) own_ids(const int* ids, int first, int rows, int* out, int count) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i < count) out[i] = ids[i] >= first && ids[i] - first < rows ? ids[i] - first : -1;
}
