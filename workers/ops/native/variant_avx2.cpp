#include "kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "isa_avx2.h"
#include "variant.h"
const helexa::Kernels* helexa::avx2_kernels() { return kernels_of<Avx2>(); }
#else
const helexa::Kernels* helexa::avx2_kernels() { return nullptr; }
#endif
