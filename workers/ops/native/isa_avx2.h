// 16 lanes in two 256-bit registers, AVX2 with FMA and F16C.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace helexa {

struct Avx2 {
    static constexpr const char* kName = "avx2";
    static constexpr int kTileRows = 4;
    static constexpr int kChains = 1;
    static constexpr int kFloatTileRows = 4;
    static constexpr int kFloatGroups = 1;    // groups of 16 columns of a float tile
    static constexpr int kScoreBlocks = 6;  // score vectors that are summed at once

    struct F {
        __m256 a, b;
    };
    struct I {
        __m256i a, b;
    };
    using F8 = __m256;
    using Mask = F;  // all ones or all zeros a lane

    static F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
    static F set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
    static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
    static F load_first(const float* p, int n) {
        alignas(32) float lanes[16] = {};
        std::memcpy(lanes, p, sizeof(float) * static_cast<size_t>(n));
        return load(lanes);
    }
    static void store(float* p, F x) { _mm256_storeu_ps(p, x.a), _mm256_storeu_ps(p + 8, x.b); }
    static void store_first(float* p, F x, int n) {
        alignas(32) float lanes[16];
        store(lanes, x);
        std::memcpy(p, lanes, sizeof(float) * static_cast<size_t>(n));
    }
    static F fma(F a, F b, F c) { return {_mm256_fmadd_ps(a.a, b.a, c.a), _mm256_fmadd_ps(a.b, b.b, c.b)}; }
    static F add(F a, F b) { return {_mm256_add_ps(a.a, b.a), _mm256_add_ps(a.b, b.b)}; }
    static F sub(F a, F b) { return {_mm256_sub_ps(a.a, b.a), _mm256_sub_ps(a.b, b.b)}; }
    static F mul(F a, F b) { return {_mm256_mul_ps(a.a, b.a), _mm256_mul_ps(a.b, b.b)}; }
    static F div(F a, F b) { return {_mm256_div_ps(a.a, b.a), _mm256_div_ps(a.b, b.b)}; }
    static F max(F a, F b) { return {_mm256_max_ps(a.a, b.a), _mm256_max_ps(a.b, b.b)}; }
    static F min(F a, F b) { return {_mm256_min_ps(a.a, b.a), _mm256_min_ps(a.b, b.b)}; }
    static F round(F x) { return {round8(x.a), round8(x.b)}; }

