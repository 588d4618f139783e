#include "kernels.h"

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#if !defined(__clang__)  // g++ 12 takes the deliberately undefined operands in its own headers for mistakes
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include "isa_avx512.h"
#include "variant.h"
const helexa::Kernels* helexa::avx512_kernels() { return kernels_of<Avx512>(); }
#else
const helexa::Kernels* helexa::avx512_kernels() { return nullptr; }
#endif
