// Causal attention over the paged cache: softmax(scale q k) v over positions 0 .. own, one arithmetic for decode and prefill.
//
// A warp takes one head of a row. Positions lie in fixed chunks of CHUNK from 0, of whole tiles of 16, the cache's blocks: within a chunk
// tiles are added by a running softmax (Milakov and Gimelshein 2018), and chunks are joined by rising position. Whether one warp walks all
// chunks (`attention`) or each has its own (`attention_chunks`, then `attention_join`: few rows, long contexts), they are the same
// operations in the same order: a row's bits depend on its position and cache alone. Neighbouring heads share a block, so those that share
// keys and values find them in its L1 cache. A row without a sequence (-1) is padding: its output is not written.
#include "common.cuh"

#define WARPS (THREADS / 32)
#define TILE 16
#define TILES_IN_CHUNK 8
#define CHUNK (TILE * TILES_IN_CHUNK)
#define PIECE 8  // values of 16 bytes
#define PIECES (HEAD_DIM / PIECE)
#define PAIRS (HEAD_DIM / 2)
#define PAIRS_PER_LANE ((PAIRS + 31) / 32)
#define AHEAD 4  // chunks that attention_join loads together

struct Pair {
    float x, y;
};
__device__ __forceinline__ Pair to_pair(u32 both) {
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

// A softmax so far: the highest score, and of the values and of 1 the sums weighted by exp(score - highest). A lane has the columns of
// pairs lane, lane + 32, ...
struct Sums {
    float highest, mass;
    Pair values[PAIRS_PER_LANE];
};
__device__ __forceinline__ void clear(Sums& sums) {
    sums.highest = -INF_F32;
    sums.mass = 0.0f;
#pragma unroll
    for (int i = 0; i < PAIRS_PER_LANE; i++) sums.values[i] = {0.0f, 0.0f};
}
__device__ __forceinline__ void join(Sums& sums, const Sums& next) {
    if (next.highest == -INF_F32) return;
    const float top = next.highest > sums.highest || next.highest != next.highest ? next.highest : sums.highest;
    const float kept = sums.highest == -INF_F32 ? 0.0f : exp_not_positive(sums.highest - top), share = exp_not_positive(next.highest - top);
    sums.mass = fmaf(next.mass, share, sums.mass * kept);
#pragma unroll
    for (int i = 0; i < PAIRS_PER_LANE; i++)
        sums.values[i] = {fmaf(next.values[i].x, share, sums.values[i].x * kept), fmaf(next.values[i].y, share, sums.values[i].y * kept)};
    sums.highest = top;
}

struct Row {
    const KV *keys, *values;  // of this head, in block 0
    u64 block_stride;
    const int* table;
    int start, length;  // positions start .. length - 1
    float soft_cap;

    __device__ int first_chunk() const { return start / CHUNK; }
    __device__ int chunks() const { return (length + CHUNK - 1) / CHUNK; }  // up to its end
};

// Query times the key of position lane / 2 of a tile; two lanes share one, in every other piece of 16 bytes.
__device__ __forceinline__ float score_of(const KV* tile, const float* query) {
    struct alignas(16) Piece {
        u32 pairs[PIECE / 2];
    };
    const int lane = threadIdx.x % 32;
    const Piece* key = reinterpret_cast<const Piece*>(tile + lane / 2 * HEAD_DIM);
    float even = 0.0f, odd = 0.0f;
#pragma unroll
    for (int piece = 0; piece < PIECES; piece += 2) {
        const int own = piece + lane % 2;
        const Piece held = key[own];
#pragma unroll
        for (int i = 0; i < PIECE / 2; i++) {
            const Pair pair = to_pair(held.pairs[i]);
            even = fmaf(query[PIECE * own + 2 * i], pair.x, even);
            odd = fmaf(query[PIECE * own + 2 * i + 1], pair.y, odd);
        }
    }
    const float sum = even + odd;
    return sum + __shfl_xor_sync(FULL_WARP, sum, 1);
}

// Adds the values of a tile's positions first .. held - 1; lane 2 j has the weight of position j. WHOLE: all 16 count.
template <bool WHOLE>
__device__ __forceinline__ void add_values(Sums& sums, const KV* tile, float weight, int first, int held) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < TILE; j++) {
        if (!WHOLE && (j < first || j >= held)) continue;
        const float share = __shfl_sync(FULL_WARP, weight, 2 * j);
        sums.mass += share;
#pragma unroll
        for (int i = 0; i < PAIRS_PER_LANE; i++) {
            const int pair = lane + 32 * i;
            const Pair value = pair < PAIRS ? to_pair(*reinterpret_cast<const u32*>(tile + j * HEAD_DIM + 2 * pair)) : Pair{0.0f, 0.0f};
            sums.values[i] = {fmaf(share, value.x, sums.values[i].x), fmaf(share, value.y, sums.values[i].y)};
        }
    }
}

