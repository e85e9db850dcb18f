// Half precision as the kernels use it, with the numbers of the package's C++.
#pragma once

#include "numbers.h"

struct __nv_bfloat16 {
    amago::bfloat16 number;
};
inline float __bfloat162float(__nv_bfloat16 x) { return amago::load(x.number); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
    __nv_bfloat16 rounded;
    amago::store(rounded.number, x);
    return rounded;
}