    static Mask first(int n) {
        const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lanes)),
                _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), lanes))};
    }
    static Mask less(F a, F b) { return {_mm256_cmp_ps(a.a, b.a, _CMP_LT_OQ), _mm256_cmp_ps(a.b, b.b, _CMP_LT_OQ)}; }
    static Mask equal(F a, F b) { return {_mm256_cmp_ps(a.a, b.a, _CMP_EQ_OQ), _mm256_cmp_ps(a.b, b.b, _CMP_EQ_OQ)}; }
    static Mask unordered(F a) { return {_mm256_cmp_ps(a.a, a.a, _CMP_UNORD_Q), _mm256_cmp_ps(a.b, a.b, _CMP_UNORD_Q)}; }
    static Mask either(Mask a, Mask b) { return {_mm256_or_ps(a.a, b.a), _mm256_or_ps(a.b, b.b)}; }
    static Mask both_masks(Mask a, Mask b) { return {_mm256_and_ps(a.a, b.a), _mm256_and_ps(a.b, b.b)}; }
    static bool any(Mask m) { return _mm256_movemask_ps(_mm256_or_ps(m.a, m.b)) != 0; }
    static F select(Mask m, F yes, F no) { return {_mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b)}; }
    static I select(Mask m, I yes, I no) { return as_int(select(m, as_float(yes), as_float(no))); }

    static I set_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
    static I load_int(const int32_t* p) { return load_bytes(p); }
    static void store_int(int32_t* p, I x) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.a), _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.b);
    }
    static I add_int(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
    static I mul_int(I x, I y) { return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)}; }
    static I exclusive_or(I x, I y) { return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)}; }
    static I both(I x, I y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
    template <int Bits> static I shift_left(I x) { return {_mm256_slli_epi32(x.a, Bits), _mm256_slli_epi32(x.b, Bits)}; }
    template <int Bits> static I shift_right(I x) { return {_mm256_srli_epi32(x.a, Bits), _mm256_srli_epi32(x.b, Bits)}; }
    template <int Bits> static I shift_right_signed(I x) { return {_mm256_srai_epi32(x.a, Bits), _mm256_srai_epi32(x.b, Bits)}; }
    static I to_int(F x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
    static F to_float(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
    static I as_int(F x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
    static F as_float(I x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }

    static F from_half(const uint16_t* p) { return {_mm256_cvtph_ps(load128(p)), _mm256_cvtph_ps(load128(p + 8))}; }
    static void to_half(uint16_t* p, F x) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
    }
    static F from_bfloat(const uint16_t* p) {
        return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16)),
                _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p + 8)), 16))};
    }

    static F from_int8(const int8_t* p) {
        const __m128i bytes = load128(p);
        return to_float({_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))});
    }

    static float reduce_max(F x) {
        const __m256 m = _mm256_max_ps(x.a, x.b);
        __m128 y = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
        y = _mm_max_ps(y, _mm_movehl_ps(y, y));
        return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
    }
    static float reduce_add(F x) { return reduce_add8(_mm256_add_ps(x.a, x.b)); }
    static uint32_t max_magnitude_bits(F x, F y) {
        const __m256i mask = _mm256_set1_epi32(0x7fffffff);
        const I p = as_int(x), q = as_int(y);
        const __m256i m = _mm256_max_epi32(_mm256_max_epi32(_mm256_and_si256(p.a, mask), _mm256_and_si256(p.b, mask)),
                                           _mm256_max_epi32(_mm256_and_si256(q.a, mask), _mm256_and_si256(q.b, mask)));
        __m128i z = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
        z = _mm_max_epi32(z, _mm_shuffle_epi32(z, 0x4e));
        return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epi32(z, _mm_shuffle_epi32(z, 0xb1))));
    }
    static int32_t sum_int(I x) {
        const __m256i s = _mm256_add_epi32(x.a, x.b);
        __m128i y = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
        y = _mm_add_epi32(y, _mm_shuffle_epi32(y, 0x4e));
        return _mm_cvtsi128_si32(_mm_add_epi32(y, _mm_shuffle_epi32(y, 0xb1)));
    }
    static void store_int16(int16_t* p, I x) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8));
    }

    static F8 zero8() { return _mm256_setzero_ps(); }
    static F8 square_add8(const float* p, F8 sum) {
        const __m256 x = _mm256_loadu_ps(p);
        return _mm256_fmadd_ps(x, x, sum);
    }
    static float reduce_add8(F8 x) {
        __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        y = _mm_add_ps(y, _mm_movehl_ps(y, y));
        return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
    }

    using Pairs = I;
    static Pairs words(const uint16_t (*q)[2]) { return load_bytes(q); }
    static Pairs keep(Pairs w, uint16_t mask) {
        const __m256i m = _mm256_set1_epi16(static_cast<int16_t>(mask));
        return both(w, {m, m});
    }
    static Pairs join(Pairs a, Pairs b) { return {_mm256_or_si256(a.a, b.a), _mm256_or_si256(a.b, b.b)}; }
    static Pairs less(Pairs w, int16_t n) {
        const __m256i m = _mm256_set1_epi16(n);
        return {_mm256_sub_epi16(w.a, m), _mm256_sub_epi16(w.b, m)};
    }
    template <int Up> static Pairs move(Pairs w) {
        if constexpr (Up > 0) return {_mm256_slli_epi16(w.a, Up), _mm256_slli_epi16(w.b, Up)};
        if constexpr (Up < 0) return {_mm256_srli_epi16(w.a, -Up), _mm256_srli_epi16(w.b, -Up)};
        return w;
    }
    static void store_words(uint16_t (*q)[2], Pairs w) {
        __m256i* to = reinterpret_cast<__m256i*>(q);
        _mm256_storeu_si256(to, w.a), _mm256_storeu_si256(to + 1, w.b);
    }
    static Pairs byte_pairs(const int8_t (*q)[2]) {
        return {_mm256_cvtepi8_epi16(load128(q)), _mm256_cvtepi8_epi16(load128(q + 8))};
    }
    static I dot_add(I sum, Pairs w, const int16_t* x) {
        int32_t pair;
        std::memcpy(&pair, x, sizeof pair);
        const __m256i row = _mm256_set1_epi32(pair);
        sum = {_mm256_add_epi32(sum.a, _mm256_madd_epi16(w.a, row)), _mm256_add_epi32(sum.b, _mm256_madd_epi16(w.b, row))};
        __asm__("" : "+x"(sum.a), "+x"(sum.b));  // one sum at a time: as a tree they would not fit in 16 registers
        return sum;
    }

private:
    static __m256 round8(__m256 x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static __m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
    static I load_bytes(const void* p) {
        const __m256i* q = static_cast<const __m256i*>(p);
        return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
    }
};

}  // namespace helexa
