// Python binding of the CUDA kernels of `attention_step`.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "attention_step_cuda.h"

namespace py = pybind11;

namespace {

using Operand = std::tuple<uintptr_t, std::array<int64_t, 3>>;  // address, strides of rows, slots and heads

amago::Heads heads_of(const Operand& operand) {
    const auto& [address, strides] = operand;
    return {address, strides[0], strides[1], strides[2]};
}

amago::Number number_of(const std::string& name) {
    if (name == "float32") return amago::Number::float32;
    if (name == "float16") return amago::Number::float16;
    if (name == "bfloat16") return amago::Number::bfloat16;
    throw std::invalid_argument("no attention kernel on a GPU for numbers of dtype " + name);
}

void run(const std::string& cached, const std::string& given, const std::array<int, 6>& sizes,
         const std::array<Operand, 5>& tensors, const std::array<uintptr_t, 6>& addresses,
         const std::array<int, 2>& reach, const std::array<float, 3>& numbers, const std::vector<float>& frequencies,
         uintptr_t stream) {
    amago::StepCall call{};
    std::tie(call.rows, call.size, call.heads, call.dim, call.group, call.splits) = std::tuple_cat(sizes);
    call.cached = number_of(cached);
    call.given = number_of(given);
    amago::Heads* const places[] = {&call.q, &call.k, &call.v, &call.keys, &call.values};
    for (int i = 0; i < 5; ++i) *places[i] = heads_of(tensors[i]);
    std::tie(call.lengths, call.positions, call.out, call.part_max, call.part_sum, call.part_mixed) =
        std::tuple_cat(addresses);
    std::tie(call.window, call.sink) = std::tuple_cat(reach);
    std::tie(call.sink_bias, call.logit_clip, call.scale) = std::tuple_cat(numbers);
    if (call.dim > amago::kMostFeatures || frequencies.size() > amago::kMostFeatures / 2)
        throw std::invalid_argument("heads are at most " + std::to_string(amago::kMostFeatures) + " wide");
    std::copy(frequencies.begin(), frequencies.end(), call.frequencies);
    if (const char* objection = amago::attention_step(call, stream))
        throw std::runtime_error(std::string("the attention kernel could not be started: ") + objection);
}

}  // namespace

PYBIND11_MODULE(amago_attention_step_cuda, m) {
    m.def("run", &run, py::call_guard<py::gil_scoped_release>());
    m.def("most_heads", [](int dim, const std::string& cached) { return amago::most_heads(dim, number_of(cached)); });
}
