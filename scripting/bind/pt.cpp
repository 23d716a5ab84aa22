// SPDX-License-Identifier: Apache-2.0
// Files of PyTorch. lua/internal/pt.lua makes mh.load of these.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <cmath>

#include "moonhalo/io/pytorch/numpy_values.h"
#include "moonhalo/io/pytorch/pt_file.h"
#include "moonhalo/io/pytorch/pt_names.h"
#include "moonhalo/io/pytorch/pt_write.h"
#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/core/stored_tensor.h"

namespace moonhalo::scripting {

template <>
inline constexpr const char* kObjectName<io::PtWriter> = "PtWriter";

namespace {

using io::PickleKind, io::PickleValue;

constexpr int kDeepestPickle = 200;

class PtStored : public StoredTensor {
 public:
  PtStored(std::shared_ptr<io::PtFile> file, const io::PtTensor& tensor) : file_(std::move(file)), tensor_(tensor) {}
  at::Tensor facts() const override {
    return at::empty(tensor_.shape, at::TensorOptions(tensor_.dtype).device(at::kMeta));
  }
  at::Tensor read() override { return file_->read(tensor_); }
  at::Tensor read_for(const at::Tensor& target) override { return file_->read_for(tensor_, target); }

 private:
  const std::shared_ptr<io::PtFile> file_;
  const io::PtTensor tensor_;
};

/// Pushes values of a pickle. Each node becomes one Lua value, so what refers to itself does so in Lua, too.
class PickleToLua {
 public:
  PickleToLua(lua_State* lua, std::shared_ptr<io::PtFile> file)
      : lua_(lua), file_(std::move(file)), pickle_(file_->pickle()), arrays_(pickle_) {
    lua_newtable(lua_);
    made_ = lua_gettop(lua_);
  }

  void push_value(const PickleValue& value) {
    luaL_checkstack(lua_, 8, "load");
    switch (value.kind) {
      case PickleKind::kNone:
        lua_pushlightuserdata(lua_, nullptr);
        return;
      case PickleKind::kBool:
        return push(lua_, value.integer != 0);
      case PickleKind::kInt:
        return push(lua_, value.integer);
      case PickleKind::kFloat:
        return push(lua_, value.number);
      default:
        break;
    }
    if (lua_rawgeti(lua_, made_, value.node + 1) != LUA_TNIL) return;
    lua_pop(lua_, 1);
    TORCH_CHECK_VALUE(
        ++depth_ <= kDeepestPickle, "load: the values of this file are nested deeper than ", kDeepestPickle,
        "\n  have  a list or an object within each other\n  fix   save the state_dict() of the model alone");
    push_node(value);
    --depth_;
  }

 private:
  const std::vector<PickleValue>& items(const PickleValue& value) const { return pickle_.node(value).items; }

  /// Enters the value on top of the stack as that of a node.
  void keep(const PickleValue& value) {
    lua_pushvalue(lua_, -1);
    lua_rawseti(lua_, made_, value.node + 1);
  }

  void push_node(const PickleValue& value) {
    switch (value.kind) {
      case PickleKind::kText:
      case PickleKind::kBytes:
        push(lua_, pickle_.text(value));
        return keep(value);
      case PickleKind::kTensor:
      case PickleKind::kStorage:
        push(lua_, std::shared_ptr<StoredTensor>(std::make_shared<PtStored>(file_, file_->tensor(value))));
        return keep(value);
      case PickleKind::kDict:
        return push_dict(value);
      case PickleKind::kObject:
        return push_object_data(value);
      case PickleKind::kGlobal:
        return push_global(value);
      case PickleKind::kBigInt:
        push_class(value, "int");
        return set_field(lua_, "bytes", pickle_.text(value));
      default:
        return push_list(value);
    }
  }

  void push_list(const PickleValue& value) {
    lua_newtable(lua_);
    keep(value);
    lua_Integer position = 0;
    for (const PickleValue& item : items(value)) {
      push_value(item);
      lua_rawseti(lua_, -2, ++position);
    }
  }

  /// An ordered map where all keys are names; else a table with the keys of Python.
  void push_dict(const PickleValue& value) {
    bool named = true;
    const std::vector<PickleValue>& pairs = items(value);
    for (size_t i = 0; i < pairs.size(); i += 2) named = named && pairs[i].kind == PickleKind::kText;
    if (named) {
      push_embedded(lua_, "internal.ordered_map");
      lua_call(lua_, 0, 1);
    } else {
      lua_newtable(lua_);
    }
    keep(value);
    for (size_t i = 0; i < pairs.size(); i += 2) {
      if (pairs[i + 1].kind == PickleKind::kNone) continue;  // as nil is in Lua
      push_key(pairs[i]);
      push_value(pairs[i + 1]);
      lua_settable(lua_, -3);
    }
  }

  void push_key(const PickleValue& key) {
    const bool own = key.kind == PickleKind::kBool || key.kind == PickleKind::kInt || key.kind == PickleKind::kText ||
                     (key.kind == PickleKind::kFloat && !std::isnan(key.number));
    own ? push_value(key) : push(lua_, io::pickle_text(pickle_, key));
  }

  void push_class(const PickleValue& value, std::string_view name) {
    lua_createtable(lua_, 0, 3);
    keep(value);
    set_field(lua_, "python", name);
  }

  void push_global(const PickleValue& value) {
    const std::string_view name = pickle_.text(value);
    constexpr std::string_view kTorch = "torch.";
    const auto dtype = name.starts_with(kTorch) ? parse_dtype(name.substr(kTorch.size())) : std::nullopt;
    if (dtype) return push(lua_, dtype_name(*dtype));
    push_class(value, name);
  }

