// The floating-point mode all kernels need: round to nearest even, denormals kept. A library loaded into the process may have
// changed the calling thread's, so it is set for the time of a call.
#pragma once
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace helexa {

class FloatMode {
#if defined(__x86_64__)
public:
    FloatMode() : before_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
    ~FloatMode() { _mm_setcsr(before_); }

private:
    unsigned before_;
#else
public:
    FloatMode() {}
    ~FloatMode() {}
#endif
};

}  // namespace helexa
