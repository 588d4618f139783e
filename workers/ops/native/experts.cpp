// A mixture of experts (Shazeer et al. 2017): each row goes through the experts that its router scores choose, and their outputs
// are summed by falling score. Rows are grouped by expert, so that an expert's weights are read once; a row's sums are its own.
#include <algorithm>

#include "dividing.h"
#include "engine.h"

namespace helexa {
namespace {

// The `top_k` highest scores, falling, the lowest expert first among equals; where scores are NaN the choice is any, and the
// row's weights are NaN.
void choose(const float* scores, int count, int top_k, int32_t* chosen) {
    for (int rank = 0; rank < top_k; rank++) {
        int best = -1;
        for (int expert = 0; expert < count; expert++) {
            if (std::find(chosen, chosen + rank, expert) != chosen + rank) continue;
            if (best < 0 || scores[expert] > scores[best]) best = expert;
        }
        chosen[rank] = best;
    }
}

// Gives each (row, rank) a slot, an expert's slots side by side in rising row.
void group_by_expert(int rows, const helexa_experts& experts, ExpertScratch& s) {
    std::vector<int> held(static_cast<size_t>(experts.count), 0);
    const size_t pairs = static_cast<size_t>(rows) * static_cast<size_t>(experts.top_k);
    for (size_t pair = 0; pair < pairs; pair++) held[static_cast<size_t>(s.chosen[pair])]++;
    s.runs.clear();
    int slot = 0;
    std::vector<int> next(held.size());
    for (int expert = 0; expert < experts.count; expert++) {
        const int count = held[static_cast<size_t>(expert)];
        next[static_cast<size_t>(expert)] = slot;
        if (count == 0) continue;
        s.runs.push_back({expert, slot, count});
        slot += (count + kPanelRows - 1) / kPanelRows * kPanelRows;
    }
    s.slots.resize(pairs);
    s.row_of_slot.assign(static_cast<size_t>(slot), -1);
    for (size_t pair = 0; pair < pairs; pair++) {
        s.slots[pair] = next[static_cast<size_t>(s.chosen[pair])]++;
        s.row_of_slot[static_cast<size_t>(s.slots[pair])] = static_cast<int32_t>(pair / static_cast<size_t>(experts.top_k));
    }
}

// Experts may differ in the types of their weights.
bool any_quantised(const helexa_linear* linears, int count) {
    return std::any_of(linears, linears + count, [](const helexa_linear& linear) {
        return std::any_of(linear.segments, linear.segments + linear.segment_count,
                           [](const helexa_segment& segment) { return is_quantised(segment.type); });
    });
}

template <class T> void grow(std::vector<T>& values, size_t size) {
    if (values.size() < size) values.resize(size);
}

}  // namespace

// Writes each row's experts by falling score, and their weights: softmax over all experts, or over the chosen ones.
void Engine::choose_experts(const helexa_op& op) {
    const int count = op.experts->count, top_k = op.experts->top_k, rows = rows_of(op);
    ExpertScratch& s = experts_;
    grow(s.probabilities, static_cast<size_t>(rows) * static_cast<size_t>(count));
    grow(s.chosen, static_cast<size_t>(rows) * static_cast<size_t>(top_k));
    grow(s.weights, static_cast<size_t>(rows) * static_cast<size_t>(top_k));
    each_row(op, count * top_k, [&](int i, int) {
        const float* scores = row_of(op.y, i, count);
        float* probabilities = row_of(s.probabilities.data(), i, count);
        int32_t* chosen = row_of(s.chosen.data(), i, top_k);
        kernels_.soft_weights(scores, count, probabilities);
        choose(scores, count, top_k, chosen);
        float all = 0.0f, best = 0.0f;
        for (int expert = 0; expert < count; expert++) all += probabilities[expert];
        for (int rank = 0; rank < top_k; rank++) best += probabilities[chosen[rank]];
        const float total = op.experts->normalise ? best + 0.0f * all : all;  // a NaN among those not chosen shows too
        for (int rank = 0; rank < top_k; rank++) row_of(s.weights.data(), i, top_k)[rank] = probabilities[chosen[rank]] / total;
    });
}

// work(slot) for each slot that a row has; a panel stays on one thread.
template <class Work> void Engine::each_slot(int cost, const Work& work) {
    const int slots = static_cast<int>(experts_.row_of_slot.size()), panels = slots / kPanelRows;
    const int chunks = static_cast<int64_t>(slots) * cost < kSerialCost ? 1 : chunks_for(panels, pool_.threads());
    pool_.run(chunks, [&](int chunk, int) {
        const int end = kPanelRows * first_of(chunk + 1, chunks, panels);
        for (int slot = kPanelRows * first_of(chunk, chunks, panels); slot < end; slot++)
            if (experts_.row_of_slot[static_cast<size_t>(slot)] >= 0) work(slot);
    });
}

// The same linear of all experts that have rows, its columns dealt as one list.
void Engine::expert_linears(const helexa_linear* weights, ExpertRows& x, float* out) {
    const auto& runs = experts_.runs;
    const int inputs = weights[0].inputs, per_expert = groups_of(weights[0]);
    const int groups = per_expert * static_cast<int>(runs.size()), chunks = chunks_for(groups, pool_.threads());
    pool_.run(chunks, [&](int chunk, int) {
        int group = first_of(chunk, chunks, groups);
        const int end = first_of(chunk + 1, chunks, groups);
        while (group < end) {
            const ExpertRun& run = runs[static_cast<size_t>(group / per_expert)];
            const int first = group % per_expert, last = std::min(per_expert, first + end - group);
            const helexa_linear& weight = weights[run.expert];
            linear_groups(weight, first, last, row_of(x.floats.data(), run.first_slot, inputs),
                          panel_of(x.quantised.data(), run.first_slot, inputs), run.rows,
                          row_of(out, run.first_slot, weight.outputs));
            group += last - first;
        }
    });
}

// Makes room for every slot's rows as the linears of `weights` read them.
void Engine::make_expert_rows(const helexa_linear* weights, int count, ExpertRows& rows) const {
    const size_t slots = experts_.row_of_slot.size(), columns = static_cast<size_t>(weights[0].inputs);
    rows.wants_quantised = any_quantised(weights, count);
    grow(rows.floats, slots * columns);
    if (rows.wants_quantised) grow(rows.quantised, slots / kPanelRows * (columns / kQuantBlock));
}

void Engine::experts(const helexa_op& op) {
    const helexa_experts& experts = *op.experts;
    const int rows = rows_of(op), width = op.width, top_k = experts.top_k;
    const int inputs = experts.gate_up[0].inputs, hidden = experts.gate_up[0].outputs / 2;
    ExpertScratch& s = experts_;
    if (rows == 0) return;
    choose_experts(op);
    group_by_expert(rows, experts, s);
    const size_t slots = s.row_of_slot.size();

    make_expert_rows(experts.gate_up, experts.count, s.inputs);
    each_slot(inputs, [&](int slot) {
        const float* x = row_of(op.x, s.row_of_slot[static_cast<size_t>(slot)], inputs);
        std::copy(x, x + inputs, row_of(s.inputs.floats.data(), slot, inputs));
        if (s.inputs.wants_quantised)
            kernels_.quantise(x, inputs, panel_of(s.inputs.quantised.data(), slot, inputs), slot % kPanelRows);
    });
    grow(s.gate_up, slots * 2 * static_cast<size_t>(hidden));
    expert_linears(experts.gate_up, s.inputs, s.gate_up.data());

    make_expert_rows(experts.down, experts.count, s.hidden);
    const auto join_sides = [&](int slot) {
        const float* gate = row_of(s.gate_up.data(), slot, 2 * hidden);
        float* out = row_of(s.hidden.floats.data(), slot, hidden);
        kernels_.silu_mul(gate, gate + hidden, hidden, out);
        if (s.hidden.wants_quantised)
            kernels_.quantise(out, hidden, panel_of(s.hidden.quantised.data(), slot, hidden), slot % kPanelRows);
    };
    if (experts.hidden != nullptr)
        gather_hidden(*experts.hidden);
    else
        each_slot(2 * hidden, join_sides);
    if (left_) return;
    grow(s.outputs, slots * static_cast<size_t>(width));
    expert_linears(experts.down, s.hidden, s.outputs.data());

    each_row(op, top_k * width, [&](int i, int) {
        const int32_t* slot = row_of(s.slots.data(), i, top_k);
        const float* weight = row_of(s.weights.data(), i, top_k);
        float* out = row_of(op.out, i, width);
        kernels_.scale(row_of(s.outputs.data(), slot[0], width), weight[0], width, out);
        for (int rank = 1; rank < top_k; rank++)
            kernels_.add_scaled(row_of(s.outputs.data(), slot[rank], width), weight[rank], width, out);
    });
}

}  // namespace helexa
