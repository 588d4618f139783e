// float16 in plain integer arithmetic: the same bits as the hardware's conversions, round to nearest even.
#pragma once
#include <cstdint>
#include <cstring>

namespace helexa {

static inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float from_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float half_to_float(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 0x1fu, fraction = half & 0x3ffu;
    if (exponent == 0) {  // zero or subnormal: fraction * 2^-24 is exact
        const float magnitude = static_cast<float>(fraction) * 5.9604644775390625e-8f;
        return from_bits(bits_of(magnitude) | sign);
    }
    if (exponent == 0x1f) return from_bits(sign | 0x7f800000u | (fraction << 13) | (fraction != 0 ? 0x400000u : 0u));
    return from_bits(sign | ((exponent + 112u) << 23) | (fraction << 13));
}

static inline uint16_t float_to_half(float x) {
    const uint32_t bits = bits_of(x);
    const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to infinity
    if (magnitude < 0x38800000u) {                                               // subnormal: adding 0.5 rounds at 2^-24
        const float shifted = from_bits(magnitude) + 0.5f;
        return static_cast<uint16_t>(sign | (bits_of(shifted) - 0x3f000000u));
    }
    const uint32_t odd = (magnitude >> 13) & 1u;
    return static_cast<uint16_t>(sign | ((magnitude + 0xfffu + odd - 0x38000000u) >> 13));
}

static inline float bfloat_to_float(uint16_t bfloat) { return from_bits(static_cast<uint32_t>(bfloat) << 16); }

}  // namespace helexa
