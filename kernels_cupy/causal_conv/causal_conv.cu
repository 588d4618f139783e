// Depthwise causal convolution of TAPS taps with SiLU, a sequence's new rows in order: out[t] = silu(sum_j weight[j] x[t - TAPS + 1 + j]).
// What came before a sequence's first new row is in its state (zeros where that row is position 0), which is left as the last TAPS - 1
// inputs. A thread is one channel of one sequence and takes one row after another, so chunks do not change bits.
#include "common.cuh"

#define HELD (TAPS - 1)

// grid: (channels / THREADS rounded up, sequences). x, out: rows x channels; weight: TAPS x channels and state: slots x HELD x channels, the
// oldest input first. row_start: sequences + 1. slots: a sequence's place in `state`; -1 is padding.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
causal_conv(const ACT* __restrict__ x, const float* __restrict__ weight, float* __restrict__ state, const int* __restrict__ row_start,
            const int* __restrict__ positions, const int* __restrict__ slots, ACT* __restrict__ out, int channels) {
    const int channel = blockIdx.x * THREADS + threadIdx.x, slot = slots[blockIdx.y];
    if (channel >= channels || slot < 0) return;
    const int first = row_start[blockIdx.y], end = row_start[blockIdx.y + 1];
    if (first == end) return;
    float* held = state + u64(slot) * HELD * channels + channel;
    float taps[TAPS], window[TAPS];
#pragma unroll
    for (int j = 0; j < TAPS; j++) taps[j] = weight[j * channels + channel];
#pragma unroll
    for (int j = 0; j < HELD; j++) window[j] = positions[first] == 0 ? 0.0f : held[j * channels];
    for (int row = first; row < end; row++) {
        const u64 at = u64(row) * channels + channel;
        window[HELD] = to_float(x[at]);
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < TAPS; j++) sum = fmaf(taps[j], window[j], sum);
        store(out + at, silu(sum));
#pragma unroll
        for (int j = 0; j < HELD; j++) window[j] = window[j + 1];
    }
#pragma unroll
    for (int j = 0; j < HELD; j++) held[j * channels] = window[j];
}
