// What Python hands to the kernel and gets back: the ctypes structures of `library.py`, field by field.
#pragma once

#include <stdint.h>

enum Type : int32_t { FLOAT16 = 0, BFLOAT16 = 1, FLOAT32 = 2 };

// Elements of both sides, contiguous, in rows of `channels` (`elements` is a multiple of it). `rows` and
// `columns` point to zeroed sums [3, rows] and [3, channels] of g*g, g*d and d*d, or are both null.
struct Request {
    const void *golden, *mine;
    double *rows, *columns;
    int64_t elements, channels;
    int32_t golden_type, mine_type;
    float atol, rtol;
};

// Sums over the positions that are finite on both sides; d is mine - golden. Positions are flat ones in the
// block, -1 where there is none. `golden_count`, `golden_low` and so on are over what is finite on that side.
struct Result {
    int64_t compared, near_zero, beyond, peak_at;
    int64_t golden_nan, golden_inf, mine_nan, mine_inf;
    int64_t common_nan, common_inf, fresh, lost, changed, first_disagreeing;
    int64_t golden_count, mine_count, identical;
    double golden, mine, difference, absolute, relative;
    double golden_squared, mine_squared, golden_mine, golden_difference, difference_squared;
    double golden_low, golden_high, golden_total, mine_low, mine_high, mine_total;
    double golden_peak, peak, relative_peak, scaled_peak;
    double weight, first, curved, scale, curved_scale, center;
};

// 1 where the block was summed; 0 where its values call for float64, and nothing in `result` counts.
using Kernel = int(const Request &, Result &);
