// The engine's ops of recurrent layers: divided over sequences, channels and heads, never over the tokens of a sequence.
#include <algorithm>

#include "engine.h"

namespace helexa {
namespace {

constexpr int kConvChannels = 256;  // of a sequence that one thread convolves at a time
constexpr int kRecurrentChunksPerThread = 8;

int key_head_of(const helexa_state& state, int value_head) {
    return state.tiled != 0 ? value_head % state.key_heads : value_head / (state.value_heads / state.key_heads);
}

}  // namespace

bool Engine::uses_state(const helexa_op& op) { return op.kind == HELEXA_CAUSAL_CONV || op.kind == HELEXA_DELTA_RULE; }

const char* Engine::check_state(const helexa_op* ops, int count, const helexa_inputs& inputs) const {
    if (!std::any_of(ops, ops + count, uses_state)) return nullptr;
    for (int i = 0; i < count; i++) {
        if (!uses_state(ops[i])) continue;
        const int width =
            ops[i].kind == HELEXA_CAUSAL_CONV ? conv_channels(state_) : state_.value_heads * state_.value_dim;
        if (state_.data == nullptr || ops[i].layer < 0 || ops[i].layer >= state_.layers || ops[i].width != width)
            return "the recurrent state has another shape than the model";
    }
    if (inputs.state_slots == nullptr) return "the sequences have no state slots";
    std::vector<bool> taken(static_cast<size_t>(state_.slots));
    for (int sequence = 0; sequence < inputs.sequences; sequence++) {
        const int slot = inputs.state_slots[sequence];
        if (slot < 0 || slot >= state_.slots) return "a state slot does not exist";
        if (taken[static_cast<size_t>(slot)]) return "two sequences have one state slot";
        taken[static_cast<size_t>(slot)] = true;
    }
    return nullptr;
}

float* Engine::state_of(int sequence, int layer) const {
    const size_t slot = static_cast<size_t>(inputs_->state_slots[sequence]);
    const size_t index = slot * static_cast<size_t>(state_.layers) + static_cast<size_t>(layer);
    return static_cast<float*>(state_.data) + index * layer_state_floats(state_);
}

// work(sequence, item) for each of `items` parts of each sequence that has rows.
template <class Work> void Engine::each_sequence_part(int items, const Work& work) {
    const int total = inputs_->sequences * items, chunks = std::min(total, kRecurrentChunksPerThread * pool_.threads());
    pool_.run(chunks, [&](int chunk, int) {
        const auto first = [&](int c) { return static_cast<int>(static_cast<int64_t>(total) * c / chunks); };
        for (int i = first(chunk); i < first(chunk + 1); i++) {
            const int sequence = i / items;
            if (inputs_->row_start[sequence] < inputs_->row_start[sequence + 1]) work(sequence, i % items);
        }
    });
}

void Engine::causal_conv(const helexa_op& op) {
    const int channels = op.width;
    each_sequence_part((channels + kConvChannels - 1) / kConvChannels, [&](int sequence, int part) {
        const int row = inputs_->row_start[sequence];
        const size_t start = static_cast<size_t>(row) * static_cast<size_t>(channels);
        ConvTile tile{};
        tile.x = op.x + start;
        tile.out = op.out + start;
        tile.weight = op.vector;
        tile.state = state_of(sequence, op.layer);
        tile.rows = inputs_->row_start[sequence + 1] - row;
        tile.channels = channels;
        tile.kernel = state_.kernel;
        tile.first = part * kConvChannels;
        tile.last = std::min(channels, tile.first + kConvChannels);
        if (inputs_->positions[row] == 0)
            for (int i = 0; i < tile.kernel - 1; i++) {
                float* past = tile.state + static_cast<size_t>(i) * static_cast<size_t>(channels);
                std::fill(past + tile.first, past + tile.last, 0.0f);
            }
        kernels_.convolve(tile);
    });
}

void Engine::delta_rule(const helexa_op& op) {
    const int groups = value_groups(state_), width = conv_channels(state_), keys = state_.key_heads * state_.key_dim;
    each_sequence_part(state_.value_heads * groups, [&](int sequence, int part) {
        const int head = part / groups, column = part % groups * kLanes, row = inputs_->row_start[sequence];
        const float* x = op.x + static_cast<size_t>(row) * static_cast<size_t>(width);
        DeltaTile tile{};
        tile.query = x + key_head_of(state_, head) * state_.key_dim;
        tile.key = tile.query + keys;
        tile.value = x + 2 * keys + head * state_.value_dim + column;
        tile.stride = static_cast<size_t>(width);
        tile.gate_stride = static_cast<size_t>(2 * state_.value_heads);
        tile.gates = op.y + static_cast<size_t>(row) * tile.gate_stride + head;
        tile.out_stride = static_cast<size_t>(op.width);
        tile.out = op.out + static_cast<size_t>(row) * tile.out_stride + head * state_.value_dim + column;
        tile.rows = inputs_->row_start[sequence + 1] - row;
        tile.key_dim = state_.key_dim;
        tile.lanes = std::min(kLanes, state_.value_dim - column);
        const size_t floats = static_cast<size_t>(padded_key_dim(state_.key_dim)) * kLanes;
        tile.state = state_of(sequence, op.layer) + conv_state_floats(state_) + static_cast<size_t>(part) * floats;
        if (inputs_->positions[row] == 0) std::fill(tile.state, tile.state + floats, 0.0f);
        kernels_.delta_rule(tile);
    });
}

}  // namespace helexa