// The softmax over a chunk's positions that count.
__device__ __forceinline__ Sums attend_chunk(const Row& row, int chunk, const float* query) {
    const int lane = threadIdx.x % 32, last = (chunk + 1) * TILES_IN_CHUNK;
    Sums sums;
    clear(sums);
    for (int tile = chunk * TILES_IN_CHUNK; tile < last && tile * TILE < row.length; tile++) {
        if ((tile + 1) * TILE <= row.start) continue;
        const u64 base = row.table[tile] * row.block_stride;
        const int held = row.length - tile * TILE < TILE ? row.length - tile * TILE : TILE;
        const int first = row.start - tile * TILE;  // of the tile's positions that count; 0 or less: all
        float score = score_of(row.keys + base, query);
        const bool counts = lane / 2 >= first && lane / 2 < held;
        if (row.soft_cap > 0.0f) score = soft_capped(score, row.soft_cap);
        if (!counts) score = -INF_F32;  // whatever lies there
        const float top = warp_highest(score > sums.highest || score != score ? score : sums.highest);
        const float weight = counts ? exp_not_positive(score - top) : 0.0f;
        const float kept = sums.highest == -INF_F32 ? 0.0f : exp_not_positive(sums.highest - top);
        sums.mass *= kept;
#pragma unroll
        for (int i = 0; i < PAIRS_PER_LANE; i++) sums.values[i] = {sums.values[i].x * kept, sums.values[i].y * kept};
        if (first <= 0 && held == TILE)
            add_values<true>(sums, row.values + base, weight, 0, TILE);
        else
            add_values<false>(sums, row.values + base, weight, first, held);
        sums.highest = top;
    }
    return sums;
}

__device__ __forceinline__ void store_result(ACT* out, const Sums& sums) {
#pragma unroll
    for (int i = 0; i < PAIRS_PER_LANE; i++) {
        const int pair = threadIdx.x % 32 + 32 * i;
        if (pair >= PAIRS) continue;
        store(out + 2 * pair, sums.values[i].x / sums.mass);
        store(out + 2 * pair + 1, sums.values[i].y / sums.mass);
    }
}

// A chunk's softmax as it is kept: the values, the highest score, the mass.
#define PARTIAL (HEAD_DIM + 2)
__device__ __forceinline__ void store_partial(float* to, const Sums& sums) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < PAIRS_PER_LANE; i++) {
        const int pair = lane + 32 * i;
        if (pair >= PAIRS) continue;
        to[2 * pair] = sums.values[i].x;
        to[2 * pair + 1] = sums.values[i].y;
    }
    if (lane == 0) to[HEAD_DIM] = sums.highest;
    if (lane == 1) to[HEAD_DIM + 1] = sums.mass;
}
__device__ __forceinline__ void load_partial(Sums& sums, const float* from) {
#pragma unroll
    for (int i = 0; i < PAIRS_PER_LANE; i++) {
        const int pair = threadIdx.x % 32 + 32 * i;
        sums.values[i] = pair < PAIRS ? Pair{from[2 * pair], from[2 * pair + 1]} : Pair{0.0f, 0.0f};
    }
    sums.highest = from[HEAD_DIM];
    sums.mass = from[HEAD_DIM + 1];
}

__device__ __forceinline__ Row row_of(const KV* keys, const KV* values, int position, const int* table, int head, int heads, int kv_heads,
                                      int window, float soft_cap) {
    const int length = position + 1, kv_head = head / (heads / kv_heads);
    const u64 offset = u64(kv_head) * TILE * HEAD_DIM;
    return {keys + offset, values + offset, u64(kv_heads) * TILE * HEAD_DIM, table, window > 0 && length > window ? length - window : 0,
            length,        soft_cap};
}