  void push_field(const char* name, const PickleValue& value) {
    if (value.kind == PickleKind::kNone) return;
    push_value(value);
    lua_setfield(lua_, -2, name);
  }

  void push_object_data(const PickleValue& value) {
    if (const std::optional<at::Tensor> array = arrays_.array(value)) {
      push(lua_, *array);
      return keep(value);
    }
    if (const std::optional<at::Scalar> scalar = arrays_.scalar(value)) return push(lua_, *scalar);
    const std::vector<PickleValue>& parts = items(value);
    const std::string name = io::pickle_class(pickle_, value);
    if (name == "torch.device" && push_device(parts[io::kArgs])) return;
    push_class(value, name);
    if (parts[io::kCall].kind != PickleKind::kGlobal) push_field("call", parts[io::kCall]);
    if (parts[io::kArgs].kind == PickleKind::kTuple && !items(parts[io::kArgs]).empty())
      push_field("args", parts[io::kArgs]);
    push_field("state", parts[io::kState]);
    push_field("list", parts[io::kListItems]);
    push_field("dict", parts[io::kDictItems]);
  }

  /// "cuda:0" of torch.device("cuda", 0)
  bool push_device(const PickleValue& args) {
    if (args.kind != PickleKind::kTuple || items(args).empty() || items(args)[0].kind != PickleKind::kText)
      return false;
    std::string name(pickle_.text(items(args)[0]));
    if (items(args).size() > 1 && items(args)[1].kind == PickleKind::kInt)
      name += ":" + std::to_string(items(args)[1].integer);
    push(lua_, name);
    return true;
  }

  lua_State* lua_;
  const std::shared_ptr<io::PtFile> file_;
  const io::Pickle& pickle_;
  io::NumpyValues arrays_;
  int made_ = 0, depth_ = 0;
};

/// _pt.load(path) -> the value of the file, and its notes by name: {["args.json"] = text}
int load_pt(lua_State* lua) {
  const std::shared_ptr<io::PtFile> file = io::PtFile::open(check_string(lua, 1));
  PickleToLua(lua, file).push_value(file->pickle().top());
  lua_newtable(lua);
  for (const auto& [name, text] : file->notes()) set_field(lua, name.c_str(), text);
  return 2;
}

/// _pt.facts(tensor) -> the tensor, or of one that is still in its file, a tensor of device "meta"; nil for other
/// values
int tensor_facts(lua_State* lua) {
  if (const std::shared_ptr<StoredTensor> stored = to_stored(lua, 1)) {
    push(lua, stored->facts());
  } else if (to_tensor(lua, 1) != nullptr) {
    lua_pushvalue(lua, 1);
  } else {
    lua_pushnil(lua);
  }
  return 1;
}

/// _pt.read_for(tensor, target) -> the tensor, or of one that is still in its file, what the target takes of it
int read_for_target(lua_State* lua) {
  if (const std::shared_ptr<StoredTensor> stored = to_stored(lua, 1)) {
    push(lua, stored->read_for(check_tensor(lua, 2)));
  } else {
    lua_pushvalue(lua, 1);
  }
  return 1;
}

/// _pt.writer(path)
int make_pt_writer(lua_State* lua) {
  push_object(lua, std::make_shared<io::PtWriter>("save_pt", check_string(lua, 1)));
  return 1;
}

/// writer:value(x): a tensor, a number, a boolean or a string; nil and mh.none are None. False for other values.
int pt_writer_value(lua_State* lua) {
  const auto writer = check_object<io::PtWriter>(lua, 1);
  bool known = true;
  if (is_nil(lua, 2)) {
    writer->none();
  } else if (lua_isboolean(lua, 2)) {
    writer->boolean(check_bool(lua, 2));
  } else if (lua_isinteger(lua, 2)) {
    writer->integer(check_int(lua, 2));
  } else if (lua_type(lua, 2) == LUA_TNUMBER) {
    writer->number(check_number(lua, 2));
  } else if (lua_type(lua, 2) == LUA_TSTRING) {
    writer->text(check_string(lua, 2));
  } else if (const at::Tensor* tensor = to_tensor(lua, 2)) {
    writer->tensor(*tensor);
  } else {
    known = false;
  }
  push(lua, known);
  return 1;
}

template <void (io::PtWriter::*fn)()>
int pt_writer_call(lua_State* lua) {
  (check_object<io::PtWriter>(lua, 1).get()->*fn)();
  return 0;
}

const luaL_Reg pt_functions[] = {{"load", guard<load_pt>},
                                 {"facts", guard<tensor_facts>},
                                 {"read_for", guard<read_for_target>},
                                 {"writer", guard<make_pt_writer>},
                                 {nullptr, nullptr}};
const luaL_Reg pt_writer_methods[] = {{"value", guard<pt_writer_value>},
                                      {"begin_list", guard<pt_writer_call<&io::PtWriter::begin_list>>},
                                      {"end_list", guard<pt_writer_call<&io::PtWriter::end_list>>},
                                      {"begin_dict", guard<pt_writer_call<&io::PtWriter::begin_dict>>},
                                      {"end_dict", guard<pt_writer_call<&io::PtWriter::end_dict>>},
                                      {"finish", guard<pt_writer_call<&io::PtWriter::finish>>},
                                      {nullptr, nullptr}};

const Binding pt_binding("pt", [](lua_State* lua) {
  define_object<io::PtWriter>(lua, pt_writer_methods);
  lua_newtable(lua);
  add_functions(lua, pt_functions);
  lua_setfield(lua, -2, "_pt");
});

}  // namespace

}  // namespace moonhalo::scripting
