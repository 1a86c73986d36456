// Vectors of LANES floats by the compiler's extensions: what the instruction set has no word for is written out.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <xmmintrin.h>
#endif

// Keeps a product from being fused with the sum that follows: it is rounded as NumPy rounds it.
#if defined __x86_64__
#define KEEP_ROUNDED(values) asm("" : "+v"(values))
#elif defined __aarch64__
#define KEEP_ROUNDED(values) asm("" : "+w"(values))
#else
#define KEEP_ROUNDED(values) asm("" : "+m"(values))
#endif

namespace {

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint16_t Shorts __attribute__((vector_size(2 * LANES)));

inline Ints lane_numbers() {
    Ints result{};
    for (int i = 0; i < LANES; i++) result[i] = i;
    return result;
}
inline Floats all(float value) { return value - Floats{}; }
inline Floats as_floats(Ints bits) { return (Floats)bits; }
inline Ints as_ints(Floats values) { return (Ints)values; }
inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }
inline Floats smaller(Floats a, Floats b) { return a < b ? a : b; }
inline Ints larger(Ints a, Ints b) { return a > b ? a : b; }
inline Ints size_bits(Floats values) { return as_ints(values) & 0x7fffffff; }
inline Floats size(Floats values) { return as_floats(size_bits(values)); }

template <class V> inline V load(const void *from) {
    V values;
    memcpy(&values, from, sizeof values);
    return values;
}
inline void store(float *to, Floats values) { memcpy(to, &values, sizeof values); }

template <class V> inline auto folded(V values, bool most) {
    auto result = values[0];
    for (int i = 1; i < LANES; i++)
        if (most ? values[i] > result : values[i] < result) result = values[i];
    return result;
}

template <int COUNT> struct Lanes {
    typedef float Vector __attribute__((vector_size(4 * COUNT)));
    static float total(Vector values) {
        typename Lanes<COUNT / 2>::Vector halves[2];
        memcpy(halves, &values, sizeof values);
        return Lanes<COUNT / 2>::total(halves[0] + halves[1]);
    }
};
template <> struct Lanes<4> {
    typedef float Vector __attribute__((vector_size(16)));
    static float total(Vector values) { return (values[0] + values[2]) + (values[1] + values[3]); }
};
inline float total(Floats values) { return Lanes<LANES>::total(values); }

inline int64_t count(Ints flags) {  // of comparisons, which are -1
    int64_t result = 0;
    for (int i = 0; i < LANES; i++) result -= flags[i];
    return result;
}

// As long as one lives, subnormal numbers are 0, read or computed: a product with one takes a hundred times the
// time of another on Intel. Where nothing says so they stay what they are. What is computed meanwhile is loaded
// and stored meanwhile, so that the compiler does not move it out.
class Flushed {
  public:
#ifdef __SSE2__
    Flushed() : _before(_mm_getcsr()) { set(_before | 0x8040); }
    ~Flushed() { set(_before); }

  private:
    unsigned _before;
    static void set(unsigned mode) {
        asm volatile("" ::: "memory");
        _mm_setcsr(mode);
        asm volatile("" ::: "memory");
    }
#else
    Flushed() {}
    ~Flushed() {}
#endif
};

// x * 2^LIFT for 0 <= x <= 1e15, from its bits: exact for subnormal numbers too, also where they are flushed.
constexpr int LIFT = 64;
inline Floats lifted(Floats x) {
    Ints bits = as_ints(x);
    Floats subnormal = __builtin_convertvector(bits, Floats) * 0x1p-85f;  // bits * 2^-149 * 2^LIFT
    return as_floats(bits < (1 << 23) ? as_ints(subnormal) : bits + (LIFT << 23));
}

// A power of two that brings `peak` to 2^49, or as far as it goes. Its squares sum up in float32, and what is
// smaller by up to 2^112 is not lost beside it.
inline double lever(float peak) {
    int exponent;
    frexpf(peak, &exponent);
    return peak > 0 ? ldexp(1, exponent < -51 ? 100 : 49 - exponent) : 1;
}

// e^x for -87 <= x <= 80, to 1e-7 relative: 2^n e^r with |r| <= log(2)/2.
struct Power {
    Floats r, n;
    Ints shift;
};
inline Power reduced(Floats x) {
    constexpr float magic = 0x1.8p23f;
    Floats turned = x * 1.44269504f + magic;
    Floats n = turned - magic;
    return {(x - n * 0.693359375f) + n * 2.12194440e-4f, n, as_ints(turned) << 23};
}
inline Floats times(Floats values, Ints shift) { return as_floats(as_ints(values) + shift); }
// (e^r - 1 - r) / r^2 for |r| <= log(2)/2.
inline Floats bend(Floats r) {
    return ((((r * 1.3901287e-3f + 8.3631463e-3f) * r + 4.1666854e-2f) * r + 1.66665778e-1f) * r + 0.5f);
}
inline Floats exponential(Floats x) {
    Power p = reduced(larger(x, all(-87.0f)));
    return times((p.r * p.r) * bend(p.r) + p.r + 1.0f, p.shift);
}

}  // namespace
