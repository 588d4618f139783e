// Repacks rows of a model file into groups of 16 output columns. The GGUF layouts: Q4_0 {half d; u8 q[16]}, Q4_1 {half d, m;
// u8 q[16]}, Q8_0 {half d; i8 q[32]}, one block for 32 neighbours of a row.
#include "packing.h"

#include <cstring>

#include "layout.h"

namespace helexa {
namespace {

size_t groups_of(int rows) { return (static_cast<size_t>(rows) + kLanes - 1) / kLanes; }

template <class Group> const uint8_t* take_scales(Group& group, int lane, const uint8_t* source) {
    std::memcpy(&group.scale[lane], source, 2);
    return source + 2;
}

const uint8_t* take_scales(Q4_1Group& group, int lane, const uint8_t* source) {
    std::memcpy(&group.scale[lane], source, 2);
    std::memcpy(&group.minimum[lane], source + 2, 2);
    return source + 4;
}

// GGUF's nibbles: byte i of a block holds weight i in its low half, weight i + 16 in its high half.
template <class Group> void take_weights(Group& group, int lane, const uint8_t* q) {
    for (int k = 0; k < kQuantBlock; k++) {
        const int nibble = k < 16 ? q[k] & 15 : q[k - 16] >> 4;
        group.q[k / 8][lane][k % 2] = static_cast<uint16_t>(group.q[k / 8][lane][k % 2] | nibble << nibble_shift(k));
    }
}

void take_weights(Q8_0Group& group, int lane, const uint8_t* q) {
    for (auto& pairs : group.q) std::memcpy(pairs[lane], q, 2), q += 2;
}

template <class Group> void pack_blocks(int rows, int columns, const uint8_t* source, size_t source_block, Group* packed) {
    const size_t blocks = static_cast<size_t>(columns / kQuantBlock);
    std::memset(packed, 0, groups_of(rows) * blocks * sizeof(Group));
    for (size_t row = 0; row < static_cast<size_t>(rows); row++) {
        const int lane = static_cast<int>(row % kLanes);
        for (size_t block = 0; block < blocks; block++) {
            Group& group = packed[row / kLanes * blocks + block];
            take_weights(group, lane, take_scales(group, lane, source + (row * blocks + block) * source_block));
        }
    }
}

template <class Weight> void pack_floats(int rows, int columns, const uint8_t* source, Weight* packed) {
    const size_t width = static_cast<size_t>(columns);
    std::memset(packed, 0, groups_of(rows) * width * kLanes * sizeof(Weight));
    for (size_t row = 0; row < static_cast<size_t>(rows); row++)
        for (size_t k = 0; k < width; k++)
            std::memcpy(&packed[(row / kLanes * width + k) * kLanes + row % kLanes], source + (row * width + k) * sizeof(Weight),
                        sizeof(Weight));
}

}  // namespace

size_t packed_bytes(int type, int rows, int columns) {
    if (rows <= 0 || columns <= 0) return 0;
    const bool quantised = type == HELEXA_Q4_0 || type == HELEXA_Q4_1 || type == HELEXA_Q8_0;
    if (quantised && columns % kQuantBlock != 0) return 0;
    const size_t blocks = groups_of(rows) * static_cast<size_t>(columns / kQuantBlock);
    const size_t weights = groups_of(rows) * kLanes * static_cast<size_t>(columns);
    switch (type) {
        case HELEXA_F32: return weights * 4;
        case HELEXA_F16:
        case HELEXA_BF16: return weights * 2;
        case HELEXA_Q4_0: return blocks * sizeof(Q4_0Group);
        case HELEXA_Q4_1: return blocks * sizeof(Q4_1Group);
        case HELEXA_Q8_0: return blocks * sizeof(Q8_0Group);
        default: return 0;
    }
}

void pack(int type, int rows, int columns, const void* source, void* packed) {
    const uint8_t* bytes = static_cast<const uint8_t*>(source);
    switch (type) {
        case HELEXA_Q4_0: return pack_blocks(rows, columns, bytes, 18, static_cast<Q4_0Group*>(packed));
        case HELEXA_Q4_1: return pack_blocks(rows, columns, bytes, 20, static_cast<Q4_1Group*>(packed));
        case HELEXA_Q8_0: return pack_blocks(rows, columns, bytes, 34, static_cast<Q8_0Group*>(packed));
        case HELEXA_F32: return pack_floats(rows, columns, bytes, static_cast<uint32_t*>(packed));
        default: return pack_floats(rows, columns, bytes, static_cast<uint16_t*>(packed));
    }
}

}  // namespace helexa
