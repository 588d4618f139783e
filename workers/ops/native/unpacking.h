// Reads one block of a model file, in the layouts of the GGUF specification (in words: helexa/formats/ggml_types.py).
#pragma once
#include <cstdint>
#include <cstring>

#include "helexa_ops.h"
#include "layout.h"

namespace helexa {

// A block's integers. The types without a K have 32 of them, and neither `scales` nor `minimums`.
struct Unpacked {
    uint16_t scale, minimum;  // float16
    int8_t scales[16], minimums[16];
    int8_t q[kSuperBlock];
};

static inline size_t file_block_bytes(int type) {
    constexpr size_t bytes[HELEXA_TYPES] = {4, 2, 2, 18, 20, 34, 22, 24, 84, 110, 144, 176, 210};
    return bytes[type];
}

static inline uint16_t read_half(const uint8_t* from) {
    uint16_t half;
    std::memcpy(&half, from, sizeof half);
    return half;
}

// 32 nibbles: byte i holds weight i in its low half, weight i + 16 in its high half. `high`: where fifth bits are, or null.
static inline void unpack_nibbles(const uint8_t* from, const uint8_t* high, int less, int8_t* q) {
    for (int k = 0; k < kQuantBlock; k++) {
        const int fifth = high != nullptr ? (high[k / 8] >> k % 8 & 1) << 4 : 0;
        q[k] = static_cast<int8_t>((k < 16 ? from[k] & 15 : from[k - 16] >> 4) + fifth - less);
    }
}

// Integer k of a K type's integers of `Bits` bits: of each `Run` bytes all lowest bits come first, then the next.
template <int Bits, int Run> static inline int bits_at(const uint8_t* from, int k) {
    constexpr int kFields = 8 / Bits;
    const int run = k / (Run * kFields), place = k % (Run * kFields);
    return from[run * Run + place % Run] >> place / Run * Bits & ((1 << Bits) - 1);
}

// The 6-bit scales and minimums of Q4_K and Q5_K.
static inline void unpack_pairs(const uint8_t* from, Unpacked& out) {
    for (int i = 0; i < 4; i++) {
        out.scales[i] = static_cast<int8_t>(from[i] & 63);
        out.minimums[i] = static_cast<int8_t>(from[4 + i] & 63);
        out.scales[4 + i] = static_cast<int8_t>((from[8 + i] & 15) | from[i] >> 6 << 4);
        out.minimums[4 + i] = static_cast<int8_t>(from[8 + i] >> 4 | from[4 + i] >> 6 << 4);
    }
}

static inline void unpack_q2_k(const uint8_t* from, Unpacked& out) {
    out.scale = read_half(from + 80), out.minimum = read_half(from + 82);
    for (int i = 0; i < 16; i++) {
        out.scales[i] = static_cast<int8_t>(from[i] & 15);
        out.minimums[i] = static_cast<int8_t>(from[i] >> 4);
    }
    for (int k = 0; k < kSuperBlock; k++) out.q[k] = static_cast<int8_t>(bits_at<2, 32>(from + 16, k));
}

static inline void unpack_q3_k(const uint8_t* from, Unpacked& out) {
    out.scale = read_half(from + 108);
    for (int i = 0; i < 16; i++)
        out.scales[i] = static_cast<int8_t>((bits_at<4, 8>(from + 96, i) | bits_at<2, 4>(from + 104, i) << 4) - 32);
    for (int k = 0; k < kSuperBlock; k++)
        out.q[k] = static_cast<int8_t>((bits_at<2, 32>(from + 32, k) | bits_at<1, 32>(from, k) << 2) - 4);
}

static inline void unpack_q4_k(const uint8_t* from, Unpacked& out) {
    out.scale = read_half(from), out.minimum = read_half(from + 2);
    unpack_pairs(from + 4, out);
    for (int k = 0; k < kSuperBlock; k++) out.q[k] = static_cast<int8_t>(bits_at<4, 32>(from + 16, k));
}

static inline void unpack_q5_k(const uint8_t* from, Unpacked& out) {
    out.scale = read_half(from), out.minimum = read_half(from + 2);
    unpack_pairs(from + 4, out);
    for (int k = 0; k < kSuperBlock; k++)
        out.q[k] = static_cast<int8_t>(bits_at<4, 32>(from + 48, k) | bits_at<1, 32>(from + 16, k) << 4);
}

static inline void unpack_q6_k(const uint8_t* from, Unpacked& out) {
    out.scale = read_half(from + 208);
    std::memcpy(out.scales, from + 192, 16);
    for (int k = 0; k < kSuperBlock; k++)
        out.q[k] = static_cast<int8_t>((bits_at<4, 64>(from, k) | bits_at<2, 32>(from + 128, k) << 4) - 32);
}

static inline void unpack(int type, const uint8_t* from, Unpacked& out) {
    switch (type) {
        case HELEXA_Q2_K: return unpack_q2_k(from, out);
        case HELEXA_Q3_K: return unpack_q3_k(from, out);
        case HELEXA_Q4_K: return unpack_q4_k(from, out);
        case HELEXA_Q5_K: return unpack_q5_k(from, out);
        case HELEXA_Q6_K: return unpack_q6_k(from, out);
        default: break;
    }
    out.scale = read_half(from);
    switch (type) {
        case HELEXA_Q4_1: out.minimum = read_half(from + 2); return unpack_nibbles(from + 4, nullptr, 0, out.q);
        case HELEXA_Q5_0: return unpack_nibbles(from + 6, from + 2, 16, out.q);
        case HELEXA_Q5_1: out.minimum = read_half(from + 2); return unpack_nibbles(from + 8, from + 4, 0, out.q);
        case HELEXA_Q8_0: std::memcpy(out.q, from + 2, kQuantBlock); return;
        default: return unpack_nibbles(from + 2, nullptr, 0, out.q);  // Q4_0
    }
}

}  // namespace helexa
