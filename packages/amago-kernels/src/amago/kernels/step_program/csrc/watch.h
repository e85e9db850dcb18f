// Whether what a program was made from is still the same: asked before every step, for every layer and weight.
#pragma once

#include <pybind11/pybind11.h>

#include <unordered_map>
#include <vector>

namespace amago {

namespace py = pybind11;

// Entries of dictionaries and tensors that a program was made from.
class Watch {
public:
    void entry(const py::dict& dict, py::object key) {
        py::object value = dict.contains(key) ? py::object(dict[key]) : py::object();
        holder(dict).entries.emplace_back(std::move(key), std::move(value));
    }
    void size(const py::dict& dict) { holder(dict).size = static_cast<int64_t>(dict.size()); }
    void tensor(const py::object& tensor) { tensors_.emplace_back(tensor); }

    // Whether every entry is still the same object, and dictionaries whose size is watched still have it.
    bool same_structure() {
        for (Holder& holder : holders_)
            if (!holder.same()) return false;
        return true;
    }

    // Whether a tensor was written to or moved since the last call; true at first.
    bool weights_changed() {
        bool changed = false;
        for (Counted& counted : tensors_) {
            const int64_t version = number(counted.version_now()), address = number(counted.address_now());
            changed = changed || version != counted.version || address != counted.address;
            counted.version = version;
            counted.address = address;
        }
        return changed;
    }

private:
    struct Holder {
        py::dict dict;
        std::vector<std::pair<py::object, py::object>> entries;
        int64_t size = -1;     // that it must have, if any
        uint64_t version = 0;  // of the dictionary when its entries were last the same

        bool same() {
// Python 3.14 has no versions of dictionaries any more.
#if PY_VERSION_HEX < 0x030E0000
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
            const uint64_t now = reinterpret_cast<PyDictObject*>(dict.ptr())->ma_version_tag;
#pragma GCC diagnostic pop
            if (now == version) return true;
#else
            const uint64_t now = 0;
#endif
            if (size >= 0 && PyDict_Size(dict.ptr()) != size) return false;
            for (const auto& [key, value] : entries) {
                PyObject* found = PyDict_GetItemWithError(dict.ptr(), key.ptr());
                if (!found && PyErr_Occurred()) throw py::error_already_set();
                if (found != value.ptr()) return false;
            }
            version = now;
            return true;
        }
    };

    // A tensor, with what it said when last asked. Its class's own C functions are called where they are that, which
    // takes half the time of looking its attributes up.
    struct Counted {
        explicit Counted(py::object of) : tensor(std::move(of)), bound(tensor.attr("data_ptr")) {
            const py::object kind = py::type::of(tensor), version_of = kind.attr("_version");
            const py::object address_of = kind.attr("data_ptr");
            if (Py_TYPE(version_of.ptr()) == &PyGetSetDescr_Type)
                getter = reinterpret_cast<PyGetSetDescrObject*>(version_of.ptr())->d_getset;
            if (Py_TYPE(address_of.ptr()) == &PyMethodDescr_Type) {
                PyMethodDef* found = reinterpret_cast<PyMethodDescrObject*>(address_of.ptr())->d_method;
                if (found->ml_flags == METH_NOARGS) method = found->ml_meth;
            }
        }
        PyObject* version_now() const {
            return getter ? getter->get(tensor.ptr(), getter->closure) : PyObject_GetAttrString(tensor.ptr(), "_version");
        }
        PyObject* address_now() const {
            return method ? method(tensor.ptr(), nullptr) : PyObject_CallNoArgs(bound.ptr());
        }

        py::object tensor, bound;
        PyGetSetDef* getter = nullptr;
        PyCFunction method = nullptr;
        int64_t version = -1, address = 0;
    };

    static int64_t number(PyObject* owned) {
        if (!owned) throw py::error_already_set();
        const long long value = PyLong_AsLongLong(owned);
        Py_DECREF(owned);
        if (value == -1 && PyErr_Occurred()) throw py::error_already_set();
        return value;
    }

    Holder& holder(const py::dict& dict) {
        const auto [found, is_new] = places_.try_emplace(dict.ptr(), holders_.size());
        if (is_new) holders_.push_back({dict, {}});
        holders_[found->second].version = 0;
        return holders_[found->second];
    }

    std::vector<Holder> holders_;
    std::unordered_map<PyObject*, size_t> places_;
    std::vector<Counted> tensors_;
};

}  // namespace amago
