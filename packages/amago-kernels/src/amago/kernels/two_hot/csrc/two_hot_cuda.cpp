// Python binding of the two-hot CUDA kernels.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <stdexcept>
#include <string>

#include "two_hot_cuda.h"

namespace py = pybind11;

namespace {

using Numbers = std::array<double, 5>;  // low, high, start, width, sharpness

amago::Number number_of(const std::string& name) {
    if (name == "float32") return amago::Number::float32;
    if (name == "float16") return amago::Number::float16;
    if (name == "bfloat16") return amago::Number::bfloat16;
    throw std::invalid_argument("no two-hot kernel on a GPU for logits of dtype " + name);
}

amago::Task task_of(const std::string& name) {
    if (name == "loss") return amago::Task::loss;
    if (name == "loss_gradient") return amago::Task::loss_gradient;
    if (name == "mean") return amago::Task::mean;
    if (name == "mean_gradient") return amago::Task::mean_gradient;
    throw std::invalid_argument("no two-hot kernel computes " + name);
}

void run(const std::string& number, const std::string& task, int64_t rows, int n, bool symlog, const Numbers& numbers,
         const std::array<uintptr_t, 6>& addresses, uintptr_t stream) {
    amago::Call call{};
    call.rows = rows;
    call.support = {n,
                    static_cast<float>(numbers[0]),
                    static_cast<float>(numbers[1]),
                    static_cast<float>(numbers[2]),
                    static_cast<float>(numbers[3]),
                    static_cast<float>(numbers[4]),
                    symlog};
    call.logits = addresses[0];
    call.target = addresses[1];
    call.mask = addresses[2];
    call.weight = addresses[3];
    call.incoming = addresses[4];
    call.result = addresses[5];
    if (const char* objection = amago::two_hot(number_of(number), task_of(task), call, stream))
        throw std::runtime_error(std::string("the two-hot kernel could not be started: ") + objection);
}

}  // namespace

PYBIND11_MODULE(amago_two_hot_cuda, m) {
    m.def("run", &run, py::call_guard<py::gil_scoped_release>());
}
