// What a kernel compiled for the CPU calls: its indices, barriers and warp collectives. runtime.cpp runs a block's threads as fibers.
#pragma once
#include <cstdint>

struct Index {
    unsigned x, y, z;
};

namespace cuda_on_cpu {

struct Thread {
    Index index;
    unsigned number, warp, lane;
};
extern Thread* current;
extern Index block_index, block_size, grid_size;

// What a lane brings to a warp collective, and where it wants the result.
struct Offer {
    const void* value;
    void* result;
    int argument;
};
using Exchange = void (*)(Offer* lanes, unsigned present);

void barrier(int line);
// Returns once every lane of `mask` that still runs has called the same exchange with the same mask.
void warp_exchange(unsigned mask, const void* value, void* result, int argument, Exchange exchange, const char* name);
[[noreturn]] void fail(const char* message);

struct Launch {
    Index grid, block;
    uint64_t seed;
    int schedule;  // 0 forward, 1 reverse, 2 random
};
// 0, or 1 with the words in cuda_on_cpu_error().
int run(const Launch& launch, void (*body)(void*), void* argument);

}  // namespace cuda_on_cpu
