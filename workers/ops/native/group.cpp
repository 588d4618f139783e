// The barrier between ranks, and the ops that meet at it.
#include "group.h"

#include <algorithm>

#include "engine.h"
#include "futex.h"

namespace helexa {

float* Group::next_region() {
    const uint32_t gather = line(shared_.rank).gathers.fetch_add(1, std::memory_order_relaxed);
    return shared_.regions + (gather & 1) * shared_.region_floats;
}

// Whoever is about to sleep says so first and looks at the word again; whoever arrives moves its word first and then looks who
// sleeps. Both in one order for all, so that one of the two sees the other.
bool Group::meet() {
    GroupLine& own = line(shared_.rank);
    const uint32_t target = own.arrived.fetch_add(kArrival) + kArrival;
    for (int rank = 0; rank < shared_.ranks; rank++)
        if (rank != shared_.rank && line(rank).sleeps.load() != 0) {
            wake(own.arrived, Seen::everywhere);
            break;
        }
    for (int rank = 0; rank < shared_.ranks; rank++)
        if (rank != shared_.rank && !wait_for(line(rank), target)) return false;
    return true;
}

// A rank that has come here and left since is no reason to give up: the next that is waited for will be.
bool Group::wait_for(GroupLine& other, uint32_t target) {
    const auto there = [&](uint32_t word) { return static_cast<int32_t>((word & ~kLeft) - (target & ~kLeft)) >= 0; };
    const auto over = [&](uint32_t word) { return there(word) || (word & kLeft) != 0; };
    uint32_t word = other.arrived.load(std::memory_order_acquire);
    for (int spin = 0; spin < shared_.spins && !over(word); spin++) {
        relax();
        word = other.arrived.load(std::memory_order_acquire);
    }
    if (over(word)) return there(word);
    std::atomic<uint32_t>& sleeps = line(shared_.rank).sleeps;
    sleeps.store(1);
    for (word = other.arrived.load(); !over(word); word = other.arrived.load())
        sleep_while(other.arrived, word, Seen::everywhere);
    sleeps.store(0);
    return there(word);
}

// write(i, row) puts this rank's share of row i into the whole row; read(i, row) is called once all ranks have. Rows that do not
// fit into a region go in turns.
template <class Write, class Read> void Engine::across_ranks(int rows, int width, const Write& write, const Read& read) {
    const int fit = static_cast<int>(group_.region_floats() / static_cast<size_t>(width)) / kPanelRows * kPanelRows;
    for (int first = 0; first < rows && !left_; first += fit) {
        const int count = std::min(fit, rows - first);
        float* region = group_.next_region();
        each_panel_row(count, width, [&](int i) { write(first + i, row_of(region, i, width)); });
        left_ = !group_.meet();
        if (!left_) each_panel_row(count, width, [&](int i) { read(first + i, row_of(region, i, width)); });
    }
}

void Engine::all_gather(const helexa_op& op) {
    const int width = op.width, here = columns_here(*op.pieces);
    across_ranks(
        rows_of(op), width, [&](int i, float* row) { put_pieces(*op.pieces, row_of(op.x, i, here), row); },
        [&](int i, const float* row) {
            if (op.out != nullptr) std::copy(row, row + width, row_of(op.out, i, width));
            if (op.quantised_out != nullptr)
                kernels_.quantise(row, width, panel_of(op.quantised_out, i, width), i % kPanelRows);
        });
}

void Engine::embed_across(const helexa_op& op) {
    const int width = op.width;
    across_ranks(
        rows_of(op), width,
        [&](int i, float* row) {
            const int id = inputs_->token_ids[i] - op.first_id;
            if (id >= 0 && id < op.linear->outputs) kernels_.embed(op.linear->segments[0], width, id, row);
        },
        [&](int i, const float* row) { std::copy(row, row + width, row_of(op.out, i, width)); });
}

// The next write to the buffer follows a step that rank 0 begins, which it does when it has read this one's.
void Engine::gather_logits(const helexa_op& op) {
    const int rows = rows_of(op), width = op.width, here = columns_here(*op.pieces);
    if (rows == 0) return;
    each_panel_row(rows, width,
                   [&](int i) { put_pieces(*op.pieces, row_of(op.x, i, here), row_of(group_.logits(), i, width)); });
    left_ = !group_.meet();
    if (!left_ && group_.rank() == 0 && op.out != group_.logits())
        std::copy(group_.logits(), row_of(group_.logits(), rows, width), op.out);
}

// Rows of gate and up of the columns here, by slot, become rows of all columns in `s.hidden`.
void Engine::gather_hidden(const helexa_pieces& pieces) {
    ExpertScratch& s = experts_;
    const int width = pieces.width, here = columns_here(pieces);
    const auto used = [&](int slot) { return s.row_of_slot[static_cast<size_t>(slot)] >= 0; };
    across_ranks(
        static_cast<int>(s.row_of_slot.size()), width,
        [&](int slot, float* row) {
            if (!used(slot)) return;
            float* gate = row_of(s.gate_up.data(), slot, 2 * here);
            kernels_.silu_mul(gate, gate + here, here, gate);
            put_pieces(pieces, gate, row);
        },
        [&](int slot, const float* row) {
            if (!used(slot)) return;
            std::copy(row, row + width, row_of(s.hidden.floats.data(), slot, width));
            if (s.hidden.wants_quantised)
                kernels_.quantise(row, width, panel_of(s.hidden.quantised.data(), slot, width), slot % kPanelRows);
        });
}

}  // namespace helexa
