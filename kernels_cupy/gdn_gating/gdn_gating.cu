// The gates of Gated DeltaNet (Yang et al. 2024): beta = sigmoid(b), g = decay softplus(a + dt_bias) with decay = -exp(A_log).
#include "common.cuh"

#define SOFTPLUS_LINEAR 20.0f  // above it softplus(x) is x to float32

__device__ __forceinline__ float softplus(float x) {
    if (x > SOFTPLUS_LINEAR) return x;
    // ln(1 + t) as the sum rounds, put right by t / ((1 + t) - 1): the rounding of 1 + t cancels (Goldberg 1991, theorem 4)
    const float t = exp_clamped(x), sum = 1.0f + t;
    return sum == 1.0f ? t : log_positive(sum) * (t / (sum - 1.0f));
}

// grid: (heads / THREADS rounded up, rows). ba: rows of b (heads) then a; gates: rows of beta then g; decay, dt_bias: heads.
extern "C" __global__ void __launch_bounds__(THREADS)
gdn_gating(const ACT* __restrict__ ba, const float* __restrict__ decay, const float* __restrict__ dt_bias, float* __restrict__ gates,
           int heads) {
    const int head = blockIdx.x * THREADS + threadIdx.x;
    if (head >= heads) return;
    const u64 at = u64(blockIdx.y) * 2 * heads + head;
    gates[at] = sigmoid(to_float(ba[at]));
    gates[at + heads] = decay[head] * softplus(to_float(ba[at + heads]) + dt_bias[head]);
}
