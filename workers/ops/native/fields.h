// Weights of 2, 3, 5 and 6 bits: four of a lane become the bytes of two words, then pairs of 16 bits, by a few shifts and masks.
#pragma once
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "inlining.h"
#include "packed_weights.h"

namespace helexa {

// The fields `Field` of Bits bits in both bytes of a lane's words, moved to bit `To` of their byte.
template <class Isa, int Bits, int Field, int To>
HELEXA_INLINE typename Isa::Pairs fields_at(const uint16_t (*words)[kLanes][2]) {
    constexpr int kFields = 8 / Bits, kFrom = Field % kFields * Bits;
    constexpr int kMask = ((1 << Bits) - 1) << To;
    return Isa::keep(Isa::template move<To - kFrom>(Isa::words(words[Field / kFields])), kMask << 8 | kMask);
}

// Weights 4 * Four .. 4 * Four + 3 of each lane, before anything is taken off: a byte each.
template <class Isa, int Four, int Low, int High, int Less>
HELEXA_INLINE typename Isa::Pairs four_weights(const Fields<Low, High, Less>& q) {
    const auto low = fields_at<Isa, Low, Four, 0>(q.words);
    if constexpr (High > 0) return Isa::join(low, fields_at<Isa, High, Four, Low>(q.words + Low));
    return low;
}

// The first two of four weights, and the others.
template <class Isa, int Less> HELEXA_INLINE typename Isa::Pairs lower_pairs(typename Isa::Pairs four) {
    const auto pairs = Isa::keep(four, 0xff);
    if constexpr (Less > 0) return Isa::less(pairs, Less);
    return pairs;
}
template <class Isa, int Less> HELEXA_INLINE typename Isa::Pairs upper_pairs(typename Isa::Pairs four) {
    const auto pairs = Isa::template move<-8>(four);
    if constexpr (Less > 0) return Isa::less(pairs, Less);
    return pairs;
}

template <class Isa, int Four = 0, int Low, int High, int Less>
HELEXA_INLINE void expand_block(const Fields<Low, High, Less>& from, Words& to) {
    const auto bytes = four_weights<Isa, Four>(from);
    Isa::store_words(to[2 * Four], lower_pairs<Isa, Less>(bytes));
    Isa::store_words(to[2 * Four + 1], upper_pairs<Isa, Less>(bytes));
    if constexpr (Four + 1 < kQuantBlock / 4) expand_block<Isa, Four + 1>(from, to);
}

// The same weights with their integers as Words.
template <class Isa, class Group> void expand(const Group& from, typename Group::template With<Words>& to) {
    std::memcpy(&to, &from, offsetof(Group, q));  // scales and minimums, which lie before the integers
    if constexpr (Group::kWeights == kQuantBlock)
        expand_block<Isa>(from.q, to.q);
    else
        for (int b = 0; b < kSuperBlock / kQuantBlock; b++) expand_block<Isa>(from.q[b], to.q[b]);
}

template <class Group, class = void> inline constexpr bool kHasFields = false;
template <class Group> inline constexpr bool kHasFields<Group, std::void_t<decltype(Group::q)>> =
    kAreFields<std::remove_all_extents_t<decltype(Group::q)>>;
template <class Group> inline constexpr bool kExpanded = false;
template <template <class> class Of> inline constexpr bool kExpanded<Of<Words>> = true;
template <template <class, int> class Of, int Parts> inline constexpr bool kExpanded<Of<Words, Parts>> = true;

}  // namespace helexa