// The block's queries, times `scale`, where each lane of a warp can read all of its head's.
__device__ __forceinline__ void load_queries(float (&queries)[WARPS][HEAD_DIM], const ACT* q, float scale, int first_head, int heads) {
    for (int i = threadIdx.x; i < WARPS * HEAD_DIM; i += THREADS)
        if (first_head + i / HEAD_DIM < heads) queries[i / HEAD_DIM][i % HEAD_DIM] = to_float(q[u64(first_head) * HEAD_DIM + i]) * scale;
    __syncthreads();
}

// grid: (rows, heads / WARPS rounded up). q, out: rows x heads x HEAD_DIM. block_tables: sequences x table_width. keys, values: blocks x
// kv_heads x 16 x HEAD_DIM. window: only the last so many positions, own included; 0 is all. soft_cap: 0 is none.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
attention(const ACT* __restrict__ q, const KV* __restrict__ keys, const KV* __restrict__ values, const int* __restrict__ positions,
          const int* __restrict__ sequence_of_row, const int* __restrict__ block_tables, ACT* __restrict__ out, int heads, int kv_heads,
          int table_width, float scale, int window, float soft_cap) {
    __shared__ float queries[WARPS][HEAD_DIM];
    const int sequence = sequence_of_row[blockIdx.x], warp = threadIdx.x / 32, head = blockIdx.y * WARPS + warp;
    if (sequence < 0) return;
    load_queries(queries, q + u64(blockIdx.x) * heads * HEAD_DIM, scale, blockIdx.y * WARPS, heads);
    if (head >= heads) return;
    const int* table = block_tables + u64(sequence) * table_width;
    const Row row = row_of(keys, values, positions[blockIdx.x], table, head, heads, kv_heads, window, soft_cap);
    Sums sums;
    clear(sums);
    for (int chunk = row.first_chunk(); chunk < row.chunks(); chunk++) join(sums, attend_chunk(row, chunk, queries[warp]));
    store_result(out + (u64(blockIdx.x) * heads + head) * HEAD_DIM, sums);
}

// As `attention`, a chunk a block, up to the join. grid: (rows, heads / WARPS rounded up, chunks). partials: rows x heads x chunks x PARTIAL;
// those of chunks without a position that counts are not written.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
attention_chunks(const ACT* __restrict__ q, const KV* __restrict__ keys, const KV* __restrict__ values, const int* __restrict__ positions,
                 const int* __restrict__ sequence_of_row, const int* __restrict__ block_tables, float* __restrict__ partials, int heads,
                 int kv_heads, int table_width, float scale, int window, float soft_cap) {
    __shared__ float queries[WARPS][HEAD_DIM];
    const int sequence = sequence_of_row[blockIdx.x], warp = threadIdx.x / 32, head = blockIdx.y * WARPS + warp, chunk = blockIdx.z;
    if (sequence < 0) return;
    const int* table = block_tables + u64(sequence) * table_width;
    const Row row = row_of(keys, values, positions[blockIdx.x], table, head, heads, kv_heads, window, soft_cap);
    if (chunk < row.first_chunk() || chunk >= row.chunks()) return;  // the same for all the block's heads
    load_queries(queries, q + u64(blockIdx.x) * heads * HEAD_DIM, scale, blockIdx.y * WARPS, heads);
    if (head >= heads) return;
    const u64 place = (u64(blockIdx.x) * heads + head) * gridDim.z + chunk;
    store_partial(partials + place * PARTIAL, attend_chunk(row, chunk, queries[warp]));
}

// grid: (rows, heads / WARPS rounded up). partials: as attention_chunks leaves them.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
attention_join(const float* __restrict__ partials, const int* __restrict__ positions, const int* __restrict__ sequence_of_row,
               ACT* __restrict__ out, int heads, int chunks, int window) {
    const int head = blockIdx.y * WARPS + threadIdx.x / 32;
    if (sequence_of_row[blockIdx.x] < 0 || head >= heads) return;
    const Row row = row_of(nullptr, nullptr, positions[blockIdx.x], nullptr, head, heads, 1, window, 0.0f);
    const u64 place = u64(blockIdx.x) * heads + head;
    Sums sums;
    clear(sums);
    for (int first = row.first_chunk(); first < row.chunks(); first += AHEAD) {
        Sums next[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            clear(next[i]);
            if (first + i < row.chunks()) load_partial(next[i], partials + (place * chunks + first + i) * PARTIAL);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) join(sums, next[i]);
    }
    store_result(out + place * HEAD_DIM, sums);
}
