// First include of every kernel: types, conversions, sums over a warp or block, exp and log.
// It compiles with NVRTC alone, without any CUDA header, and with g++ behind the CPU emulator of tests/support/cuda_on_cpu.
//
// Numeric contract (README.md): -fmad=false, fmaf where a fused multiply-add is meant, IEEE division and square root, exp and log
// in one fixed order of operations. So a kernel gives the same bits on every GPU, and on the emulator.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define FULL_WARP 0xffffffffu
#define INF_F32 __int_as_float(0x7f800000)

// ---- activation types: ACT (and KV) name one of these in a variant's defines

typedef float f32;
struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};

#ifndef CUDA_ON_CPU  // the emulator brings its own two conversions
__device__ __forceinline__ float half_bits_to_float(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
__device__ __forceinline__ u16 float_to_half_bits(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#endif

// Round to nearest, ties to even; a NaN stays one.
__device__ __forceinline__ u16 float_to_bf16_bits(float value) {
    const u32 bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return u16((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

__device__ __forceinline__ float to_float(f32 x) { return x; }
__device__ __forceinline__ float to_float(f16 x) { return half_bits_to_float(x.bits); }
__device__ __forceinline__ float to_float(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }

__device__ __forceinline__ void store(f32* place, float value) { *place = value; }
__device__ __forceinline__ void store(f16* place, float value) { place->bits = float_to_half_bits(value); }
__device__ __forceinline__ void store(bf16* place, float value) { place->bits = float_to_bf16_bits(value); }

// Four neighbours in one load: `place` is a multiple of their size.
template <class T> __device__ __forceinline__ void load_four(const T* place, float (&values)[4]) {
    struct alignas(4 * sizeof(T)) Four {
        T values[4];
    };
    const Four four = *reinterpret_cast<const Four*>(place);
#pragma unroll
    for (int i = 0; i < 4; i++) values[i] = to_float(four.values[i]);
}

// ---- sums in one order

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int step = 16; step; step >>= 1) x += __shfl_xor_sync(FULL_WARP, x, step);
    return x;
}

// Over the block's WARPS whole warps: each by a butterfly, then warp 0, 1, 2 ... `parts` (WARPS) is written: a caller that sums twice
// must put a barrier in between.
template <int WARPS> __device__ __forceinline__ float block_sum(float x, float* parts) {
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = parts[0];
#pragma unroll
    for (int warp = 1; warp < WARPS; warp++) sum += parts[warp];
    return sum;
}

// ---- exp and log: the polynomials of Cephes' expf and logf (S. Moshier), about 1 and 2 ulp

#define EXP_LOW -87.0f
#define EXP_HIGH 88.0f

// e^x for x clamped to [-87, 88]; NaN stays NaN.
__device__ __forceinline__ float exp_clamped(float x) {
    x = x < EXP_LOW ? EXP_LOW : x;
    x = x > EXP_HIGH ? EXP_HIGH : x;
    const float n = rintf(x * 1.44269504f);
    float r = fmaf(n, -0.693359375f, x);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = fmaf(p, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    p = fmaf(p, r * r, r + 1.0f);
    return x == x ? p * __int_as_float((int(n) + 127) << 23) : x;
}

// e^x for x <= 0: exactly 0 below -87 and exactly 1 at 0.
__device__ __forceinline__ float exp_not_positive(float x) { return x < EXP_LOW ? 0.0f : exp_clamped(x); }

// ln x for normal x > 0, and -infinity at 0.
__device__ __forceinline__ float log_positive(float x) {
    const int bits = __float_as_int(x);
    float exponent = float((bits >> 23) - 126);
    float m = __int_as_float((bits & 0x7fffff) + 0x3f000000);  // [0.5, 1)
    if (m < 0.707106781f) {
        exponent -= 1.0f;
        m += m;
    }
    m -= 1.0f;
    const float square = m * m;
    float p = 7.0376836292e-2f;
    p = fmaf(p, m, -1.1514610310e-1f);
    p = fmaf(p, m, 1.1676998740e-1f);
    p = fmaf(p, m, -1.2420140846e-1f);
    p = fmaf(p, m, 1.4249322787e-1f);
    p = fmaf(p, m, -1.6668057665e-1f);
    p = fmaf(p, m, 2.0000714765e-1f);
    p = fmaf(p, m, -2.4999993993e-1f);
    p = fmaf(p, m, 3.3333331174e-1f);
    p = (p * m) * square;
    p = fmaf(exponent, -2.12194440e-4f, p);
    p = fmaf(square, -0.5f, p);
    return x == 0.0f ? -INF_F32 : fmaf(exponent, 0.693359375f, m + p);
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + exp_clamped(-x)); }
__device__ __forceinline__ float silu(float x) { return x / (1.0f + exp_clamped(-x)); }

// Taylor's series near 0, where the quotient would cancel.
__device__ __forceinline__ float tanh_f32(float x) {
    const float size = fabsf(x), square = x * x;
    if (size < 0.3f) {
        float p = 62.0f / 2835.0f;
        p = fmaf(p, square, -17.0f / 315.0f);
        p = fmaf(p, square, 2.0f / 15.0f);
        p = fmaf(p, square, -1.0f / 3.0f);
        return fmaf(p * square, x, x);
    }
    const float t = exp_clamped(-2.0f * size), value = (1.0f - t) / (1.0f + t);
    return x < 0.0f ? -value : value;
}
// cap * tanh(x / cap) (Gemma 2, 2024); what is not finite becomes NaN.
__device__ __forceinline__ float soft_capped(float x, float cap) { return fmaf(0.0f, x, cap * tanh_f32(x / cap)); }

// ---- the order of tokens: a higher value first, then a lower id. A NaN is above all, so that it shows itself.

__device__ __forceinline__ u64 order_key(float value, u32 id) {
    const u32 bits = value == value ? __float_as_uint(value + 0.0f) : 0x7fffffffu;  // -0 counts as 0
    return (u64(bits & 0x80000000u ? ~bits : bits | 0x80000000u) << 32) | (0xffffffffu - id);
}
__device__ __forceinline__ float key_value(u64 key) {
    const u32 bits = u32(key >> 32);
    return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}
__device__ __forceinline__ u32 key_id(u64 key) { return 0xffffffffu - u32(key); }

// What is wrong with a row whose highest value is this one: 0 sound, 1 a NaN, 2 a positive infinity, 4 nothing above -infinity.
__device__ __forceinline__ int row_error(float highest) {
    if (highest != highest) return 1;
    if (highest == INF_F32) return 2;
    return highest == -INF_F32 ? 4 : 0;
}

// The highest key of a warp, in every lane.
__device__ __forceinline__ u64 warp_highest_key(u64 key) {
#pragma unroll
    for (int step = 16; step; step >>= 1) {
        const u64 other = __shfl_xor_sync(FULL_WARP, key, step);
        key = other > key ? other : key;
    }
    return key;
}

// The highest key of the block's WARPS warps, in every thread. `parts` (WARPS) as in block_sum.
template <int WARPS> __device__ __forceinline__ u64 block_highest(u64 key, u64* parts) {
    key = warp_highest_key(key);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = key;
    __syncthreads();
    key = parts[0];
#pragma unroll
    for (int warp = 1; warp < WARPS; warp++) key = parts[warp] > key ? parts[warp] : key;
    return key;
}
