// Quantises float weights to blocks of a model file: the arithmetic of helexa/formats/quantise.py, bit for bit.
#include "quantising.h"

#include <algorithm>
#include <cstring>

#include "half.h"
#include "layout.h"
#include "unpacking.h"

namespace helexa {
namespace {

constexpr float kLeast = 7.888609052210118e-31f;  // 2^-100: a smaller scale is 0 in half precision

float inverse(float scale) { return scale < kLeast && scale > -kLeast ? 0.0f : 1.0f / scale; }

// Nearest, to even, of 0 .. 2^22.
float nearest(float x) { return (x + 12582912.0f) - 12582912.0f; }

float clamped(float x, float most) {
    x = x < 0.0f ? 0.0f : x;
    return x > most ? most : x;
}

// Whether it is finite in half precision.
bool write_half(float x, uint8_t* to) {
    const uint16_t half = float_to_half(x);
    std::memcpy(to, &half, sizeof half);
    return (half & 0x7c00) != 0x7c00;
}

bool all_finite(const float* x, int count) {
    uint32_t most = 0;
    for (int k = 0; k < count; k++) most = std::max(most, bits_of(x[k]) & 0x7fffffffu);
    return most < 0x7f800000u;
}

// Zeros are positive.
struct Range {
    float low, high;
};

Range range_of(const float* x) {
    float low[8], high[8];
    for (int i = 0; i < 8; i++) low[i] = high[i] = x[i];
    for (int k = 8; k < kQuantBlock; k += 8)
        for (int i = 0; i < 8; i++) {
            low[i] = x[k + i] < low[i] ? x[k + i] : low[i];
            high[i] = x[k + i] > high[i] ? x[k + i] : high[i];
        }
    return {*std::min_element(low, low + 8) + 0.0f, *std::max_element(high, high + 8) + 0.0f};
}

// The value of largest magnitude, the first of equals.
float extreme(const float* x) {
    const Range range = range_of(x);
    if (range.high != -range.low || range.high == 0.0f) return range.high > -range.low ? range.high : range.low;
    return *std::find_if(x, x + kQuantBlock, [&](float value) { return value == range.high || value == range.low; });
}

void pack_nibbles(const uint8_t* q, uint8_t* to) {
    for (int k = 0; k < 16; k++) to[k] = static_cast<uint8_t>((q[k] & 15) | q[k + 16] << 4);
}

void pack_fifth_bits(const uint8_t* q, uint8_t* to) {
    std::memset(to, 0, 4);
    for (int k = 0; k < kQuantBlock; k++) to[k / 8] = static_cast<uint8_t>(to[k / 8] | (q[k] >> 4) << k % 8);
}

bool symmetric(const float* x, int levels, uint8_t* half, uint8_t* q) {
    const float scale = extreme(x) / static_cast<float>(-levels), factor = inverse(scale);
    const float middle = static_cast<float>(levels) + 0.5f, most = static_cast<float>(2 * levels - 1);
    for (int k = 0; k < kQuantBlock; k++) q[k] = static_cast<uint8_t>(static_cast<int>(clamped(x[k] * factor + middle, most)));
    return write_half(scale, half);
}

bool affine(const float* x, int levels, uint8_t* halves, uint8_t* q) {
    const Range range = range_of(x);
    const float scale = (range.high - range.low) / static_cast<float>(levels), factor = inverse(scale);
    const float most = static_cast<float>(levels);
    for (int k = 0; k < kQuantBlock; k++)
        q[k] = static_cast<uint8_t>(static_cast<int>(clamped((x[k] - range.low) * factor + 0.5f, most)));
    const bool fits = write_half(scale, halves);
    return write_half(range.low, halves + 2) && fits;
}

bool quantise_q8_0(const float* x, uint8_t* to) {
    const float scale = __builtin_fabsf(extreme(x)) / 127.0f, factor = inverse(scale);
    for (int k = 0; k < kQuantBlock; k++) {  // halves away from zero
        const float scaled = x[k] * factor;
        const int whole = static_cast<int>(scaled);
        to[2 + k] = static_cast<uint8_t>(whole + static_cast<int>((scaled - static_cast<float>(whole)) * 2.0f));
    }
    return write_half(scale, to);
}

// d = the largest of 8 / 63 in half precision, and each as a multiple of it.
bool multiples(const float* values, uint8_t* half, float* d, float* whole) {
    const bool fits = write_half(*std::max_element(values, values + 8) / 63.0f, half);
    *d = half_to_float(read_half(half));
    for (int i = 0; i < 8; i++) whole[i] = nearest(clamped(values[i] * inverse(*d), 63.0f));
    return fits;
}

bool quantise_q4_k(const float* x, uint8_t* to) {
    float ranges[8], lows[8], d, dmin, scales[8], minimums[8];
    for (int part = 0; part < 8; part++) {
        const Range range = range_of(x + part * kQuantBlock);
        const float low = range.low < 0.0f ? range.low : 0.0f;
        ranges[part] = (range.high - low) / 15.0f;
        lows[part] = 0.0f - low;
    }
    const bool fits = multiples(ranges, to, &d, scales);
    if (!multiples(lows, to + 2, &dmin, minimums) || !fits) return false;
    uint8_t* pairs = to + 4;
    for (int i = 0; i < 4; i++) {
        const int scale = static_cast<int>(scales[i]), next = static_cast<int>(scales[i + 4]);
        const int minimum = static_cast<int>(minimums[i]), next_minimum = static_cast<int>(minimums[i + 4]);
        pairs[i] = static_cast<uint8_t>(scale | next >> 4 << 6);
        pairs[4 + i] = static_cast<uint8_t>(minimum | next_minimum >> 4 << 6);
        pairs[8 + i] = static_cast<uint8_t>((next & 15) | (next_minimum & 15) << 4);
    }
    for (int part = 0; part < 8; part++) {
        const float minimum = dmin * minimums[part], factor = inverse(d * scales[part]);
        uint8_t q[kQuantBlock];
        for (int k = 0; k < kQuantBlock; k++)
            q[k] = static_cast<uint8_t>(
                static_cast<int>(nearest(clamped((x[part * kQuantBlock + k] + minimum) * factor, 15.0f))));
        uint8_t* nibbles = to + 16 + part / 2 * kQuantBlock;
        for (int k = 0; k < kQuantBlock; k++)
            nibbles[k] = part % 2 == 0 ? q[k] : static_cast<uint8_t>(nibbles[k] | q[k] << 4);
    }
    return true;
}

bool quantise_block(int type, const float* x, uint8_t* to) {
    uint8_t q[kQuantBlock];
    bool fits = false;
    switch (type) {
        case HELEXA_Q4_0:
            fits = symmetric(x, 8, to, q);
            pack_nibbles(q, to + 2);
            return fits;
        case HELEXA_Q4_1:
            fits = affine(x, 15, to, q);
            pack_nibbles(q, to + 4);
            return fits;
        case HELEXA_Q5_0:
            fits = symmetric(x, 16, to, q);
            pack_fifth_bits(q, to + 2);
            pack_nibbles(q, to + 6);
            return fits;
        case HELEXA_Q5_1:
            fits = affine(x, 31, to, q);
            pack_fifth_bits(q, to + 4);
            pack_nibbles(q, to + 8);
            return fits;
        case HELEXA_Q8_0: return quantise_q8_0(x, to);
        case HELEXA_Q4_K: return quantise_q4_k(x, to);
        default: return false;
    }
}

void read_floats(int type, const uint8_t* from, int count, float* x) {
    if (type == HELEXA_F32) {
        std::memcpy(x, from, static_cast<size_t>(count) * sizeof(float));
        return;
    }
    uint16_t words[kSuperBlock];
    std::memcpy(words, from, static_cast<size_t>(count) * sizeof(uint16_t));
    for (int k = 0; k < count; k++) x[k] = type == HELEXA_F16 ? half_to_float(words[k]) : bfloat_to_float(words[k]);
}

}  // namespace

bool quantise_weights(int from, int to, size_t count, const void* source, void* blocks) {
    const int together = to == HELEXA_Q4_K ? kSuperBlock : kQuantBlock;
    const size_t source_bytes = file_block_bytes(from) * static_cast<size_t>(together), block_bytes = file_block_bytes(to);
    const uint8_t* in = static_cast<const uint8_t*>(source);
    uint8_t* out = static_cast<uint8_t*>(blocks);
    for (size_t block = 0; block < count / static_cast<size_t>(together); block++, in += source_bytes, out += block_bytes) {
        float x[kSuperBlock];
        read_floats(from, in, together, x);
        if (!all_finite(x, together) || !quantise_block(to, x, out)) return false;
    }
    return true;
}

}  // namespace helexa
