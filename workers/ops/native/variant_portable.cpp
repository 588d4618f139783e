#include "isa_portable.h"
#include "variant.h"

const helexa::Kernels* helexa::portable_kernels() { return kernels_of<Portable>(); }
