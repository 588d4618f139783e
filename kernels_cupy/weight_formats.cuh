// Weights as they lie in a model file: FORMAT in a variant's defines names one of these.
//
// A warp walks a row of K weights in steps of 256, and each lane decodes eight of a step: four from `first(lane)` and four from
// first(lane) + GAP, counted from the step's start. In the formats with nibbles those are the low and the high nibbles of four bytes.
// AHEAD: steps of one row that registers can hold under way. K is a whole number of BLOCK weights, so a lane's eight are there or past the
// row's end together. Blocks lie at even addresses, those of Q4_1 and Q4_K at multiples of 4, and plain weights at multiples of 16.
#pragma once
#include "common.cuh"

__device__ __forceinline__ u32 load_u16(const u8* p) { return *reinterpret_cast<const u16*>(p); }
__device__ __forceinline__ u32 load_bytes(const u8* p) { return load_u16(p) | load_u16(p + 2) << 16; }  // four, the first lowest
__device__ __forceinline__ u32 load_word(const u8* p) { return *reinterpret_cast<const u32*>(p); }  // at a multiple of 4
__device__ __forceinline__ float load_half(const u8* p) { return half_bits_to_float(u16(load_u16(p))); }

// float(byte i of `bytes`) - LESS, exact. A conversion costs a GPU as much as eight additions: a byte in the low bits of 2^23 is that much
// more than 2^23, so that one subtraction makes a number of it.
template <int LESS = 0> __device__ __forceinline__ float byte_of(u32 bytes, int i) {
    return __uint_as_float(__byte_perm(bytes, 0x4b000000u, 0x7440 + i)) - float((1 << 23) + LESS);
}
__device__ __forceinline__ float small_number(u32 x) { return __uint_as_float(0x4b000000u | x) - float(1 << 23); }  // x < 2^23

// Four lanes share a block of 32.
struct BlocksOf32 {
    static const int BLOCK = 32, GAP = 16, AHEAD = 4;
    __device__ static int first(int lane) { return 32 * (lane / 4) + 4 * (lane % 4); }
    __device__ static const u8* block(const u8* row, int step, int lane, int bytes) { return row + u64(8 * step + lane / 4) * bytes; }
};

template <class T> struct Plain : BlocksOf32 {
    static const int AHEAD = 2;
    __device__ static void decode(const u8* row, int step, int lane, float (&w)[8]) {
        const T* at = reinterpret_cast<const T*>(row) + 256 * step + first(lane);
        float low[4], high[4];
        load_four(at, low);
        load_four(at + GAP, high);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[i] = low[i];
            w[4 + i] = high[i];
        }
    }
};
typedef Plain<f32> F32;
typedef Plain<f16> F16;
typedef Plain<bf16> BF16;

// d (half), 16 bytes of nibbles: d (q - 8).
struct Q4_0 : BlocksOf32 {
    __device__ static void decode(const u8* row, int step, int lane, float (&w)[8]) {
        const u8* at = block(row, step, lane, 18);
        const float scale = load_half(at);
        const u32 bytes = load_bytes(at + 2 + 4 * (lane % 4));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[i] = scale * byte_of<8>(bytes & 0x0f0f0f0fu, i);
            w[4 + i] = scale * byte_of<8>(bytes >> 4 & 0x0f0f0f0fu, i);
        }
    }
};

// d, m (halves), 16 bytes of nibbles: d q + m.
struct Q4_1 : BlocksOf32 {
    __device__ static void decode(const u8* row, int step, int lane, float (&w)[8]) {
        const u8* at = block(row, step, lane, 20);
        const float scale = load_half(at), least = load_half(at + 2);
        const u32 bytes = load_word(at + 4 + 4 * (lane % 4));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[i] = scale * byte_of(bytes & 0x0f0f0f0fu, i) + least;
            w[4 + i] = scale * byte_of(bytes >> 4 & 0x0f0f0f0fu, i) + least;
        }
    }
};

