#pragma once
#include <cstddef>

#include "helexa_ops.h"

namespace helexa {

bool quantise_weights(int from, int to, size_t count, const void* source, void* blocks);

}  // namespace helexa
