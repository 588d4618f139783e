// silu(gate) * up, or gelu(gate) * up by its tanh form (Hendrycks and Gimpel 2016), from rows that hold gate then up.
#include "common.cuh"

// gate / 2 (1 + tanh(u)) is gate / (1 + exp(-2 u)), which keeps its precision where tanh is near -1.
__device__ __forceinline__ float gelu_tanh(float gate) {
    const float u = 0.797884561f * gate * (1.0f + 0.044715f * gate * gate);
    return gate / (1.0f + exp_clamped(-2.0f * u));
}

// grid: (width / THREADS rounded up, rows). gate_up: rows x 2 width; out: rows x width.
extern "C" __global__ void __launch_bounds__(THREADS) silu_mul(const ACT* __restrict__ gate_up, ACT* __restrict__ out, int width) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= width) return;
    const ACT* row = gate_up + u64(blockIdx.y) * 2 * width;
    store(out + u64(blockIdx.y) * width + i, silu(to_float(row[i])) * to_float(row[width + i]));
}

extern "C" __global__ void __launch_bounds__(THREADS) gelu_tanh_mul(const ACT* __restrict__ gate_up, ACT* __restrict__ out, int width) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= width) return;
    const ACT* row = gate_up + u64(blockIdx.y) * 2 * width;
    store(out + u64(blockIdx.y) * width + i, gelu_tanh(to_float(row[i])) * to_float(row[width + i]));
}
