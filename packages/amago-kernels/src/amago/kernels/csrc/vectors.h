// Vectors as wide as the processor's registers, and the sums over the lanes of many of them at once.
//
// Adding up the lanes of one vector takes as long as a dozen products. Where there is a vector of products for each
// of as many dot products as a vector has lanes, folding them in pairs gives all sums in one vector for a quarter
// of that.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "numbers.h"

namespace amago {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class A>
struct VectorOf {
    typedef A type __attribute__((vector_size(kVectorBytes)));
};
template <class A>
using Vector = typename VectorOf<A>::type;
template <class A>
constexpr int kLanes = kVectorBytes / sizeof(A);

// As many neighbouring numbers as there are lanes.
template <class A, class T>
inline Vector<A> load_vector(const T* from) {
    Vector<A> vector;
    if constexpr (std::is_same_v<T, A>) {
        std::memcpy(&vector, from, sizeof vector);
    } else {
        A numbers[kLanes<A>];
        for (int lane = 0; lane < kLanes<A>; ++lane) numbers[lane] = load(from[lane]);
        std::memcpy(&vector, numbers, sizeof vector);
    }
    return vector;
}
template <class A>
inline void store_vector(A* to, Vector<A> vector) {
    std::memcpy(to, &vector, sizeof vector);
}

template <int WIDTH>
constexpr int first_of_pair(int lane, int lanes) {
    const int group = lane / WIDTH;
    return group % 2 * lanes + group / 2 * 2 * WIDTH + lane % WIDTH;
}

// Both vectors in groups of WIDTH lanes: every other group is the sum of two neighbouring groups of a, those
// between are of b.
template <int WIDTH, class A, std::size_t... LANE>
inline Vector<A> fold(Vector<A> a, Vector<A> b, std::index_sequence<LANE...>) {
    constexpr int n = kLanes<A>;
#if defined(__clang__) || __GNUC__ >= 12
    return __builtin_shufflevector(a, b, first_of_pair<WIDTH>(LANE, n)...) +
           __builtin_shufflevector(a, b, (first_of_pair<WIDTH>(LANE, n) + WIDTH)...);
#else
    using Index = Vector<std::conditional_t<sizeof(A) == 8, int64_t, int32_t>>;
    return __builtin_shuffle(a, b, Index{first_of_pair<WIDTH>(LANE, n)...}) +
           __builtin_shuffle(a, b, Index{(first_of_pair<WIDTH>(LANE, n) + WIDTH)...});
#endif
}

// The sums over the lanes of as many vectors as there are lanes, in their order; the vectors are overwritten.
template <class A, int WIDTH = kLanes<A> / 2>
inline Vector<A> sums_over_lanes(Vector<A>* vectors) {
    for (int i = 0; i < WIDTH; ++i)
        vectors[i] = fold<WIDTH, A>(vectors[i], vectors[i + WIDTH], std::make_index_sequence<kLanes<A>>{});
    if constexpr (WIDTH == 1)
        return vectors[0];
    else
        return sums_over_lanes<A, WIDTH / 2>(vectors);
}

}  // namespace amago
