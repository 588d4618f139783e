// Runs step programs: one op after another, each divided over rows, columns or heads for the pool's threads.
#pragma once
#include <vector>

#include "dividing.h"
#include "experts.h"
#include "group.h"
#include "kernels.h"
#include "pool.h"
#include "sampling.h"

namespace helexa {

class Engine {
public:
    Engine(const Kernels& kernels, int threads, int spins);

    void set_kv(const helexa_kv& kv) { kv_ = kv; }
    void set_state(const helexa_state& state) { state_ = state; }
    void set_group(const helexa_group& group) { group_.set(group); }
    // Null, or what is wrong with the inputs, and then nothing ran; or that a rank left on the way.
    const char* run(const helexa_op* ops, int count, const helexa_inputs& inputs);
    void sample(const float* logits, int rows, int vocab, size_t stride, const helexa_sample_rows& rules, int32_t* ids);

private:
    const char* check(const helexa_op* ops, int count, const helexa_inputs& inputs) const;
    void run_op(const helexa_op& op);
    void linear(const helexa_op& op);
    using GatedKernel = void (*)(const float* gate, const float* up, int columns, float* out);
    void linear_groups(const helexa_linear& weight, int first, int last, const float* x, const ActivationBlock* quantised,
                       int rows, float* out) const;
    void linear_gated(const helexa_op& op, GatedKernel gated);
    void norm_heads(const helexa_op& op);
    void experts(const helexa_op& op);
    void choose_experts(const helexa_op& op);
    void make_expert_rows(const helexa_linear* weights, int count, ExpertRows& rows) const;
    void expert_linears(const helexa_linear* weights, ExpertRows& x, float* out);
    template <class Work> void each_slot(int cost, const Work& work);
    void rope_kv(const helexa_op& op);
    void attention(const helexa_op& op);

    // recurrent.cpp
    static bool uses_state(const helexa_op& op);
    const char* check_state(const helexa_op* ops, int count, const helexa_inputs& inputs) const;
    void causal_conv(const helexa_op& op);
    void delta_rule(const helexa_op& op);
    float* state_of(int sequence, int layer) const;
    template <class Work> void each_sequence_part(int items, const Work& work);

    // group.cpp
    template <class Write, class Read> void across_ranks(int rows, int width, const Write& write, const Read& read);
    void all_gather(const helexa_op& op);
    void embed_across(const helexa_op& op);
    void gather_logits(const helexa_op& op);
    void gather_hidden(const helexa_pieces& pieces);

    int rows_of(const helexa_op& op) const { return op.on_logit_rows ? inputs_->logit_rows : inputs_->rows; }
    template <class Row> void each_row(const helexa_op& op, int cost, const Row& row);
    template <class Row> void each_row_quantised(const helexa_op& op, int cost, const Row& row);
    template <class Row> void each_panel_row(int rows, int cost, const Row& row);
    uint8_t* kv_head(int layer, int block, int head) const;

    const Kernels& kernels_;
    Pool pool_;
    helexa_kv kv_{};
    helexa_state state_{};
    const helexa_inputs* inputs_ = nullptr;
    std::vector<DrawScratch> scratch_;             // a thread each
    std::vector<std::vector<float>> row_scratch_;  // a thread each: an output row that nobody reads as floats
    std::vector<AttentionTile> tiles_;
    ExpertScratch experts_;
    Group group_;
    bool left_ = false;  // a rank has left the group, in the step in hand
};

// Rows of one panel of quantised activations share cache lines, so they stay on one thread.
template <class Row> void Engine::each_row(const helexa_op& op, int cost, const Row& row) {
    const int rows = rows_of(op), together = op.quantised_out != nullptr ? kPanelRows : 1;
    const int items = (rows + together - 1) / together;
    const int chunks = static_cast<int64_t>(rows) * cost < kSerialCost ? 1 : chunks_for(items, pool_.threads());
    pool_.run(chunks, [&](int chunk, int thread) {
        const int end = std::min(rows, together * first_of(chunk + 1, chunks, items));
        for (int i = together * first_of(chunk, chunks, items); i < end; i++) row(i, thread);
    });
}

// row(i) for rows by themselves, those of one panel on one thread.
template <class Row> void Engine::each_panel_row(int rows, int cost, const Row& row) {
    const int panels = (rows + kPanelRows - 1) / kPanelRows;
    const int chunks = static_cast<int64_t>(rows) * cost < kSerialCost ? 1 : chunks_for(panels, pool_.threads());
    pool_.run(chunks, [&](int chunk, int) {
        const int end = std::min(rows, kPanelRows * first_of(chunk + 1, chunks, panels));
        for (int i = kPanelRows * first_of(chunk, chunks, panels); i < end; i++) row(i);
    });
}

}  // namespace helexa
