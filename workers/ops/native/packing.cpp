// Repacks rows of a model file into groups of 16 output columns. Blocks of the file are runs along a row; unpacking.h reads them.
#include "packing.h"

#include <cstring>

#include "packed_weights.h"
#include "unpacking.h"

namespace helexa {
namespace {

size_t groups_of(int rows) { return (static_cast<size_t>(rows) + kLanes - 1) / kLanes; }

template <class Group> void put_weights(Group& group, int lane, const Unpacked& block) {
    std::memcpy(&group.scale[lane], &block.scale, sizeof block.scale);
    if constexpr (Group::kMinimum) std::memcpy(&group.minimum[lane], &block.minimum, sizeof block.minimum);
    if constexpr (Group::kWeights == kSuperBlock) {
        for (int part = 0; part < Group::kParts; part++) {
            group.scales[part][lane] = block.scales[part];
            if constexpr (Group::kMinimum) group.minimums[part][lane] = block.minimums[part];
        }
        for (int b = 0; b < kSuperBlock / kQuantBlock; b++) put(group.q[b], lane, block.q + b * kQuantBlock);
    } else {
        put(group.q, lane, block.q);
    }
}

// Floats of one row of columns into one lane, `kTile` columns of all 16 rows at a time: what is written stays in the cache.
template <class Group> void pack_floats(int rows, size_t columns, const uint8_t* source, Group* packed) {
    constexpr size_t kTile = 64, kBytes = sizeof packed->v[0];
    for (size_t first = 0; first < columns; first += kTile) {
        const size_t end = first + kTile < columns ? first + kTile : columns;
        for (int lane = 0; lane < rows; lane++) {
            const uint8_t* from = source + (static_cast<size_t>(lane) * columns + first) * kBytes;
            for (size_t k = first; k < end; k++, from += kBytes) std::memcpy(&packed[k].v[lane], from, kBytes);
        }
    }
}

template <class Group> void pack_as(int type, int rows, int columns, const uint8_t* source, Group* packed) {
    const size_t groups = static_cast<size_t>(columns / Group::kWeights), block_bytes = file_block_bytes(type);
    if (rows % kLanes != 0) std::memset(packed + static_cast<size_t>(rows / kLanes) * groups, 0, groups * sizeof(Group));
    if constexpr (Group::kWeights == 1) {
        for (int row = 0; row < rows; row += kLanes, source += kLanes * groups * block_bytes, packed += groups)
            pack_floats(rows - row < kLanes ? rows - row : kLanes, groups, source, packed);
    } else {
        for (int row = 0; row < rows; row++)
            for (size_t g = 0; g < groups; g++, source += block_bytes) {
                Unpacked block;
                unpack(type, source, block);
                put_weights(packed[static_cast<size_t>(row / kLanes) * groups + g], row % kLanes, block);
            }
    }
}

}  // namespace

size_t packed_bytes(int type, int rows, int columns) {
    if (type < 0 || type >= HELEXA_TYPES || rows <= 0 || columns <= 0) return 0;
    return with_layout(type, [&](auto layout) -> size_t {
        using Group = typename decltype(layout)::Group;
        if (columns % Group::kWeights != 0) return 0;
        return groups_of(rows) * static_cast<size_t>(columns / Group::kWeights) * sizeof(Group);
    });
}

void pack(int type, int rows, int columns, const void* source, void* packed) {
    with_layout(type, [&](auto layout) {
        using Group = typename decltype(layout)::Group;
        pack_as(type, rows, columns, static_cast<const uint8_t*>(source), static_cast<Group*>(packed));
    });
}

}  // namespace helexa
