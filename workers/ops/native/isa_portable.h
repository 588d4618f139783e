// 16 lanes in plain C++, for any machine. std::fma rounds once everywhere, so its bits are the hardware's.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.h"

namespace helexa {

struct Portable {
    static constexpr const char* kName = "portable";
    static constexpr int kTileRows = 1;
    static constexpr int kChains = 1;
    static constexpr int kFloatTileRows = 1;
    static constexpr int kFloatGroups = 1;    // groups of 16 columns of a float tile
    static constexpr int kScoreBlocks = 1;
    static constexpr int kN = 16;

    struct F {
        float v[kN];
    };
    struct I {
        int32_t v[kN];
    };
    struct F8 {
        float v[8];
    };
    struct Mask {
        bool v[kN];
    };

    template <class R, class Op> static R each(Op op) {
        R r;
        for (int i = 0; i < kN; i++) r.v[i] = op(i);
        return r;
    }

    static F set(float x) {
        return each<F>([&](int) { return x; });
    }
    static F zero() { return set(0.0f); }
    static F load(const float* p) {
        return each<F>([&](int i) { return p[i]; });
    }
    static F load_first(const float* p, int n) {
        return each<F>([&](int i) { return i < n ? p[i] : 0.0f; });
    }
    static void store(float* p, const F& x) { std::memcpy(p, x.v, sizeof x.v); }
    static void store_first(float* p, const F& x, int n) { std::memcpy(p, x.v, sizeof(float) * static_cast<size_t>(n)); }
    static F fma(const F& a, const F& b, const F& c) {
        return each<F>([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
    }
    static F add(const F& a, const F& b) {
        return each<F>([&](int i) { return a.v[i] + b.v[i]; });
    }
    static F sub(const F& a, const F& b) {
        return each<F>([&](int i) { return a.v[i] - b.v[i]; });
    }
    static F mul(const F& a, const F& b) {
        return each<F>([&](int i) { return a.v[i] * b.v[i]; });
    }
    static F div(const F& a, const F& b) {
        return each<F>([&](int i) { return a.v[i] / b.v[i]; });
    }
    static F max(const F& a, const F& b) {
        return each<F>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
    }
    static F min(const F& a, const F& b) {
        return each<F>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
    }
    static F round(const F& x) {
        return each<F>([&](int i) { return std::nearbyint(x.v[i]); });
    }

    static Mask first(int n) {
        return each<Mask>([&](int i) { return i < n; });
    }
    static Mask less(const F& a, const F& b) {
        return each<Mask>([&](int i) { return a.v[i] < b.v[i]; });
    }
    static Mask equal(const F& a, const F& b) {
        return each<Mask>([&](int i) { return a.v[i] == b.v[i]; });
    }
    static Mask unordered(const F& a) {
        return each<Mask>([&](int i) { return std::isnan(a.v[i]); });
    }
    static Mask either(const Mask& a, const Mask& b) {
        return each<Mask>([&](int i) { return a.v[i] || b.v[i]; });
    }
    static Mask both_masks(const Mask& a, const Mask& b) {
        return each<Mask>([&](int i) { return a.v[i] && b.v[i]; });
    }
    static bool any(const Mask& m) {
        bool found = false;
        for (bool lane : m.v) found = found || lane;
        return found;
    }
    static F select(const Mask& m, const F& yes, const F& no) {
        return each<F>([&](int i) { return m.v[i] ? yes.v[i] : no.v[i]; });
    }
    static I select(const Mask& m, const I& yes, const I& no) {
        return each<I>([&](int i) { return m.v[i] ? yes.v[i] : no.v[i]; });
    }

    static I set_int(int32_t x) {
        return each<I>([&](int) { return x; });
    }
    static I load_int(const int32_t* p) {
        return each<I>([&](int i) { return p[i]; });
    }
    static void store_int(int32_t* p, const I& x) { std::memcpy(p, x.v, sizeof x.v); }
    static I add_int(const I& a, const I& b) {
        return each<I>([&](int i) { return wrap(word(a.v[i]) + word(b.v[i])); });
    }
    static I mul_int(const I& a, const I& b) {
        return each<I>([&](int i) { return wrap(word(a.v[i]) * word(b.v[i])); });
    }
    static I exclusive_or(const I& a, const I& b) {
        return each<I>([&](int i) { return a.v[i] ^ b.v[i]; });
    }
    static I both(const I& a, const I& b) {
        return each<I>([&](int i) { return a.v[i] & b.v[i]; });
    }
    template <int Bits> static I shift_left(const I& x) {
        return each<I>([&](int i) { return wrap(word(x.v[i]) << Bits); });
    }
    template <int Bits> static I shift_right(const I& x) {
        return each<I>([&](int i) { return wrap(word(x.v[i]) >> Bits); });
    }
    template <int Bits> static I shift_right_signed(const I& x) {
        return each<I>([&](int i) { return x.v[i] >> Bits; });
    }
    static I to_int(const F& x) {
        return each<I>([&](int i) {
            const bool fits = x.v[i] >= -2147483648.0f && x.v[i] < 2147483648.0f;
            return fits ? static_cast<int32_t>(std::nearbyint(x.v[i])) : INT32_MIN;
        });
    }
    static F to_float(const I& x) {
        return each<F>([&](int i) { return static_cast<float>(x.v[i]); });
    }
    static I as_int(const F& x) {
        return each<I>([&](int i) { return wrap(bits_of(x.v[i])); });
    }
    static F as_float(const I& x) {
        return each<F>([&](int i) { return from_bits(word(x.v[i])); });
    }

    static F from_half(const uint16_t* p) {
        return each<F>([&](int i) { return half_to_float(p[i]); });
    }
    static void to_half(uint16_t* p, const F& x) {
        for (int i = 0; i < kN; i++) p[i] = float_to_half(x.v[i]);
    }
    static F from_bfloat(const uint16_t* p) {
        return each<F>([&](int i) { return bfloat_to_float(p[i]); });
    }

    static F from_int8(const int8_t* p) {
        return each<F>([&](int i) { return static_cast<float>(p[i]); });
    }

    static float reduce_max(const F& x) {
        float best = x.v[0];
        for (float lane : x.v) best = lane > best ? lane : best;
        return best;
    }
    static float reduce_add(const F& x) {
        F8 y;
        for (int i = 0; i < 8; i++) y.v[i] = x.v[i] + x.v[i + 8];
        return reduce_add8(y);
    }
    static uint32_t max_magnitude_bits(const F& x, const F& y) {
        uint32_t most = 0;
        for (int i = 0; i < 2 * kN; i++) {
            const uint32_t magnitude = bits_of(i < kN ? x.v[i] : y.v[i - kN]) & 0x7fffffffu;
            most = magnitude > most ? magnitude : most;
        }
        return most;
    }
    static int32_t sum_int(const I& x) {
        int32_t sum = 0;
        for (int32_t lane : x.v) sum += lane;
        return sum;
    }
    static void store_int16(int16_t* p, const I& x) {
        for (int i = 0; i < kN; i++) p[i] = static_cast<int16_t>(x.v[i]);
    }

    static F8 zero8() { return F8{}; }
    static F8 square_add8(const float* p, F8 sum) {
        for (int i = 0; i < 8; i++) sum.v[i] = std::fma(p[i], p[i], sum.v[i]);
        return sum;
    }
    static float reduce_add8(const F8& x) {
        const float a = x.v[0] + x.v[4], b = x.v[1] + x.v[5], c = x.v[2] + x.v[6], d = x.v[3] + x.v[7];
        return (a + c) + (b + d);
    }

    struct Pairs {
        int16_t v[kN][2];
    };
    static Pairs words(const uint16_t (*q)[2]) {
        Pairs w;
        std::memcpy(w.v, q, sizeof w.v);
        return w;
    }
    static Pairs keep(const Pairs& w, uint16_t mask) {
        return each_word([&](int i, int k) { return w.v[i][k] & mask; });
    }
    static Pairs join(const Pairs& a, const Pairs& b) {
        return each_word([&](int i, int k) { return a.v[i][k] | b.v[i][k]; });
    }
    static Pairs less(const Pairs& w, int16_t n) {
        return each_word([&](int i, int k) { return w.v[i][k] - n; });
    }
    template <int Up> static Pairs move(const Pairs& w) {
        return each_word([&](int i, int k) {
            const int word = static_cast<uint16_t>(w.v[i][k]);
            return Up > 0 ? word << (Up > 0 ? Up : 0) : word >> (Up < 0 ? -Up : 0);
        });
    }
    static void store_words(uint16_t (*q)[2], const Pairs& w) { std::memcpy(q, w.v, sizeof w.v); }
    static Pairs byte_pairs(const int8_t (*q)[2]) {
        Pairs w;
        for (int i = 0; i < kN; i++) w.v[i][0] = q[i][0], w.v[i][1] = q[i][1];
        return w;
    }
    static I dot_add(I sum, const Pairs& w, const int16_t* x) {
        for (int i = 0; i < kN; i++) sum.v[i] += w.v[i][0] * x[0] + w.v[i][1] * x[1];
        return sum;
    }

private:
    template <class Word> static Pairs each_word(const Word& word) {
        Pairs w;
        for (int i = 0; i < kN; i++)
            for (int k = 0; k < 2; k++) w.v[i][k] = static_cast<int16_t>(word(i, k));
        return w;
    }
    static uint32_t word(int32_t x) { return static_cast<uint32_t>(x); }
    static int32_t wrap(uint32_t x) { return static_cast<int32_t>(x); }
};

}  // namespace helexa
