// Draws a token a row: a function of the row, its rules and (seed, position, token id) alone. The definition is that of reference.py:
// min_p, then top_k, then top_p, then the highest logit / temperature + Gumbel noise; ties go to the lowest id.
//
// The filters need no sort. A token's key orders values and, among equals, ids, so keys are all different and a filter is a lowest key
// that is kept. top_k and top_p find it eight bits at a time, from histograms of counts or of weights. Weights are fixed point with
// WEIGHT_BITS fraction bits: integers sum to the same in any order, so atomics are exact here.
#include "common.cuh"

#define WARPS (THREADS / 32)
#define WEIGHT_BITS 44  // the launcher bounds the vocabulary to 2^19, so a row's weights sum to less than 2^64
#define BUCKETS 256
#define BUCKETS_PER_LANE (BUCKETS / 32)
#define BATCH 8  // logits that a thread loads together: one block has a row, and must keep enough of them under way

struct Row {
    const float* logits;
    int vocab;
    float temperature, maximum;  // maximum: of logit / temperature

    // visit(id, logit, whether there is such an id), in all threads as often.
    template <class Visit> __device__ __forceinline__ void each(Visit visit) const {
        for (int start = threadIdx.x; start - int(threadIdx.x) < vocab; start += BATCH * THREADS) {
            float batch[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; i++) batch[i] = start + i * THREADS < vocab ? logits[start + i * THREADS] : -INF_F32;
#pragma unroll
            for (int i = 0; i < BATCH; i++) visit(start + i * THREADS, batch[i], start + i * THREADS < vocab);
        }
    }
    __device__ u64 weight(u64 key) const { return u64(exp_not_positive(key_value(key) - maximum) * float(1ull << WEIGHT_BITS)); }
};

struct Selection {
    u64 histogram[BUCKETS];
    u64 rest;    // what is still to be gathered within the chosen bucket
    int bucket;  // -1: all the keys together hold less than was asked for
};

// Adds the masses of a warp's tokens that count, those of one bucket at once: high bits are much alike, and equal places are taken one by
// one. `ones`: each is 1.
__device__ void add_together(Selection& found, bool counts, int bucket, u64 mass, bool ones) {
    const int lane = threadIdx.x % 32;
    for (u32 left = __ballot_sync(FULL_WARP, counts); left;) {
        const int leader = __ffs(left) - 1, chosen = __shfl_sync(FULL_WARP, bucket, leader);
        const bool own = counts && bucket == chosen;
        const u32 members = __ballot_sync(FULL_WARP, own);
        u64 sum = own ? mass : 0;
        if (ones) {
            sum = __popc(members);
        } else {
#pragma unroll
            for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(FULL_WARP, sum, step);
        }
        if (lane == leader) atomicAdd(&found.histogram[chosen], sum);
        left &= ~members;
    }
}

// Warp 0: the bucket, from the highest down, in which the running mass reaches `target`. A share of 0 or more (first round) makes the
// target of the total.
__device__ void choose_bucket(Selection& found, u64 target, float share) {
    const int lane = threadIdx.x;
    u64 own = 0;
    for (int i = 0; i < BUCKETS_PER_LANE; i++) own += found.histogram[BUCKETS - 1 - lane * BUCKETS_PER_LANE - i];
    u64 upto = own;
    for (int step = 1; step < 32; step <<= 1) {
        const u64 other = __shfl_up_sync(FULL_WARP, upto, step);
        if (lane >= step) upto += other;
    }
    const u64 total = __shfl_sync(FULL_WARP, upto, 31);
    if (share >= 0.0f) {
        target = u64(ceil(double(share) * double(total)));
        target = target < 1 ? 1 : target;
    }
    if (lane == 0 && total < target) found.bucket = -1;
    u64 before = upto - own;
    if (total < target || target <= before || target > upto) return;
    int bucket = BUCKETS - 1 - lane * BUCKETS_PER_LANE;
    while (before + found.histogram[bucket] < target) before += found.histogram[bucket--];
    found.bucket = bucket;
    found.rest = target - before;
}

