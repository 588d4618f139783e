// How an op's work is dealt to the pool's threads, and where a row lies.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "helexa_ops.h"
#include "layout.h"

namespace helexa {

constexpr int kSerialCost = 4096;  // elements of row work below which waking the pool costs more than it saves
constexpr int kRowsTogether = 64;  // rows whose quantised activations stay in a core's cache while columns pass by
constexpr int kChunksPerThread = 4;
constexpr int kTileChunksPerThread = 8;  // attention tiles differ in size, so they are dealt finer

inline int chunks_for(int items, int threads) { return std::min(items, threads * kChunksPerThread); }

// The first item of a chunk when `items` are dealt evenly.
inline int first_of(int chunk, int chunks, int items) {
    return static_cast<int>(static_cast<int64_t>(items) * chunk / chunks);
}

inline int groups_of(const helexa_segment& segment) { return (segment.rows + kLanes - 1) / kLanes; }

inline int groups_of(const helexa_linear& linear) {
    int groups = 0;
    for (int s = 0; s < linear.segment_count; s++) groups += groups_of(linear.segments[s]);
    return groups;
}

inline bool is_quantised(int type) { return type != HELEXA_F32 && type != HELEXA_F16 && type != HELEXA_BF16; }

inline ActivationBlock* panel_of(void* quantised, int row, int columns) {
    return static_cast<ActivationBlock*>(quantised) +
           static_cast<size_t>(row / kPanelRows) * static_cast<size_t>(columns / kQuantBlock);
}

template <class T> T* row_of(T* rows, int row, int width) { return rows + static_cast<size_t>(row) * static_cast<size_t>(width); }

}  // namespace helexa
