// What is computed element by element: rows x width, an element a thread. `out` may be x.
#include "common.cuh"

// grid: (width / THREADS rounded up, rows). VALUE is of the element `at`, in column i.
#define ELEMENTWISE(name, PARAMETER, VALUE)                                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS) name(const ACT* x, PARAMETER, ACT* out, int width) {  \
        const int i = blockIdx.x * THREADS + threadIdx.x;                                                       \
        if (i >= width) return;                                                                                 \
        const u64 at = u64(blockIdx.y) * width + i;                                                             \
        store(out + at, VALUE);                                                                                 \
    }

ELEMENTWISE(add, const ACT* y, to_float(x[at]) + to_float(y[at]))
ELEMENTWISE(add_bias, const float* bias, to_float(x[at]) + bias[i])
ELEMENTWISE(scale, float factor, to_float(x[at]) * factor)
ELEMENTWISE(soft_cap, float cap, soft_capped(to_float(x[at]), cap))

// gate: rows x gate_width, which is width or 1.
extern "C" __global__ void __launch_bounds__(THREADS)
sigmoid_mul(const ACT* x, const ACT* gate, int gate_width, ACT* out, int width) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= width) return;
    const u64 row = blockIdx.y, at = row * width + i;
    store(out + at, to_float(x[at]) * sigmoid(to_float(gate[row * gate_width + (gate_width == 1 ? 0 : i)])));
}
