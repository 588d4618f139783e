// The processes that hold shards of one model: a barrier in shared memory, and two regions through which rows are put together.
#pragma once
#include <atomic>
#include <cstdint>

#include "helexa_ops.h"

namespace helexa {

// A rank's line of the board; only that rank writes it, but for the mark of a group that was left. workers/group.py has the same.
struct alignas(64) GroupLine {
    std::atomic<uint32_t> arrived;  // twice how often the rank has arrived, plus kLeft
    std::atomic<uint32_t> sleeps;   // 1 while it may sleep on another's `arrived`
    std::atomic<uint32_t> gathers;  // how many it has begun
};
static_assert(std::atomic<uint32_t>::is_always_lock_free, "a word that processes share");

class Group {
public:
    static constexpr uint32_t kLeft = 1, kArrival = 2;

    void set(const helexa_group& group) { shared_ = group; }
    int rank() const { return shared_.rank; }
    float* logits() const { return shared_.logits; }
    size_t region_floats() const { return shared_.region_floats; }

    // Where the next gather's rows go. Regions take turns: whoever writes to one again has met all ranks at the gather in
    // between, where they came only when they had read the one before. So one barrier a gather is enough.
    float* next_region();
    // Waits until every rank has arrived as often as this one. False: a rank has left, and nothing can be waited for.
    bool meet();

private:
    GroupLine& line(int rank) const { return static_cast<GroupLine*>(shared_.board)[rank]; }
    bool wait_for(GroupLine& other, uint32_t target);

    helexa_group shared_{};
};

// x is this rank's pieces side by side; they go to their places in a whole row.
inline void put_pieces(const helexa_pieces& pieces, const float* x, float* row) {
    for (int i = 0; i < pieces.count; i++) {
        for (int column = 0; column < pieces.widths[i]; column++) row[pieces.starts[i] + column] = x[column];
        x += pieces.widths[i];
    }
}

inline int columns_here(const helexa_pieces& pieces) {
    int columns = 0;
    for (int i = 0; i < pieces.count; i++) columns += pieces.widths[i];
    return columns;
}

}  // namespace helexa
