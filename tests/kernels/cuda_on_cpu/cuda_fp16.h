// Half precision as the kernels use it, with the numbers of the package's C++.
#pragma once

#include "numbers.h"

struct __half {
    amago::float16 number;
};
inline float __half2float(__half x) { return amago::load(x.number); }
inline __half __float2half_rn(float x) {
    __half rounded;
    amago::store(rounded.number, x);
    return rounded;
}
