#pragma once
#include <cstddef>

#include "helexa_ops.h"

namespace helexa {

size_t packed_bytes(int type, int rows, int columns);
void pack(int type, int rows, int columns, const void* source, void* packed);

}  // namespace helexa
