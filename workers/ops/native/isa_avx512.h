// 16 lanes in one 512-bit register, with the integer dot products of AVX-512 VNNI.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace helexa {

struct Avx512 {
    static constexpr const char* kName = "avx512-vnni";
    static constexpr int kTileRows = 8;       // rows of a quantised tile
    static constexpr int kChains = 2;         // sums of products that a block has under way
    static constexpr int kFloatTileRows = 8;  // rows of a float tile
    static constexpr int kFloatGroups = 2;    // groups of 16 columns of a float tile
    static constexpr int kScoreBlocks = 12;   // score vectors that are summed at once

    using F = __m512;
    using I = __m512i;
    using F8 = __m256;
    using Mask = __mmask16;

    static F zero() { return _mm512_setzero_ps(); }
    static F set(float x) { return _mm512_set1_ps(x); }
    static F load(const float* p) { return _mm512_loadu_ps(p); }
    static F load_first(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
    static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
    static void store_first(float* p, F x, int n) { _mm512_mask_storeu_ps(p, first(n), x); }
    static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
    static F add(F a, F b) { return _mm512_add_ps(a, b); }
    static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
    static F div(F a, F b) { return _mm512_div_ps(a, b); }
    static F max(F a, F b) { return _mm512_max_ps(a, b); }
    static F min(F a, F b) { return _mm512_min_ps(a, b); }
    static F round(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

    static Mask first(int n) { return static_cast<Mask>((1u << n) - 1u); }
    static Mask less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
    static Mask equal(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
    static Mask unordered(F a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
    static Mask either(Mask a, Mask b) { return static_cast<Mask>(a | b); }
    static Mask both_masks(Mask a, Mask b) { return static_cast<Mask>(a & b); }
    static bool any(Mask m) { return m != 0; }
    static F select(Mask m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }
    static I select(Mask m, I yes, I no) { return _mm512_mask_blend_epi32(m, no, yes); }

    static I set_int(int32_t x) { return _mm512_set1_epi32(x); }
    static I load_int(const int32_t* p) { return _mm512_loadu_si512(p); }
    static void store_int(int32_t* p, I x) { _mm512_storeu_si512(p, x); }
    static I add_int(I a, I b) { return _mm512_add_epi32(a, b); }
    static I mul_int(I a, I b) { return _mm512_mullo_epi32(a, b); }
    static I exclusive_or(I a, I b) { return _mm512_xor_si512(a, b); }
    static I both(I a, I b) { return _mm512_and_si512(a, b); }
    template <int Bits> static I shift_left(I x) { return _mm512_slli_epi32(x, Bits); }
    template <int Bits> static I shift_right(I x) { return _mm512_srli_epi32(x, Bits); }
    template <int Bits> static I shift_right_signed(I x) { return _mm512_srai_epi32(x, Bits); }
    static I to_int(F x) { return _mm512_cvtps_epi32(x); }  // to nearest even; NaN gives INT32_MIN
    static F to_float(I x) { return _mm512_cvtepi32_ps(x); }
    static I as_int(F x) { return _mm512_castps_si512(x); }
    static F as_float(I x) { return _mm512_castsi512_ps(x); }

    static F from_half(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
    static void to_half(uint16_t* p, F x) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                            _mm512_maskz_cvtps_ph(0xffff, x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
    static F from_bfloat(const uint16_t* p) {
        return as_float(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
    }

    static F from_int8(const int8_t* p) {
        return to_float(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
    }

    static float reduce_max(F x) { return _mm512_reduce_max_ps(x); }
    static float reduce_add(F x) { return reduce_add8(_mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1))); }
    // The bits of the largest magnitude of 32 floats.
    static uint32_t max_magnitude_bits(F x, F y) {
        const I mask = set_int(0x7fffffff);
        return _mm512_reduce_max_epu32(_mm512_max_epu32(_mm512_and_si512(as_int(x), mask), _mm512_and_si512(as_int(y), mask)));
    }
    static int32_t sum_int(I x) { return _mm512_reduce_add_epi32(x); }
    static void store_int16(int16_t* p, I x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x)); }

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

    // Pairs of 16-bit words of 16 columns, which are weights once they are unpacked.
    using Pairs = I;
    static Pairs words(const uint16_t (*q)[2]) { return _mm512_loadu_si512(q); }
    static Pairs keep(Pairs w, uint16_t mask) { return _mm512_and_si512(w, _mm512_set1_epi16(static_cast<int16_t>(mask))); }
    static Pairs join(Pairs a, Pairs b) { return _mm512_or_si512(a, b); }
    static Pairs less(Pairs w, int16_t n) { return _mm512_sub_epi16(w, _mm512_set1_epi16(n)); }
    template <int Up> static Pairs move(Pairs w) {  // bits to the left, or to the right where Up < 0
        if constexpr (Up > 0) return _mm512_slli_epi16(w, Up);
        if constexpr (Up < 0) return _mm512_srli_epi16(w, -Up);
        return w;
    }
    static void store_words(uint16_t (*q)[2], Pairs w) { _mm512_storeu_si512(q, w); }
    static Pairs byte_pairs(const int8_t (*q)[2]) {
        return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(q)));
    }
    // sum + w0 * x0 + w1 * x1
    static I dot_add(I sum, Pairs w, const int16_t* x) {
        int32_t pair;
        std::memcpy(&pair, x, sizeof pair);
        return _mm512_dpwssd_epi32(sum, w, _mm512_set1_epi32(pair));
    }
};

}  // namespace helexa
