// exp, log and tanh as polynomials in one fixed order of operations, so that every instruction set gives the same bits.
// Coefficients and range reductions are those of the Cephes library's expf, logf and tanhf (S. Moshier); about 1 and 2 ulp.
#pragma once
#include <cstdint>

namespace helexa {

constexpr float kExpLow = -87.0f, kExpHigh = 88.0f;

// e^x for x clamped to [-87, 88]; NaN stays NaN. max and min return their second operand where either is NaN.
template <class Isa> typename Isa::F exp_clamped(typename Isa::F x) {
    x = Isa::min(Isa::set(kExpHigh), Isa::max(Isa::set(kExpLow), x));
    const auto n = Isa::round(Isa::mul(x, Isa::set(1.44269504f)));
    auto r = Isa::fma(n, Isa::set(-0.693359375f), x);
    r = Isa::fma(n, Isa::set(2.12194440e-4f), r);
    auto p = Isa::set(1.9875691500e-4f);
    p = Isa::fma(p, r, Isa::set(1.3981999507e-3f));
    p = Isa::fma(p, r, Isa::set(8.3334519073e-3f));
    p = Isa::fma(p, r, Isa::set(4.1665795894e-2f));
    p = Isa::fma(p, r, Isa::set(1.6666665459e-1f));
    p = Isa::fma(p, r, Isa::set(5.0000001201e-1f));
    p = Isa::fma(p, Isa::mul(r, r), Isa::add(r, Isa::set(1.0f)));
    const auto power = Isa::template shift_left<23>(Isa::add_int(Isa::to_int(n), Isa::set_int(127)));
    return Isa::mul(p, Isa::as_float(power));
}

// e^x for x <= 0, exactly 0 below -87 and exactly 1 at 0.
template <class Isa> typename Isa::F exp_not_positive(typename Isa::F x) {
    return Isa::select(Isa::less(x, Isa::set(kExpLow)), Isa::zero(), exp_clamped<Isa>(x));
}

// tanh x, exactly odd; NaN stays NaN.
template <class Isa> typename Isa::F tanh_any(typename Isa::F x) {
    const auto negative = Isa::less(x, Isa::zero());
    const auto magnitude = Isa::select(negative, Isa::sub(Isa::zero(), x), x);
    const auto square = Isa::mul(x, x);
    auto p = Isa::set(-5.70498872745e-3f);
    p = Isa::fma(p, square, Isa::set(2.06390887954e-2f));
    p = Isa::fma(p, square, Isa::set(-5.37397155531e-2f));
    p = Isa::fma(p, square, Isa::set(1.33314422036e-1f));
    p = Isa::fma(p, square, Isa::set(-3.33332819422e-1f));
    const auto near = Isa::fma(Isa::mul(p, square), magnitude, magnitude);
    const auto e = exp_clamped<Isa>(Isa::add(magnitude, magnitude));
    const auto far = Isa::sub(Isa::set(1.0f), Isa::div(Isa::set(2.0f), Isa::add(e, Isa::set(1.0f))));
    const auto y = Isa::select(Isa::less(magnitude, Isa::set(0.625f)), near, far);
    return Isa::select(negative, Isa::sub(Isa::zero(), y), y);
}

// cap * tanh(x / cap); what is not finite stays so, that a broken row shows.
template <class Isa> typename Isa::F softly_capped(typename Isa::F x, float cap) {
    const auto capped = Isa::mul(tanh_any<Isa>(Isa::div(x, Isa::set(cap))), Isa::set(cap));
    return Isa::fma(Isa::zero(), x, capped);
}

// ln x for normal x > 0, and -infinity at 0.
template <class Isa> typename Isa::F log_positive(typename Isa::F x) {
    const auto bits = Isa::as_int(x);
    auto exponent = Isa::to_float(Isa::add_int(Isa::template shift_right<23>(bits), Isa::set_int(-126)));
    auto m = Isa::as_float(Isa::add_int(Isa::both(bits, Isa::set_int(0x7fffff)), Isa::set_int(0x3f000000)));  // [0.5, 1)
    const auto small = Isa::less(m, Isa::set(0.707106781f));
    exponent = Isa::sub(exponent, Isa::select(small, Isa::set(1.0f), Isa::zero()));
    m = Isa::sub(Isa::add(m, Isa::select(small, m, Isa::zero())), Isa::set(1.0f));
    const auto square = Isa::mul(m, m);
    auto p = Isa::set(7.0376836292e-2f);
    p = Isa::fma(p, m, Isa::set(-1.1514610310e-1f));
    p = Isa::fma(p, m, Isa::set(1.1676998740e-1f));
    p = Isa::fma(p, m, Isa::set(-1.2420140846e-1f));
    p = Isa::fma(p, m, Isa::set(1.4249322787e-1f));
    p = Isa::fma(p, m, Isa::set(-1.6668057665e-1f));
    p = Isa::fma(p, m, Isa::set(2.0000714765e-1f));
    p = Isa::fma(p, m, Isa::set(-2.4999993993e-1f));
    p = Isa::fma(p, m, Isa::set(3.3333331174e-1f));
    p = Isa::mul(Isa::mul(p, m), square);
    p = Isa::fma(exponent, Isa::set(-2.12194440e-4f), p);
    p = Isa::fma(square, Isa::set(-0.5f), p);
    const auto log = Isa::fma(exponent, Isa::set(0.693359375f), Isa::add(m, p));
    return Isa::select(Isa::equal(x, Isa::zero()), Isa::set(-__builtin_inff()), log);
}

}  // namespace helexa
