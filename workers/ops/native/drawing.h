// The passes over a row of logits that drawing a token needs. Lanes are token ids; ties go to the lowest id.
#pragma once
#include "functions.h"
#include "kernels.h"
#include "rows.h"

namespace helexa {

// The highest value of each lane and where it was; reduce() picks the highest of all, the lowest id among equals.
template <class Isa> struct Best {
    typename Isa::F value = Isa::set(-__builtin_inff());
    typename Isa::I id;

    explicit Best(typename Isa::I ids) : id(ids) {}

    void see(typename Isa::F x, typename Isa::I ids) {
        const auto higher = Isa::less(value, x);  // false for NaN
        value = Isa::select(higher, x, value);
        id = Isa::select(higher, ids, id);
    }

    Peak reduce() const {
        float values[kLanes];
        int32_t ids[kLanes];
        Isa::store(values, value);
        Isa::store_int(ids, id);
        Peak best{values[0], ids[0]};
        for (int i = 1; i < kLanes; i++)
            if (values[i] > best.value || (values[i] == best.value && ids[i] < best.id)) best = {values[i], ids[i]};
        return best;
    }
};

template <class Isa> typename Isa::I first_ids() {
    static const int32_t ids[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return Isa::load_int(ids);
}

// Lanes of a row, -infinity past its end.
template <class Isa> typename Isa::F load_logits(const float* p, int lanes) {
    if (lanes == kLanes) return Isa::load(p);
    return Isa::select(Isa::first(lanes), Isa::load_first(p, lanes), Isa::set(-__builtin_inff()));
}

template <class Isa> Peak find_peak(const float* logits, int vocab, bool* has_nan) {
    auto ids = first_ids<Isa>();
    Best<Isa> best(ids);
    auto nan = Isa::unordered(Isa::zero());
    each_lanes(vocab, [&](int at, int lanes) {
        const auto x = load_logits<Isa>(logits + at, lanes);
        nan = Isa::either(nan, Isa::unordered(x));
        best.see(x, ids);
        ids = Isa::add_int(ids, Isa::set_int(kLanes));
    });
    *has_nan = Isa::any(nan);
    return best.reduce();
}

// scaled = logits / temperature; weights = exp(scaled - maximum); buckets number distances from the maximum, nearest first.
template <class Isa>
void weigh(const float* logits, int vocab, float temperature, float maximum, float* scaled, float* weights, int32_t* buckets) {
    each_lanes(vocab, [&](int at, int) {  // the arrays are padded to whole lanes
        const int lanes = vocab - at < kLanes ? vocab - at : kLanes;
        const auto z = Isa::div(load_logits<Isa>(logits + at, lanes), Isa::set(temperature));
        const auto distance = Isa::sub(Isa::set(maximum), z);
        Isa::store(scaled + at, z);
        Isa::store(weights + at, exp_not_positive<Isa>(Isa::sub(Isa::zero(), distance)));
        Isa::store_int(buckets + at,
                       Isa::to_int(Isa::min(Isa::mul(distance, Isa::set(kBucketsPerNat)), Isa::set(kBuckets - 1.0f))));
    });
}

template <class Isa> typename Isa::I mix_lanes(typename Isa::I x) {
    x = Isa::mul_int(Isa::exclusive_or(x, Isa::template shift_right<16>(x)), Isa::set_int(0x7feb352d));
    x = Isa::mul_int(Isa::exclusive_or(x, Isa::template shift_right<15>(x)), Isa::set_int(static_cast<int32_t>(0x846ca68bu)));
    return Isa::exclusive_or(x, Isa::template shift_right<16>(x));
}

// The id with the highest values / temperature + Gumbel noise, among those above `cut`, and at it up to id `last_tie`.
template <class Isa>
int32_t draw_noisy(const float* values, int vocab, float temperature, uint32_t key, float cut, int32_t last_tie) {
    auto ids = first_ids<Isa>();
    Best<Isa> best(ids);
    const auto limit = Isa::set(cut);
    each_lanes(vocab, [&](int at, int lanes) {
        const auto z = Isa::div(load_logits<Isa>(values + at, lanes), Isa::set(temperature));
        auto keep = Isa::less(limit, z);
        if (last_tie >= at + kLanes - 1)
            keep = Isa::either(keep, Isa::equal(limit, z));
        else if (last_tie >= at)
            keep = Isa::either(keep, Isa::both_masks(Isa::equal(limit, z), Isa::first(last_tie - at + 1)));
        if (Isa::any(keep)) {
            const auto hash = mix_lanes<Isa>(Isa::exclusive_or(Isa::mul_int(ids, Isa::set_int(static_cast<int32_t>(0x9e3779b1u))),
                                                               Isa::set_int(static_cast<int32_t>(key))));
            const auto high = Isa::to_float(Isa::template shift_right<8>(hash));
            const auto uniform = Isa::add(Isa::mul(high, Isa::set(0x1p-24f)), Isa::set(0x1p-25f));
            const auto exponential = Isa::sub(Isa::zero(), log_positive<Isa>(uniform));
            const auto noise = Isa::sub(Isa::zero(), log_positive<Isa>(exponential));
            best.see(Isa::select(keep, Isa::add(z, noise), Isa::set(-__builtin_inff())), ids);
        }
        ids = Isa::add_int(ids, Isa::set_int(kLanes));
    });
    return best.reduce().id;
}

}  // namespace helexa
