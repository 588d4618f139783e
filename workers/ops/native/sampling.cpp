#include "sampling.h"

#include <algorithm>
#include <cmath>

namespace helexa {
namespace {

// A set of tokens: those with scaled logits above `value`, and those at it with ids up to `last_tie`.
struct Cut {
    float value = -INFINITY;
    int32_t last_tie = INT32_MAX;
};

uint32_t mix(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

uint32_t draw_key(const DrawRule& rule) {
    const uint32_t position = mix(static_cast<uint32_t>(rule.position));
    return mix(static_cast<uint32_t>(rule.seed) ^ mix(static_cast<uint32_t>(rule.seed >> 32) ^ position));
}

// Tokens of one row by bucket of distance from the maximum: sorting is needed only within a bucket.
class Filter {
public:
    Filter(const DrawScratch& scratch, int vocab, float threshold) : scratch_(scratch), vocab_(vocab), threshold_(threshold) {
        for (int i = 0; i < vocab; i++) {
            if (scratch.scaled[at(i)] < threshold) continue;
            const size_t bucket = at(scratch.buckets[at(i)]);
            counts_[bucket]++;
            masses_[bucket] += static_cast<double>(scratch.weights[at(i)]);
            kept_++;
        }
    }

    int kept() const { return kept_; }

    // The best `count` tokens, best first.
    void best(int count, std::vector<std::pair<float, int32_t>>& out) const {
        int seen = 0, last = 0;
        while (last < kBuckets - 1 && (seen += counts_[at(last)]) < count) last++;
        gather(0, last, out);
        if (static_cast<int>(out.size()) > count) out.resize(static_cast<size_t>(count));
    }

    // The smallest best set with at least `share` of the weight.
    Cut nucleus(double share, std::vector<std::pair<float, int32_t>>& scratch) const {
        double total = 0, before = 0;
        for (double mass : masses_) total += mass;
        int bucket = 0;
        while (bucket < kBuckets - 1 && before + masses_[at(bucket)] < share * total) before += masses_[at(bucket++)];
        gather(bucket, bucket, scratch);
        return crossing(scratch, share * total, before);
    }

    // The cut after the first of `ranked`, best first, at which the weight so far reaches `target`.
    Cut crossing(const std::vector<std::pair<float, int32_t>>& ranked, double target, double sum) const {
        for (const auto& [value, id] : ranked) {
            sum += static_cast<double>(scratch_.weights[at(id)]);
            if (sum >= target) return {value, id};
        }
        return ranked.empty() ? Cut{threshold_} : Cut{ranked.back().first, ranked.back().second};
    }

private:
    static size_t at(int i) { return static_cast<size_t>(i); }

    void gather(int first, int last, std::vector<std::pair<float, int32_t>>& out) const {
        out.clear();
        for (int i = 0; i < vocab_; i++) {
            const int bucket = scratch_.buckets[at(i)];
            if (bucket >= first && bucket <= last && !(scratch_.scaled[at(i)] < threshold_))
                out.emplace_back(scratch_.scaled[at(i)], i);
        }
        std::sort(out.begin(), out.end(),
                  [](const auto& a, const auto& b) { return a.first > b.first || (a.first == b.first && a.second < b.second); });
    }

    const DrawScratch& scratch_;
    const int vocab_;
    const float threshold_;
    int kept_ = 0;
    int counts_[kBuckets] = {};
    double masses_[kBuckets] = {};
};

// min_p, then top_k, then top_p.
Cut filter(const DrawRule& rule, float maximum, int vocab, DrawScratch& scratch) {
    const float threshold = maximum + rule.log_min_p;
    const Filter tokens(scratch, vocab, threshold);
    if (rule.top_k > 0 && rule.top_k < tokens.kept()) {
        tokens.best(rule.top_k, scratch.candidates);
        double total = 0;
        for (const auto& candidate : scratch.candidates)
            total += static_cast<double>(scratch.weights[static_cast<size_t>(candidate.second)]);
        const double share = rule.top_p < 1.0f ? static_cast<double>(rule.top_p) : 2.0;
        return tokens.crossing(scratch.candidates, share * total, 0.0);
    }
    if (rule.top_p < 1.0f) return tokens.nucleus(static_cast<double>(rule.top_p), scratch.candidates);
    return {threshold, INT32_MAX};
}

}  // namespace

int32_t draw(const Kernels& kernels, const float* logits, int vocab, const DrawRule& rule, DrawScratch& scratch) {
    bool has_nan = false;
    const Peak peak = kernels.find_peak(logits, vocab, &has_nan);
    if (has_nan || !std::isfinite(peak.value)) return -1;
    const float maximum = peak.value / rule.temperature;
    if (!std::isfinite(maximum)) return peak.id;  // greedy, or so cold that it is
    const uint32_t key = draw_key(rule);
    const bool filtered = rule.top_k > 0 || rule.top_p < 1.0f || rule.log_min_p > -INFINITY;
    if (!filtered) return kernels.draw_noisy(logits, vocab, rule.temperature, key, -INFINITY, INT32_MAX);
    const size_t padded = (static_cast<size_t>(vocab) + kLanes - 1) / kLanes * kLanes;
    if (scratch.scaled.size() < padded)
        scratch.scaled.resize(padded), scratch.weights.resize(padded), scratch.buckets.resize(padded);
    kernels.weigh(logits, vocab, rule.temperature, maximum, scratch.scaled.data(), scratch.weights.data(),
                  scratch.buckets.data());
    const Cut cut = filter(rule, maximum, vocab, scratch);
    return kernels.draw_noisy(scratch.scaled.data(), vocab, 1.0f, key, cut.value, cut.last_tie);
}

}  // namespace helexa