// The highest key such that the keys from it up, all at least `cut`, hold the target: `count` tokens, or `share` of the weight where
// that is 0 or more. `cut` itself where they hold less.
__device__ u64 raise_cut(const Row& row, u64 cut, u64 count, float share, Selection& found) {
    u64 prefix = 0, target = count;
    for (int shift = 56; shift >= 0; shift -= 8) {
        if (threadIdx.x < BUCKETS) found.histogram[threadIdx.x] = 0;
        __syncthreads();
        row.each([&](int id, float logit, bool exists) {
            const u64 key = order_key(logit / row.temperature, id);
            const bool counts = exists && key >= cut && (shift == 56 || key >> (shift + 8) == prefix);
            const int bucket = int((key >> shift) % BUCKETS);
            const u64 mass = counts && share >= 0.0f ? row.weight(key) : 1ull;
            if (shift == 56)
                add_together(found, counts, bucket, mass, share < 0.0f);
            else if (counts)
                atomicAdd(&found.histogram[bucket], mass);
        });
        __syncthreads();
        if (threadIdx.x < 32) choose_bucket(found, target, shift == 56 ? share : -1.0f);
        __syncthreads();
        if (found.bucket < 0) return cut;
        prefix = prefix << 8 | u64(found.bucket);
        target = found.rest;
    }
    return prefix;
}

// A 32-bit finaliser with low bias (multiply-xorshift, constants by C. Wellons' search).
__device__ __forceinline__ u32 mix(u32 x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

// Gumbel noise of a token. A uniform that rounds to 1 gives infinity, which wins.
__device__ __forceinline__ float noise(u32 key, u32 id) {
    const u32 hashed = mix((id * 0x9e3779b1u) ^ key);
    const float uniform = float(hashed >> 8) * (1.0f / 16777216.0f) + (1.0f / 33554432.0f);
    return -log_positive(-log_positive(uniform));
}

// grid: (rows). log_min_p: -infinity is off; top_k 0 and top_p 1 are off; temperature 0 is greedy.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
keyed_sample(const float* __restrict__ logits, i64 row_stride, int vocab, const float* __restrict__ temperature,
             const int* __restrict__ top_k, const float* __restrict__ top_p, const float* __restrict__ log_min_p,
             const u64* __restrict__ seed, const int* __restrict__ position, int* __restrict__ ids, int* __restrict__ errors) {
    __shared__ u64 first[WARPS], last[WARPS];
    __shared__ Selection found;
    const int index = blockIdx.x;
    Row row = {logits + index * row_stride, vocab, temperature[index], 0.0f};

    u64 best = 0;
    row.each([&](int id, float logit, bool exists) {
        const u64 key = order_key(logit, id);
        if (exists && key > best) best = key;
    });
    best = block_highest<WARPS>(best, first);
    const int error = row_error(key_value(best));
    row.maximum = key_value(best) / row.temperature;
    const bool greedy = row.temperature == 0.0f || row.maximum - row.maximum != 0.0f;  // so cold that it overflows: the limit is greedy
    if (error || greedy) {
        if (threadIdx.x == 0) ids[index] = error ? -1 : int(key_id(best));
        if (threadIdx.x == 0) errors[index] = error;
        return;
    }

    u64 cut = order_key(row.maximum + log_min_p[index], 0xffffffffu);
    if (top_k[index] > 0) cut = raise_cut(row, cut, top_k[index], -1.0f, found);
    if (top_p[index] < 1.0f) cut = raise_cut(row, cut, 0, top_p[index], found);

    const u32 stream = mix(u32(seed[index]) ^ mix(u32(seed[index] >> 32) ^ mix(u32(position[index]))));
    best = 0;
    row.each([&](int id, float logit, bool exists) {
        const float scaled = logit / row.temperature;
        if (!exists || order_key(scaled, id) < cut || scaled == -INF_F32) return;
        const u64 key = order_key(scaled + noise(stream, id), id);
        best = key > best ? key : best;
    });
    best = block_highest<WARPS>(best, last);
    if (threadIdx.x == 0) ids[index] = int(key_id(best));
    if (threadIdx.x == 0) errors[index] = 0;
}
