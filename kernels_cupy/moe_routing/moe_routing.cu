// A mixture of experts (Shazeer et al. 2017) around its linears: which experts a row takes and at what weight, the pairs of rows and experts
// gathered by expert, and the sum of what the experts gave.
//
// A pair p is the expert of rank p % top_k of row p / top_k. Launches depend on the number of rows alone, so a graph can hold them.
#include "common.cuh"

#define WARPS (THREADS / 32)
#define EXPERTS_MOST 1024
#define PER_LANE (EXPERTS_MOST / 32)
#define TILE 8  // pairs of one expert that moe_linear takes together

// grid: (rows / WARPS rounded up): a warp a row. scores: rows x experts. ids, weights: rows x top_k, from the highest score down, the lowest
// expert first among equals; weights are a softmax over all experts or, to `normalise`, over the chosen ones. A row without a sequence (-1)
// is padding: its ids are -1. A NaN is above all, and makes all weights of its row NaN. top_k <= 32.
extern "C" __global__ void __launch_bounds__(THREADS)
moe_route(const ACT* __restrict__ scores, const int* __restrict__ sequence_of_row, int* __restrict__ ids, float* __restrict__ weights,
          int rows, int experts, int top_k, int normalise) {
    const int row = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const u64 at = u64(row) * top_k;
    if (sequence_of_row[row] < 0) {
        if (lane < top_k) ids[at + lane] = -1;
        return;
    }
    const ACT* own = scores + u64(row) * experts;
    u64 last = ~0ull;
    float highest = 0.0f, chosen_odds = 0.0f, sum = 0.0f;  // chosen_odds: of the expert whose rank is the lane
    for (int rank = 0; rank < top_k; rank++) {
        u64 best = 0;
        for (int expert = lane; expert < experts; expert += 32) {
            const u64 key = order_key(to_float(own[expert]), expert);
            if (key < last && key > best) best = key;  // keys are all different
        }
        last = warp_highest_key(best);
        if (rank == 0) highest = key_value(last);
        const float odds = exp_not_positive(key_value(last) - highest);
        sum += odds;
        if (lane == rank) {
            chosen_odds = odds;
            ids[at + rank] = int(key_id(last));
        }
    }
    if (!normalise) {
        sum = 0.0f;
        for (int expert = lane; expert < experts; expert += 32) sum += exp_not_positive(to_float(own[expert]) - highest);
        sum = warp_sum(sum);
    }
    if (lane < top_k) weights[at + lane] = chosen_odds / sum;
}

__device__ __forceinline__ void store_tile(int* tile, int expert, int first, int count) {
    tile[0] = expert;
    tile[1] = first;
    tile[2] = count;
}

// grid: (1). ids: pairs, -1 for padding. order: pairs, gathered by expert, in the threads' order of arrival within one: no sum depends on
// it. tiles: most_tiles x (expert, first, count): the pairs order[first .. first + count), at most TILE, are this expert's; -1: none.
extern "C" __global__ void __launch_bounds__(THREADS)
moe_group(const int* __restrict__ ids, int* __restrict__ order, int* __restrict__ tiles, int pairs, int experts, int most_tiles) {
    __shared__ int count[EXPERTS_MOST], start[EXPERTS_MOST], tile_start[EXPERTS_MOST], tiles_in_all;
    const int thread = threadIdx.x;
    for (int expert = thread; expert < experts; expert += THREADS) count[expert] = 0;
    __syncthreads();
    for (int pair = thread; pair < pairs; pair += THREADS)
        if (ids[pair] >= 0) atomicAdd(&count[ids[pair]], 1);
    __syncthreads();
    if (thread < 32) {
        int own = 0, own_tiles = 0;
        for (int i = 0; i < PER_LANE; i++) {
            const int expert = thread * PER_LANE + i;
            if (expert >= experts) break;
            start[expert] = own;
            tile_start[expert] = own_tiles;
            own += count[expert];
            own_tiles += (count[expert] + TILE - 1) / TILE;
        }
        int upto = own, tiles_upto = own_tiles;
        for (int step = 1; step < 32; step <<= 1) {
            const int other = __shfl_up_sync(FULL_WARP, upto, step), other_tiles = __shfl_up_sync(FULL_WARP, tiles_upto, step);
            if (thread >= step) {
                upto += other;
                tiles_upto += other_tiles;
            }
        }
        for (int i = 0; i < PER_LANE; i++) {
            const int expert = thread * PER_LANE + i;
            if (expert >= experts) break;
            start[expert] += upto - own;
            tile_start[expert] += tiles_upto - own_tiles;
        }
        if (thread == 31) tiles_in_all = tiles_upto;
    }
    __syncthreads();
    for (int expert = thread; expert < experts; expert += THREADS)
        for (int done = 0, tile = tile_start[expert]; done < count[expert]; done += TILE, tile++)
            store_tile(tiles + 3 * tile, expert, start[expert] + done, count[expert] - done < TILE ? count[expert] - done : TILE);
    for (int tile = tiles_in_all + thread; tile < most_tiles; tile += THREADS) store_tile(tiles + 3 * tile, -1, 0, 0);
    __syncthreads();  // from here on start[] is where an expert's next pair goes
    for (int pair = thread; pair < pairs; pair += THREADS)
        if (ids[pair] >= 0) order[atomicAdd(&start[ids[pair]], 1)] = pair;
}

// grid: (width / THREADS rounded up, rows). parts: pairs x width; out: rows x width, the sum of weight x part by rising rank. A row of
// padding is not written.
extern "C" __global__ void __launch_bounds__(THREADS)
moe_combine(const ACT* __restrict__ parts, const int* __restrict__ ids, const float* __restrict__ weights, ACT* __restrict__ out, int top_k,
            int width) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    const u64 row = blockIdx.y, first = row * top_k;
    if (i >= width || ids[first] < 0) return;
    float sum = weights[first] * to_float(parts[first * width + i]);
    for (int rank = 1; rank < top_k; rank++) sum += weights[first + rank] * to_float(parts[(first + rank) * width + i]);
    store(out + row * width + i, sum);
}