// d (half), 32 signed bytes: d q.
struct Q8_0 : BlocksOf32 {
    __device__ static void decode(const u8* row, int step, int lane, float (&w)[8]) {
        const u8* at = block(row, step, lane, 34);
        const float scale = load_half(at);
        const u8* own = at + 2 + 4 * (lane % 4);
        const u32 low = load_bytes(own) ^ 0x80808080u, high = load_bytes(own + GAP) ^ 0x80808080u;  // 128 more, and no sign
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[i] = scale * byte_of<128>(low, i);
            w[4 + i] = scale * byte_of<128>(high, i);
        }
    }
};

// 256 weights: d, dmin (halves), 12 bytes of eight 6-bit scales and minima, 128 bytes of nibbles: (d scale) q - (dmin minimum).
// Bytes 32 j .. 32 j + 31 hold weights 64 j .. + 31 in their low nibbles and 64 j + 32 .. + 63 in the high ones.
struct Q4_K {
    static const int BLOCK = 256, GAP = 32, AHEAD = 4;
    __device__ static int first(int lane) { return 64 * (lane / 8) + 4 * (lane % 8); }
    // Scale and minimum of sub-block j: whole bytes' low 6 bits for j < 4, else nibbles topped up with the first ones' high 2 bits.
    __device__ static void scales(const u8* packed, int j, float& scale, float& minimum) {
        if (j < 4) {
            scale = small_number(packed[j] & 63);
            minimum = small_number(packed[j + 4] & 63);
        } else {
            scale = small_number((packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4);
            minimum = small_number((packed[j + 4] >> 4) | (packed[j] >> 6) << 4);
        }
    }
    __device__ static void decode(const u8* row, int step, int lane, float (&w)[8]) {
        const u8* at = row + u64(step) * 144;
        const float d = load_half(at), dmin = load_half(at + 2);
        const u32 bytes = load_word(at + 16 + 32 * (lane / 8) + 4 * (lane % 8));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float scale, minimum;
            scales(at + 4, 2 * (lane / 8) + half, scale, minimum);
            scale *= d;
            minimum *= dmin;
#pragma unroll
            for (int i = 0; i < 4; i++) w[4 * half + i] = scale * byte_of(bytes >> (4 * half) & 0x0f0f0f0fu, i) - minimum;
        }
    }
};

// 256 weights: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales (one of 16 weights), d (half): d scale (q - 32).
// In each half of 128: nibbles byte l and l + 32 (l < 32) hold weights l, l + 32 (low) and l + 64, l + 96 (high); the bit pairs of byte l
// belong to weights l, l + 32, l + 64, l + 96, lowest first.
struct Q6_K {
    static const int BLOCK = 256, GAP = 64, AHEAD = 4;
    __device__ static int first(int lane) { return 128 * (lane / 16) + 4 * (lane % 16); }
    __device__ static void decode(const u8* row, int step, int lane, float (&w)[8]) {
        const u8* at = row + u64(step) * 210;
        const int half = lane / 16, low_at = 4 * (lane % 16);  // 0 .. 60: the first or the second 32 bytes of nibbles
        const u32 nibbles = load_bytes(at + 64 * half + low_at);
        const u32 pairs = load_bytes(at + 128 + 32 * half + low_at % 32) >> (low_at < 32 ? 0 : 2);
        const u8* scales = at + 192 + 8 * half + low_at / 16;
        const float d = load_half(at + 208), low_scale = d * byte_of<128>(scales[0] ^ 0x80u, 0), high_scale = d * byte_of<128>(scales[4] ^ 0x80u, 0);
        const u32 low = (nibbles & 0x0f0f0f0fu) | (pairs & 0x03030303u) << 4;
        const u32 high = (nibbles >> 4 & 0x0f0f0f0fu) | (pairs >> 4 & 0x03030303u) << 4;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[i] = low_scale * byte_of<32>(low, i);
            w[4 + i] = high_scale * byte_of<32>(high, i);
        }
    }
};
