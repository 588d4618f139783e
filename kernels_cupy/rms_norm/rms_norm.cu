// RMSNorm (Zhang and Sennrich 2019): x / sqrt(mean(x^2) + eps) * weight, a block a row: alone, of a sum with a residual, of each query and
// key head, or gated.
#include "common.cuh"

#define WARPS (THREADS / 32)

// sqrt(mean(x^2) + eps)
__device__ __forceinline__ float root_mean_square(const ACT* row, int width, float eps, float* parts) {
    float squares = 0.0f;
    for (int i = threadIdx.x; i < width; i += THREADS) {
        const float value = to_float(row[i]);
        squares = fmaf(value, value, squares);
    }
    return sqrtf(block_sum<WARPS>(squares, parts) / float(width) + eps);
}

// grid: (rows). x, out: rows x width; weight: width.
extern "C" __global__ void __launch_bounds__(THREADS)
rms_norm(const ACT* __restrict__ x, const float* __restrict__ weight, ACT* __restrict__ out, int width, float eps) {
    __shared__ float parts[WARPS];
    const u64 at = u64(blockIdx.x) * width;
    const float root = root_mean_square(x + at, width, eps, parts);
    for (int i = threadIdx.x; i < width; i += THREADS) store(out + at + i, to_float(x[at + i]) / root * weight[i]);
}

// As rms_norm of `sum` = x + residual, which is stored too (and may be x or residual): the same bits as adding first.
extern "C" __global__ void __launch_bounds__(THREADS)
add_rms_norm(const ACT* x, const ACT* residual, ACT* sum, const float* __restrict__ weight, ACT* __restrict__ out, int width, float eps) {
    __shared__ float parts[WARPS];
    const u64 at = u64(blockIdx.x) * width;
    for (int i = threadIdx.x; i < width; i += THREADS) store(sum + at + i, to_float(x[at + i]) + to_float(residual[at + i]));
    const float root = root_mean_square(sum + at, width, eps, parts);  // each thread reads what it wrote itself
    for (int i = threadIdx.x; i < width; i += THREADS) store(out + at + i, to_float(sum[at + i]) / root * weight[i]);
}

// grid: (rows, heads + 2 kv_heads). qkv, out: rows x (heads + 2 kv_heads) x width: queries and keys are normed by head, values are copied.
extern "C" __global__ void __launch_bounds__(THREADS)
norm_heads(const ACT* __restrict__ qkv, const float* __restrict__ q_weight, const float* __restrict__ k_weight, ACT* __restrict__ out,
           int heads, int kv_heads, int width, float eps) {
    __shared__ float parts[WARPS];
    const int head = blockIdx.y;
    const u64 at = (u64(blockIdx.x) * gridDim.y + head) * width;
    if (head >= heads + kv_heads) {
        for (int i = threadIdx.x; i < width; i += THREADS) out[at + i] = qkv[at + i];
        return;
    }
    const float* weight = head < heads ? q_weight : k_weight;
    const float root = root_mean_square(qkv + at, width, eps, parts);
    for (int i = threadIdx.x; i < width; i += THREADS) store(out + at + i, to_float(qkv[at + i]) / root * weight[i]);
}

// rms_norm(x) * silu(gate), by heads. grid: (rows x heads). x, gate, out: rows x heads x width; weight: width.
extern "C" __global__ void __launch_bounds__(THREADS)
gated_rms_norm(const ACT* __restrict__ x, const ACT* __restrict__ gate, const float* __restrict__ weight, ACT* __restrict__ out, int width,
               float eps) {
    __shared__ float parts[WARPS];
    const u64 at = u64(blockIdx.x) * width;
    const float root = root_mean_square(x + at, width, eps, parts);
    for (int i = threadIdx.x; i < width; i += THREADS)
        store(out + at + i, to_float(x[at + i]) / root * weight[i] * silu(to_float(gate[at + i])));
}
