// The kernel table of one instruction set; each variant_*.cpp makes one, compiled with that set's flags.
#pragma once
#include "attention.h"
#include "drawing.h"
#include "kernels.h"
#include "linear.h"
#include "rows.h"

namespace helexa {

template <class Isa> const Kernels* kernels_of() {
    static const Kernels kernels = {
        Isa::kName,   linear_groups<Isa>, quantise_row<Isa>, embed_row<Isa>,     rms_norm_row<Isa>,
        add_row<Isa>, silu_mul_row<Isa>,  rotate_head<Isa>,  store_key_row<Isa>, store_value_row<Isa>,
        attend<Isa>,  find_peak<Isa>,     weigh<Isa>,        draw_noisy<Isa>,
    };
    return &kernels;
}

}  // namespace helexa
